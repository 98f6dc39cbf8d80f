//! KVFS behind the mount: the volume that is mounted elsewhere, beyond the queues and the service
//! it is reached by there, in the seeded world: on a thread of its own that takes every step.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{SystemTime, UNIX_EPOCH};

use outboard_base::{Cred, Result, Timestamp};
use outboard_kv::mem::MemKv;
use outboard_kvfs::{Kvfs, Options};
use outboard_medium::mem::MemMedium;
use outboard_sim::loopback::Loopback;
use outboard_wire::event::Event;
use outboard_wire::file::{Header, Op, Reply, Request};

/// The answer to a request with its payload, and what the volume says beside.
type Answered = (Result<(Reply, Vec<u8>)>, Vec<Event>);

/// A request, as it is encoded, with its payload; and where its answer is awaited.
struct Asked {
    request: Vec<u8>,
    payload: Vec<u8>,
    answer: Sender<Answered>,
}

/// The way to that thread, which ends with it.
pub(crate) struct KvfsOverLink {
    calls: Mutex<Sender<Asked>>,
    asked: Mutex<HashMap<Op, u64>>,
}

/// Nothing in memory waits for anybody.
fn at_once<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    for _ in 0..1_000_000 {
        if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
    }
    panic!("it does not end");
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp { sec: since.as_secs().cast_signed(), nsec: since.subsec_nanos() }
}

fn link() -> Loopback<Kvfs<MemKv, MemMedium>> {
    let options = Options { segment: 4 << 20, id: 7, ..Options::default() };
    let volume = at_once(Kvfs::open(MemKv::new(1), MemMedium::new(2), options, now())).unwrap();
    at_once(volume.end_grace()).unwrap();
    let mut link = Loopback::new(Arc::new(volume), 2, 8, 1).unwrap();
    link.set_wall(now);
    link
}

impl KvfsOverLink {
    /// An empty volume.
    pub(crate) fn new() -> KvfsOverLink {
        let (calls, asked) = channel::<Asked>();
        std::thread::spawn(move || {
            let mut link = link();
            for Asked { request, payload, answer } in asked {
                let (header, request) = Request::decode(&request).unwrap();
                let outcome = link.call(&header.cred, &request, &payload);
                // A mount that is going away waits for no answer.
                let _heard = answer.send((outcome, link.take_events()));
            }
        });
        KvfsOverLink { calls: Mutex::new(calls), asked: Mutex::default() }
    }

    /// How often an operation was asked for.
    pub(crate) fn asked(&self, op: Op) -> u64 {
        self.asked.lock().unwrap().get(&op).copied().unwrap_or(0)
    }

    /// Answers a request, as the toy does; and what the volume says beside.
    pub(crate) fn answer(
        &self,
        cred: &Cred,
        request: &Request<'_>,
        payload: &mut [u8],
        payload_len: usize,
    ) -> (Result<Reply>, Vec<Event>) {
        *self.asked.lock().unwrap().entry(request.op()).or_default() += 1;
        let header = Header { cred: cred.clone(), ..Header::default() };
        let mut bytes = vec![0; request.encoded_len(&header)];
        request.encode(&header, &mut bytes).unwrap();
        let (answer, answered) = channel();
        let sent = payload[..payload_len].to_vec();
        let call = Asked { request: bytes, payload: sent, answer };
        self.calls.lock().unwrap().send(call).unwrap();
        let (outcome, events) = answered.recv().unwrap();
        let outcome = outcome.map(|(reply, data)| {
            payload[..data.len()].copy_from_slice(&data);
            reply
        });
        (outcome, events)
    }
}
