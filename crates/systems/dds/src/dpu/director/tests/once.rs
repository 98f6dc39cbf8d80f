//! Every byte is looked at once, however it comes.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Lines, whose bytes are passed as they come; counts what it is shown. `W` and more waits for what
/// is read of anything.
#[derive(Default)]
pub(super) struct Counting {
    shown: AtomicUsize,
    divided: AtomicUsize,
}

impl Counting {
    fn line(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        self.shown.fetch_add(stream.len(), Ordering::Relaxed);
        match stream.iter().position(|byte| *byte == b'\n') {
            Some(at) => Framing::Whole(cursor.passed + at + 1),
            None => {
                cursor.passed += stream.len();
                Framing::More(cursor.passed + 1)
            }
        }
    }

    pub(super) fn take(&self) -> (usize, usize) {
        (self.shown.swap(0, Ordering::Relaxed), self.divided.swap(0, Ordering::Relaxed))
    }
}

impl Application for Counting {
    fn frame(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        self.line(stream, cursor)
    }

    fn frame_answer(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        self.line(stream, cursor)
    }

    fn off_pred(&self, message: &[u8], table: &dyn Lookup, division: &mut Division) {
        self.divided.fetch_add(message.len(), Ordering::Relaxed);
        match message {
            [b'W', ..] => {}
            [b'P', ..] => (0..5000).for_each(|_| {
                let all = Span::Message(0..message.len());
                division.host(all, Touches::Nothing);
            }),
            _ => Lines.off_pred(message, table, division),
        }
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

fn counting() -> (Arc<Counting>, Local) {
    let shared = Arc::new(Shared::default());
    shared.table.lock().unwrap().insert(key_of(b"a"), [1, 0, 4, 0]);
    let app = Arc::new(Counting::default());
    let director = Local::of(Arc::clone(&app) as _, shared, 8, Pool::new(1 << 20));
    (app, director)
}

/// One command of 60,000 arguments, sent byte by byte, was looked at from its start for each: half
/// a millisecond of a worker's thread for a packet of one byte, and for all its clients.
#[test]
fn a_long_message_that_comes_byte_by_byte_is_looked_at_once() {
    for plugin in [false, true] {
        let (app, mut director) = counting();
        if plugin {
            director = director.asking();
        }
        let id = director.open(true);
        let message = [&b"W ".repeat(60_000)[..], b"\nS a"].concat();
        for byte in &message {
            director.client_bytes(id, std::slice::from_ref(byte));
            while let Some(ask) = director.next_ask() {
                director.divided(id, ask.number, None);
            }
        }
        let (shown, divided) = app.take();
        assert_eq!(shown, message.len());
        assert!(divided <= message.len(), "{divided}");
        assert_eq!(director.flow(id).unwrap().to_host().len(), message.len() - 3);
    }
}

/// The same of what the host says, and it does not wait here for its end: an answer that was longer
/// than the most that is kept ended its connection.
#[test]
fn a_long_answer_is_looked_at_once_and_sent_on_as_it_comes() {
    let (app, mut director) = counting();
    let id = director.open(true);
    director.client_bytes(id, b"W\nW\n");
    app.take();
    let chunk = vec![b'x'; 64 << 10];
    let chunks = limits::ANSWER_MAX / chunk.len() + 3;
    for _ in 0..chunks {
        director.host_bytes(id, &chunk);
        let flow = director.flow(id).unwrap();
        assert!(!flow.is_broken() && flow.to_client_len() == chunk.len());
        taken(&mut director, id);
    }
    director.host_bytes(id, b"\nshort\n");
    assert_eq!(taken(&mut director, id), b"\nshort\n");
    assert_eq!(app.take().0, chunks * chunk.len() + 7 + 6, "and the second beside the first");
    assert!(director.flow(id).unwrap().slots.is_empty());
}

/// An answer that others are to go before is kept; it goes on when it is its turn.
#[test]
fn a_long_answer_behind_a_read_waits_for_that() {
    let (_, mut director) = counting();
    let id = director.open(true);
    director.client_bytes(id, b"G a\nS b\n");
    let ToRead { ticket, mut buffer, .. } = director.next_read().unwrap();
    director.host_bytes(id, b"O");
    assert_eq!(taken(&mut director, id), b"");
    buffer[..4].copy_from_slice(b"a=1\n");
    director.read_ended(ticket, Filled { buffer, bytes: Some(0..4) });
    assert_eq!(taken(&mut director, id), b"1\n");
    director.host_bytes(id, b"K");
    assert_eq!(taken(&mut director, id), b"OK");
    director.host_bytes(id, b"\n");
    assert_eq!(taken(&mut director, id), b"\n");
}

/// A message that waits for a read was divided again at every packet behind it.
#[test]
fn a_message_that_waits_is_divided_again_when_it_need_not_wait() {
    let (app, mut director) = counting();
    let id = director.open(true);
    director.client_bytes(id, b"G a\n");
    let waits = [&b"W".repeat(10_000)[..], b"\n"].concat();
    director.client_bytes(id, &waits);
    for _ in 0..1000 {
        director.client_bytes(id, b"x");
    }
    let (shown, divided) = app.take();
    assert!(shown + divided < 3 * waits.len(), "{shown} {divided}");
    let ToRead { ticket, buffer, .. } = director.next_read().unwrap();
    director.read_ended(ticket, Filled { buffer, bytes: None });
    let (shown, divided) = app.take();
    assert!(shown + divided < 3 * waits.len(), "{shown} {divided}");
    assert_eq!(director.flow(id).unwrap().to_host().len(), 4 + waits.len());
}

/// What one message may take of slots is bounded: it is the host's, as one.
#[test]
fn a_message_of_too_many_parts_is_the_hosts() {
    let (_, mut director) = counting();
    let id = director.open(true);
    director.client_bytes(id, b"P\n");
    let flow = director.flow(id).unwrap();
    assert_eq!((flow.to_host(), flow.slots.len()), (&b"P\n"[..], 1));
}
