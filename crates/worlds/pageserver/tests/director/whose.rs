//! Which thread asks the application about a flow.

use std::collections::{HashMap, HashSet};
use std::thread::ThreadId;

use super::*;

/// [`Lines`], which notes who asks about the client that a line names.
#[derive(Default)]
struct Noting(Mutex<HashMap<u32, HashMap<&'static str, Vec<ThreadId>>>>);

impl Noting {
    fn note(&self, call: &'static str, client: u32) {
        let mut noted = self.0.lock().unwrap();
        noted.entry(client).or_default().entry(call).or_default().push(std::thread::current().id());
    }

    /// Of `H client n`, `G offset bytes`, where a client has offsets of its own; or what is
    /// answered to the first.
    fn note_line(&self, call: &'static str, line: &[u8]) {
        match (line.first(), &numbers(line)[..]) {
            (Some(b'H' | b'h'), [client, ..]) => self.note(call, *client),
            (Some(b'G'), [offset, ..]) => self.note(call, offset / SPAN),
            _ => {}
        }
    }
}

/// Bytes of the file of one client.
const SPAN: u32 = 10_000;

impl Application for Noting {
    fn frame(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        Lines.frame(stream, cursor)
    }

    fn frame_answer(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        let framing = Lines.frame_answer(stream, cursor);
        if let Framing::Whole(len) = framing {
            self.note_line("frame_answer", &stream[..len]);
        }
        framing
    }

    fn off_pred(&self, message: &[u8], table: &dyn Lookup, division: &mut Division) {
        self.note_line("off_pred", message);
        Lines.off_pred(message, table, division);
    }

    fn off_func(&self, request: &[u8], table: &dyn Lookup) -> Option<ReadOp> {
        self.note_line("off_func", request);
        Lines.off_func(request, table)
    }

    fn answer(&self, request: &[u8], read: ReadOp, bytes: &[u8]) -> Option<Answer> {
        self.note_line("answer", request);
        Lines.answer(request, read, bytes)
    }

    fn cache(&self, _: WriteOp<'_>, _: &mut Vec<(Key, Item)>) {}

    fn invalidate(&self, _: ReadOp, _: &mut Vec<Key>) {}
}

const CLIENTS: u32 = 40;
const ROUNDS: u32 = 10;

/// That workers share nothing was so by construction, and nothing would have told if a flow's
/// requests, its reads and its host's answers were not all one worker's. Here they are counted.
#[test]
fn requests_reads_and_answers_of_a_flow_are_all_one_workers() {
    for way in WAYS {
        let app = Arc::new(Noting::default());
        let Some(world) = World::of(way, Arc::clone(&app) as _, &Arc::default()) else { continue };
        let mut streams: Vec<TcpStream> = (0..CLIENTS).map(|_| world.connect()).collect();
        for n in 0..ROUNDS {
            for (stream, client) in streams.iter_mut().zip(0..) {
                let text = format!("G {} 50\nH {client} {n}\n", client * SPAN + n);
                stream.write_all(text.as_bytes()).unwrap();
            }
            for (stream, client) in streams.iter_mut().zip(0..) {
                let host = format!("h {client} {n}\n");
                let expected = [piece(client * SPAN + n, 50), host.into_bytes()].concat();
                let mut got = vec![0; expected.len()];
                stream.read_exact(&mut got).unwrap();
                assert_eq!(got, expected);
            }
        }
        let noted = app.0.lock().unwrap();
        let mut flows: HashMap<ThreadId, u32> = HashMap::new();
        for client in 0..CLIENTS {
            let calls = &noted[&client];
            let count = |call: &str| u32::try_from(calls[call].len()).unwrap();
            assert!(count("off_pred") >= 2 * ROUNDS, "{way:?} {client}");
            for call in ["off_func", "answer", "frame_answer"] {
                assert!(count(call) >= ROUNDS, "{way:?} {client} {call}");
            }
            let threads: HashSet<ThreadId> = calls.values().flatten().copied().collect();
            assert_eq!(threads.len(), 1, "{way:?}: flow {client} is of several: {calls:?}");
            *flows.entry(*threads.iter().next().unwrap()).or_default() += 1;
        }
        println!("{way:?}: flows of each worker {:?}", flows.values().collect::<Vec<_>>());
        assert_eq!(flows.len(), 2, "{way:?}: both workers have some");
    }
}
