//! Notifications: what the kernel is told without having asked. Each is a whole message.

use super::answer::{OUT_HEADER_LEN, message};
use super::pack::Pack;
use crate::nvmefs::put;

const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const STORE: i32 = 4;
const RESEND: i32 = 7;
const INC_EPOCH: i32 = 8;

/// Cached attributes of `node`, and its cached bytes from `offset` (`len` 0 or below: to the end),
/// are stale. A negative `offset` spares the bytes.
#[must_use]
pub fn inval_inode(node: u64, offset: i64, len: i64) -> Vec<u8> {
    let mut body = Pack::<24>::new();
    body.u64(node).u64(offset.cast_unsigned()).u64(len.cast_unsigned());
    message(0, INVAL_INODE, &[&body.finish()])
}

/// The cached name `name` of directory `parent` is stale.
#[must_use]
pub fn inval_entry(parent: u64, name: &[u8]) -> Vec<u8> {
    let mut body = Pack::<16>::new();
    body.u64(parent).u32(u32::try_from(name.len()).unwrap_or(u32::MAX)).u32(0);
    message(0, INVAL_ENTRY, &[&body.finish(), name, &[0]])
}

/// The head of a message that gives the kernel `len` bytes of `node` from `offset`: `len` bytes
/// follow. A file that ends before them ends with them from then on, as far as the kernel knows.
#[must_use]
pub fn store(node: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut body = Pack::<24>::new();
    body.u64(node).u64(offset).u32(len).u32(0);
    let mut message = message(0, STORE, &[&body.finish()]);
    let whole = u32::try_from(message.len()).unwrap_or(u32::MAX).saturating_add(len);
    put(&mut message, 0, &whole.to_le_bytes());
    message
}

/// What was read and not answered is to come again, marked with
/// [`RESEND_BIT`](super::RESEND_BIT) (kernels that offer
/// [`HAS_RESEND`](super::init::flags::HAS_RESEND)).
#[must_use]
pub fn resend() -> Vec<u8> {
    message(0, RESEND, &[])
}

/// Every cached name is stale (kernels that speak 7.44).
#[must_use]
pub fn inc_epoch() -> Vec<u8> {
    let message = message(0, INC_EPOCH, &[]);
    debug_assert_eq!(message.len(), OUT_HEADER_LEN);
    message
}
