//! An application that never returns from a call: its request, and all others of its worker, are
//! answered by the host, in order; others go on; and everything ends when it is to.

use std::sync::mpsc;

use outboard_dds::dpu::offload::health::{Call, Health};

use super::*;

/// What others wait at most for a call that does not return: 80 ms that it is given, what it takes
/// to see that, and to begin a thread.
const WAIT: Duration = Duration::from_millis(150);

/// [`Lines`], but in one of its functions what speaks of 666 is never done with.
struct Looping(Call);

impl Looping {
    fn pass(&self, call: Call, bytes: &[u8]) {
        let mut words = bytes.split(|byte| b" \n".contains(byte));
        if call == self.0 && words.any(|word| word == b"666") {
            loop {
                // One is busy for ever, the others wait.
                if call != Call::OffPred {
                    std::thread::park();
                }
            }
        }
    }
}

impl Application for Looping {
    fn frame(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        let framing = Lines.frame(stream, cursor);
        if let Framing::Whole(len) = framing {
            self.pass(Call::Frame, &stream[..len]);
        }
        framing
    }

    fn frame_answer(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        let framing = Lines.frame_answer(stream, cursor);
        if let Framing::Whole(len) = framing {
            self.pass(Call::FrameAnswer, &stream[..len]);
        }
        framing
    }

    fn off_pred(&self, message: &[u8], table: &dyn Lookup, division: &mut Division) {
        self.pass(Call::OffPred, message);
        Lines.off_pred(message, table, division);
    }

    fn off_func(&self, request: &[u8], table: &dyn Lookup) -> Option<ReadOp> {
        self.pass(Call::OffFunc, request);
        Lines.off_func(request, table)
    }

    fn answer(&self, request: &[u8], read: ReadOp, bytes: &[u8]) -> Option<Answer> {
        self.pass(Call::Answer, request);
        Lines.answer(request, read, bytes)
    }

    fn cache(&self, _: WriteOp<'_>, _: &mut Vec<(Key, Item)>) {}

    fn invalidate(&self, _: ReadOp, _: &mut Vec<Key>) {}
}

/// Ends a world, which must come to its end.
fn end(world: World) {
    let (ended, wait) = mpsc::channel();
    let ending = std::thread::spawn(move || {
        drop(world);
        ended.send(()).unwrap();
    });
    wait.recv_timeout(LIMIT).expect("it ends");
    ending.join().unwrap();
}

/// The request that is never done with stands amid others, and on other connections as many go on.
fn everybody_is_answered(way: Way, call: Call) {
    let health = Arc::new(Health::default());
    let Some(world) = World::of(way, Arc::new(Looping(call)), &health) else { return };
    let framed = call == Call::FrameAnswer;
    let scripts = (0..5u64).map(|n| {
        // Where answers of the host cannot be told apart any more, they are not to be mixed.
        let mut rng = Rng::new(n);
        let half = |rng: &mut Rng| -> (Vec<u8>, Vec<u8>) {
            if framed {
                let (mut script, mut answers) = (Vec::new(), Vec::new());
                for n in 0..40 {
                    script.extend(format!("H {n}\n").bytes());
                    answers.extend(format!("h {n}\n").bytes());
                }
                (script, answers)
            } else {
                script(rng, 20)
            }
        };
        let (mut all, mut expected) = half(&mut rng);
        if n == 0 {
            all.extend(if framed { &b"H 666\n"[..] } else { b"G 666 9\n" });
            expected.extend(if framed { b"h 666\n".to_vec() } else { piece(666, 9) });
        }
        let (script, answers) = half(&mut rng);
        all.extend(script);
        expected.extend(answers);
        (n, all, expected)
    });
    let conversations: Vec<_> = scripts
        .map(|(n, script, expected)| {
            let stream = world.connect();
            std::thread::spawn(move || {
                let got = converse(stream, script, n);
                let same = got.iter().zip(&expected).take_while(|(a, b)| a == b).count();
                assert_eq!((same, got.len()), (expected.len(), expected.len()), "{n}");
            })
        })
        .collect();
    conversations.into_iter().for_each(|thread| thread.join().unwrap());
    let lost: Vec<_> = health.lost().iter().map(|lost| lost.call).collect();
    assert_eq!((lost, health.is_off()), (vec![call], true));
    assert!(world.front.is_serving());
    // Who comes now is the host's from the start.
    let before = world.front.tally().offloaded.load(Ordering::Relaxed);
    let mut later = world.connect();
    later.write_all(b"G 7 5\nG 666 4\n").unwrap();
    let expected = [piece(7, 5), piece(666, 4)].concat();
    let mut got = vec![0; expected.len()];
    later.read_exact(&mut got).unwrap();
    assert_eq!(got, expected);
    assert_eq!(world.front.tally().offloaded.load(Ordering::Relaxed), before);
    end(world);
}

const CALLS: [Call; 5] =
    [Call::Frame, Call::OffPred, Call::OffFunc, Call::Answer, Call::FrameAnswer];

fn everybody_is_answered_whatever_does_not_return(way: Way) {
    let all: Vec<_> = CALLS
        .into_iter()
        .map(|call| std::thread::spawn(move || everybody_is_answered(way, call)))
        .collect();
    all.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_call_that_never_returns_costs_its_offloading_with_kernel_sockets() {
    everybody_is_answered_whatever_does_not_return(Way::Kernel);
}

#[test]
fn a_call_that_never_returns_costs_its_offloading_on_the_stack() {
    for call in [Call::OffFunc, Call::Answer] {
        everybody_is_answered(Way::Stack, call);
    }
}

/// The longest that clients had to wait for an answer of the host while a call on their worker did
/// not return; `None` if none shared the worker.
fn longest_wait() -> Option<Duration> {
    let health = Arc::new(Health::default());
    let world = World::of(Way::Kernel, Arc::new(Looping(Call::OffFunc)), &health).unwrap();
    let mut others: Vec<TcpStream> = (0..6).map(|_| world.connect()).collect();
    let mut ask = |longest: &mut Duration| {
        for stream in &mut others {
            let begun = Instant::now();
            stream.write_all(b"H a\n").unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
            *longest = (*longest).max(begun.elapsed());
        }
    };
    let (mut before, mut longest) = (Duration::ZERO, Duration::ZERO);
    (0..20).for_each(|_| ask(&mut before));
    let mut stuck = world.connect();
    stuck.write_all(b"G 666 5\n").unwrap();
    while !health.is_off() {
        ask(&mut longest);
    }
    (0..20).for_each(|_| ask(&mut longest));
    let mut got = vec![0; piece(666, 5).len()];
    stuck.read_exact(&mut got).unwrap();
    assert_eq!(got, piece(666, 5));
    println!("before {before:?}, amid it {longest:?}");
    (longest > 2 * before).then_some(longest)
}

/// All clients of the worker stood still for two seconds.
#[test]
fn a_call_that_never_returns_keeps_others_waiting_for_a_moment() {
    // Other work of this computer makes it longer, so the best of some counts.
    let until = Instant::now() + LIMIT;
    let tries = std::iter::from_fn(|| (Instant::now() < until).then(longest_wait));
    assert!(tries.flatten().any(|wait| wait < WAIT));
}

/// [`Lines`], but what speaks of 777 is asked for once and takes a while.
struct Slow(AtomicU64);

impl Application for Slow {
    fn frame(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        Lines.frame(stream, cursor)
    }

    fn frame_answer(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        Lines.frame_answer(stream, cursor)
    }

    fn off_pred(&self, message: &[u8], table: &dyn Lookup, division: &mut Division) {
        let is_slow = message.starts_with(b"G 777 ");
        if is_slow && self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(600));
        }
        Lines.off_pred(message, table, division);
    }

