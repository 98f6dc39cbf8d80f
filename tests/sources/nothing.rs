//! Nothing: this package only names sources for `cargo vendor`.
#![forbid(unsafe_code)]
