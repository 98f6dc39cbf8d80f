//! lookup(create, mkdir): the first cases.

use outboard_base::Errno;

use crate::actor::Actor;
use crate::case::{Case, Outcome, refused};

pub(super) const CASES: &[Case] = &[Case { name: "names/a missing name is ENOENT", run: missing }];

fn missing(t: &mut Actor<'_>) -> Outcome {
    let dir = t.dir;
    refused("lookup", t.lookup(dir, "nothing"), Errno::ENOENT)
}
