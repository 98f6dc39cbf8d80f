//! The suite every [`Kv`](crate::Kv) passes.
