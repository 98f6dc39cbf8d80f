//! One asynchronous call: a future that a callback of librados wakes.

use std::ffi::{c_int, c_void};
use std::future::Future;
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use super::Code;
use super::ffi;

/// What librados writes into, and what else goes with a call to its end.
pub(crate) trait Out: Send + 'static {
    /// The call has ended, whether or not anybody waits for it. Runs on a thread of librados.
    fn ended(&mut self, _result: Result<i32, Code>) {}
}

impl Out for u64 {}

#[derive(Default)]
struct State {
    end: Option<c_int>,
    waker: Option<Waker>,
}

/// What the future and the callback share. `out` is written by librados until `end` is there.
struct Shared<T> {
    state: Mutex<State>,
    out: *mut T,
}

// SAFETY: `out` is a box's contents, owned by this struct. While librados may write it nobody else
// touches it; afterwards it is taken by the one future there is, or dropped with the struct.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above; everything else is behind the lock.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: `out` came from `Box::into_raw`. The callback's reference is gone, so the call
        // has ended, or never began.
        drop(unsafe { Box::from_raw(self.out) });
    }
}

/// A call under way.
pub(crate) struct Call<T: Out> {
    shared: Arc<Shared<T>>,
}

extern "C" fn complete<T: Out>(completion: ffi::Completion, argument: *mut c_void) {
    // SAFETY: `argument` is the reference `Call::start` gave away, and this is the only callback.
    let shared = unsafe { Arc::from_raw(argument.cast::<Shared<T>>().cast_const()) };
    // SAFETY: librados keeps the completion until its callback has returned.
    let end = unsafe { ffi::rados_aio_get_return_value(completion) };
    // SAFETY: librados has written all it will; the future does not look before `end` is there.
    unsafe { (*shared.out).ended(Code::check(end)) };
    let waker = {
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.end = Some(end);
        state.waker.take()
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<T: Out> Call<T> {
    /// Starts a call that writes into `out`. `submit` hands it to librados with the completion it
    /// is given and where `out` lies, and returns what librados says: negative if it was refused,
    /// and then no callback will come.
    pub(super) fn start(
        out: T,
        submit: impl FnOnce(ffi::Completion, *mut T) -> c_int,
    ) -> Result<Call<T>, Code> {
        let out = Box::into_raw(Box::new(out));
        let shared = Arc::new(Shared { state: Mutex::default(), out });
        let given = Arc::into_raw(Arc::clone(&shared));
        let argument = given.cast_mut().cast::<c_void>();
        let mut completion = ptr::null_mut();
        // SAFETY: `argument` is what `complete::<T>` expects, and stays valid until it is called.
        let made =
            unsafe { ffi::rados_aio_create_completion2(argument, complete::<T>, &mut completion) };
        let submitted = if made < 0 { made } else { submit(completion, out) };
        if made >= 0 {
            // SAFETY: made above; librados holds a reference of its own while the call goes on.
            unsafe { ffi::rados_aio_release(completion) };
        }
        if submitted < 0 {
            // SAFETY: refused, so the reference given away was not used and will not be.
            drop(unsafe { Arc::from_raw(given) });
            return Err(Code(submitted));
        }
        Ok(Call { shared })
    }
}

impl<T: Out> Call<T> {
    /// Waits for the end, then takes what is wanted of what librados wrote.
    pub(crate) async fn then<R>(self, take: impl FnOnce(&mut T) -> R) -> Result<R, Code> {
        let end = Wait { shared: &self.shared }.await;
        Code::check(end)?;
        // SAFETY: the call has ended, so librados writes no more; this is the only future.
        Ok(take(unsafe { &mut *self.shared.out }))
    }
}

struct Wait<'a, T> {
    shared: &'a Shared<T>,
}

impl<T> Future for Wait<'_, T> {
    type Output = c_int;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<c_int> {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(end) = state.end {
            return Poll::Ready(end);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}
