//! kill -9 at random points.
#![forbid(unsafe_code)]
fn main() {}
