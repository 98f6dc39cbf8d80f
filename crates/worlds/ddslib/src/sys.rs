//! The C interface: pointers become references and slices here, and nowhere else.

mod calls;
mod lent;

pub use calls::*;
pub use lent::{Lent, Library};
