//! Offloading (sections 6.1 and 6.2, rows D16-D23): what a user writes, and what runs it.
//!
//! One [`Application`] object is all that an application gives: how its messages are framed, which
//! of a message's requests the DPU side answers ([`Application::off_pred`]), which file read
//! answers one ([`Application::off_func`]), and what the file service tells the cache table
//! ([`Application::cache`], [`Application::invalidate`]).
//!
//! * [`engine`]: the context ring of Figure 13 and the pool its buffers come from;
//! * [`contained`]: calls of user code that may panic, overrun their time, or never return;
//! * [`health`]: whether it is asked any more;
//! * [`plugin`]: an application in a process of its own, which may do worse.
//!
//! What holds: a request is answered by exactly one side; contexts are freed in the order in which
//! they were begun, while what a read brought is handed out as soon as it is there (the slots of a
//! flow keep the order that its client expects, and not the ring of Figure 13); whoever finds the
//! ring full or the pool empty is told so before anything was begun, and goes to the host; a buffer
//! that was read into is sent from, and returns to the pool when its connection (the kernel, or a
//! leg of the user-space stack) has taken its bytes: that has a copy until they are acknowledged.

mod api;
pub mod contained;
pub mod engine;
pub mod health;
pub mod plugin;
pub mod pool;

pub use api::WriteOp;
pub use api::{
    Answer, Application, Cursor, Division, Framing, Head, Lookup, Part, ReadOp, Span, Touches,
};

pub use crate::table::{Item, Key};