    fn off_func(&self, request: &[u8], table: &dyn Lookup) -> Option<ReadOp> {
        Lines.off_func(request, table)
    }

    fn answer(&self, request: &[u8], read: ReadOp, bytes: &[u8]) -> Option<Answer> {
        Lines.answer(request, read, bytes)
    }

    fn cache(&self, _: WriteOp<'_>, _: &mut Vec<(Key, Item)>) {}

    fn invalidate(&self, _: ReadOp, _: &mut Vec<Key>) {}
}

/// One call that was long for once cost all offloading until the process was started anew.
#[test]
fn offloading_comes_back_by_itself_after_a_call_that_was_long() {
    let health = Arc::new(Health::default());
    for way in WAYS {
        let app = Arc::new(Slow(AtomicU64::new(0)));
        let Some(world) = World::of(way, app, &health) else { continue };
        let ask = |stream: &mut TcpStream| {
            stream.write_all(b"G 777 5\n").unwrap();
            let mut got = vec![0; piece(777, 5).len()];
            stream.read_exact(&mut got).unwrap();
            assert_eq!(got, piece(777, 5));
            world.front.tally().offloaded.load(Ordering::Relaxed)
        };
        let mut before = world.connect();
        let begun = Instant::now();
        assert_eq!(ask(&mut before), 0, "the host's");
        assert!(begun.elapsed() < Duration::from_millis(600), "and nobody waited for it");
        until("it is on again", || {
            let mut later = world.connect();
            ask(&mut later) > 0
        });
        assert!(health.lost().is_empty() && !health.is_off());
        // Known from the start, it would be asked too late.
        ask(&mut before);
        end(world);
    }
}

/// Told to end while a call is under way that never will: nobody has found out yet.
#[test]
fn a_front_ends_amid_a_call_that_never_returns() {
    let health = Arc::new(Health::default());
    let world = World::of(Way::Kernel, Arc::new(Looping(Call::OffPred)), &health).unwrap();
    let mut stream = world.connect();
    stream.write_all(b"G 7 5\n").unwrap();
    let mut got = vec![0; piece(7, 5).len()];
    stream.read_exact(&mut got).unwrap();
    stream.write_all(b"G 666 5\n").unwrap();
    end(world);
}
