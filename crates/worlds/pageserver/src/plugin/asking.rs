//! What a worker of the director asks a plug-in: messages, gathered while a batch is out.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use outboard_dds::dpu::director::Director;
use outboard_dds::dpu::offload::Lookup;
use outboard_dds::dpu::offload::plugin::area::BATCH;
use outboard_dds::dpu::offload::plugin::exchange::{Batch, KNOWN_MAX, Said, entries};
use outboard_dds::dpu::offload::plugin::{Ask, Known, Verdict};

use super::Plugin;
use super::channel::{Channel, Found};
use outboard_os::wakeup::Wakeup;

/// How often a plug-in may look for more keys amid one message.
const ROUNDS_MAX: u32 = 4;
/// How long a thread looks for an answer before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// A message, and what the plug-in was told for it.
struct Question {
    ask: Ask,
    known: Vec<Known>,
    rounds: u32,
}

/// The questions of one worker, and the process that answers them.
pub struct Asking {
    channel: Channel,
    waiting: VecDeque<Question>,
    out: Vec<Question>,
    batch: Batch,
}

impl Asking {
    /// For the thread that calls this, which waits on `wakeup`. Waits until the process is there.
    ///
    /// # Errors
    /// No descriptor could be made.
    pub fn new(plugin: Plugin, wakeup: &Wakeup) -> io::Result<Asking> {
        let mut channel = Channel::new(plugin, wakeup)?;
        channel.begin();
        Ok(Asking { channel, waiting: VecDeque::new(), out: Vec::new(), batch: Batch::new(BATCH) })
    }

    /// Takes questions from the director, gives it what came back, asks on; how many came back.
    pub fn pass(&mut self, director: &mut Director, table: &dyn Lookup) -> usize {
        let now = Instant::now();
        while let Some(ask) = director.next_ask() {
            self.waiting.push_back(Question { ask, known: Vec::new(), rounds: 0 });
        }
        match self.channel.look(now) {
            Found::Busy => 0,
            Found::Away => self.give_up(director),
            Found::Idle => {
                self.ask(now, director);
                0
            }
            Found::Said(said) => {
                let ended = self.take_in(now, &said, director, table);
                // Placing them may have made room for more.
                while let Some(ask) = director.next_ask() {
                    self.waiting.push_back(Question { ask, known: Vec::new(), rounds: 0 });
                }
                if !self.channel.is_there() {
                    // What it said ended it. Nobody but the next start would wake this thread.
                    return ended + self.give_up(director);
                }
                self.ask(now, director);
                ended
            }
        }
    }

    /// Everything is the host's.
    fn give_up(&mut self, director: &mut Director) -> usize {
        let all = self.out.drain(..).chain(self.waiting.drain(..));
        all.map(|question| director.divided(question.ask.flow, question.ask.number, None)).count()
    }

    fn ask(&mut self, now: Instant, director: &mut Director) {
        self.batch.clear();
        while let Some(question) = self.waiting.pop_front() {
            if self.batch.divide(&question.ask.message, &question.known) {
                self.out.push(question);
            } else if self.batch.entries() > 0 {
                self.waiting.push_front(question);
                break;
            } else {
                // More than a batch holds.
                director.divided(question.ask.flow, question.ask.number, None);
            }
        }
        if !self.out.is_empty() {
            self.channel.ask(now, self.batch.bytes(), self.out.len());
        }
    }

    /// Takes in what was said; how many questions are answered by that.
    fn take_in(
        &mut self,
        now: Instant,
        said: &[u8],
        director: &mut Director,
        table: &dyn Lookup,
    ) -> usize {
        let said = entries(said).filter(|said| said.len() == self.out.len());
        let Some(said) = said else {
            self.channel.fail(now, "it did not answer what it was asked");
            return self.give_up(director);
        };
        let (mut ended, mut is_wrong, mut again) = (0, false, Vec::new());
        for (mut question, (kind, body)) in self.out.drain(..).zip(said) {
            let verdict = match Said::parse(kind, body, question.ask.message.len()) {
                Some(Said::Divided(division, plans)) => {
                    Some(Verdict { division, plans, relies: question.known })
                }
                Some(Said::Nothing) => None,
                Some(Said::Wants(keys))
                    if question.rounds < ROUNDS_MAX
                        && question.known.len() + keys.len() <= KNOWN_MAX =>
                {
                    question.rounds += 1;
                    question.known.extend(keys.into_iter().map(|key| (key, table.get(key))));
                    again.push(question);
                    continue;
                }
                _ => {
                    is_wrong = true;
                    None
                }
            };
            ended += 1;
            director.divided(question.ask.flow, question.ask.number, verdict);
        }
        again.into_iter().rev().for_each(|question| self.waiting.push_front(question));
        if is_wrong {
            self.channel.fail(now, "it said what cannot be");
        }
        ended
    }

    /// Looks for an answer for a moment; whether there is one. To be called before a sleep.
    #[must_use]
    pub fn spin(&self) -> bool {
        let begun = Instant::now();
        while self.channel.is_busy() {
            if self.channel.has_news() {
                return true;
            }
            if begun.elapsed() >= SPIN {
                break;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// The thread is going to sleep: how long it may, at most. Not at all if there is an answer, or
    /// something to ask.
    pub fn begin_sleep(&mut self) -> Option<Duration> {
        let now = Instant::now();
        self.channel.set_waits(true);
        if self.channel.has_news() || (!self.waiting.is_empty() && !self.channel.is_busy()) {
            return Some(Duration::ZERO);
        }
        self.channel.deadline(now).map(|at| at.saturating_duration_since(now))
    }

    /// It is awake again.
    pub fn end_sleep(&mut self) {
        self.channel.set_waits(false);
    }
}
