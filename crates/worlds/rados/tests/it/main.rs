//! The driver on a real cluster: the one that `OUTBOARD_RADOS` names, a location whose namespace
//! these tests may fill (`scripts/cluster` starts one). Without it they say that they are skipped.
#![cfg(feature = "librados")]
#![allow(clippy::unwrap_used)]

mod pool;
#[path = "../../../os/tests/skips/mod.rs"]
mod skips;
mod volume;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use outboard_pool::{Op, Pool, Step};
use outboard_rados::{Location, Rados};

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Where the cluster is, with a namespace of the test's own.
fn location(namespace: &str) -> Option<Location> {
    let Ok(text) = std::env::var("OUTBOARD_RADOS") else {
        skips::note_skip("rados", "OUTBOARD_RADOS names no cluster");
        return None;
    };
    let location: Location = text.parse().unwrap();
    let namespace = format!("{}.{namespace}.{}", location.namespace, std::process::id());
    Some(Location { namespace, ..location })
}

fn clear(rados: &Rados) {
    for object in block_on(rados.list(usize::MAX)).unwrap() {
        block_on(rados.apply(&object, Op::new().then(Step::Remove))).unwrap();
    }
}
