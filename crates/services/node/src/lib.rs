//! Being built.
#![forbid(unsafe_code)]

mod store;

pub use store::{OpenError, Store, StoreOptions, Version};
