//! A small conversation in the simulated world: one asks, the other answers, and the network does
//! its worst.
//!
//! The pattern to copy for a simulation of machines: the machines know neither network nor clock;
//! the world owns both, feeds inputs, carries effects out, and lets the seed choose who goes next.
//! First safety (lossy lines, partitions), then liveness (all is healed, and everybody must come to
//! an end). `cargo run -p outboard-sim --example ping` plays some seeds.

#![allow(clippy::panic, clippy::print_stdout, reason = "an example may print and fail")]

use std::time::Duration;

use outboard_base::machine::Outbox;
use outboard_base::{Deadline, Time};
use outboard_sim::line::{Delay, LineOptions};
use outboard_sim::network::{Delivery, Endpoint, LossyNetwork};
use outboard_sim::{Chooser, seeds};

/// Questions of one run.
const QUESTIONS: u32 = 50;
const RETRY: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_millis(80);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Message {
    Ping(u32),
    Pong(u32),
}

enum Input {
    Message(Message),
    Deadline,
}

enum Effect {
    Send(Message),
    /// This question is answered, for the first time.
    Answered(u32),
}

/// Asks one question after the other, each again until it is answered.
struct Asker {
    question: u32,
    retry: Duration,
    again: Option<Time>,
}

impl Asker {
    const EFFECTS_MAX: usize = 2;

    fn new(now: Time) -> Asker {
        Asker { question: 0, retry: RETRY, again: Some(now) }
    }

    /// Consumes one input. Pushes at most [`Asker::EFFECTS_MAX`] effects.
    fn handle(&mut self, now: Time, input: Input, out: &mut Outbox<Effect>) {
        match input {
            Input::Message(Message::Pong(number)) if number == self.question => {
                out.push(Effect::Answered(number));
                self.question += 1;
                self.retry = RETRY;
                self.again = None;
                if self.question < QUESTIONS {
                    self.ask(now, out);
                }
            }
            // Late copies of answers, and what nobody asks an asker.
            Input::Message(_) => {}
            Input::Deadline if self.again.is_some_and(|at| at <= now) => {
                self.ask(now, out);
                self.retry = RETRY_MAX.min(self.retry * 2);
            }
            Input::Deadline => {}
        }
    }

    fn ask(&mut self, now: Time, out: &mut Outbox<Effect>) {
        self.again = Some(now.after(self.retry));
        out.push(Effect::Send(Message::Ping(self.question)));
    }

    /// When to come back with [`Input::Deadline`].
    fn next_deadline(&self) -> Option<Deadline> {
        self.again
    }
}

/// Answers each question as often as it comes, and counts it once.
#[derive(Default)]
struct Answerer {
    counted: u32,
}

impl Answerer {
    const EFFECTS_MAX: usize = 1;

    /// Consumes one input. Pushes at most [`Answerer::EFFECTS_MAX`] effects.
    fn handle(&mut self, _: Time, input: Input, out: &mut Outbox<Effect>) {
        if let Input::Message(Message::Ping(number)) = input {
            self.counted += u32::from(number == self.counted);
            out.push(Effect::Send(Message::Pong(number)));
        }
    }
}

struct World {
    now: Time,
    network: LossyNetwork<Message>,
    chooser: Chooser,
    asker: (Endpoint, Asker),
    answerer: (Endpoint, Answerer),
    answered: Vec<u32>,
}

/// What a seed came to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome {
    took: Time,
    sent: u64,
    trace: (u64, u64),
}

impl World {
    fn new(seed: u64) -> World {
        let rough = LineOptions {
            delay: Delay::Tail(Duration::from_millis(1), Duration::from_millis(30)),
            lost_ppm: 200_000,
            doubled_ppm: 100_000,
            overtaken_ppm: 100_000,
            queue_max: 16,
        };
        let mut network = LossyNetwork::new(seed, rough);
        let (asker, answerer) = (network.endpoint("asker"), network.endpoint("answerer"));
        World {
            now: Time(0),
            network,
            chooser: Chooser::new(seed),
            asker: (asker, Asker::new(Time(0))),
            answerer: (answerer, Answerer::default()),
            answered: Vec::new(),
        }
    }

    /// One event: the earliest, and the seed's choice where an arrival and a deadline come
    /// together. False if nothing will happen any more.
    fn step(&mut self) -> bool {
        let (arrival, deadline) = (self.network.next_arrival(), self.asker.1.next_deadline());
        let Some(next) = arrival.into_iter().chain(deadline).min() else { return false };
        self.now = self.now.max(next);
        let both = arrival == deadline;
        if deadline == Some(next) && !(both && self.chooser.chance(1, 2)) {
            self.ask(Input::Deadline);
        } else if let Some(Delivery { from, to, message }) = self.network.take(self.now) {
            if to == self.asker.0 {
                self.ask(Input::Message(message));
            } else {
                let mut out = Outbox::new(Answerer::EFFECTS_MAX);
                self.answerer.1.handle(self.now, Input::Message(message), &mut out);
                self.carry_out(to, from, &mut out);
            }
        }
        true
    }

    fn ask(&mut self, input: Input) {
        let mut out = Outbox::new(Asker::EFFECTS_MAX);
        self.asker.1.handle(self.now, input, &mut out);
        self.carry_out(self.asker.0, self.answerer.0, &mut out);
    }

    fn carry_out(&mut self, from: Endpoint, to: Endpoint, out: &mut Outbox<Effect>) {
        while let Some(effect) = out.pop() {
            match effect {
                Effect::Send(message) => self.network.send(self.now, from, to, message),
                Effect::Answered(number) => self.answered.push(number),
            }
        }
    }

    /// What must hold at every moment.
    fn check(&self) {
        assert!(self.answered.iter().copied().eq(0..self.asker.1.question), "once, in order");
        let counted = self.answerer.1.counted;
        assert!(counted >= self.asker.1.question, "answered and never counted");
        assert!(counted <= self.asker.1.question + 1, "counted and never asked");
    }
}

fn simulate(seed: u64) -> Outcome {
    let mut world = World::new(seed);
    // Safety: whatever happens, nothing is answered twice, out of order, or unasked.
    for _ in 0..400 {
        match world.chooser.below(40) {
            0 => world.network.partition(&[world.asker.0]),
            1..4 => world.network.heal(),
            _ => {}
        }
        world.step();
        world.check();
    }
    // Liveness: lines are sound now, so all comes to its end.
    world.network.heal();
    world.network.set_all(LineOptions::sound(Delay::Fixed(Duration::from_millis(1))));
    let ended = (0..10_000).any(|_| !world.step());
    world.check();
    assert!(ended && world.answered.len() == QUESTIONS as usize, "it hangs");
    let trace = (world.chooser.trace().hash(), world.network.trace().hash());
    Outcome { took: world.now, sent: world.network.counts().sent, trace }
}

fn main() {
    for (seed, outcome) in seeds::run(0..10, simulate).outcomes.iter().enumerate() {
        let took = outcome.took.since(Time(0));
        println!("{seed}: {QUESTIONS} questions, {} messages, {took:.1?}", outcome.sent);
    }
}

#[test]
fn each_question_is_answered_once_whatever_is_lost() {
    let runs = seeds::run(0..200, simulate);
    let sent: u64 = runs.outcomes.iter().map(|outcome| outcome.sent).sum();
    assert!(runs.is_alone || sent > 200 * 2 * u64::from(QUESTIONS), "nothing was sent again");
}

#[test]
fn equal_seeds_give_equal_runs() {
    assert_eq!(simulate(5), simulate(5));
    assert_ne!(simulate(5).trace, simulate(6).trace);
}
