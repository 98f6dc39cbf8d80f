//! Buffers that are read into and then sent from: aligned, reused, and no more than a stated sum.

use outboard_medium::{ALIGN, Buf};

/// Sizes of buffers: [`ALIGN`] times powers of two, so many.
const CLASSES: usize = 10;
/// Largest buffer, bytes.
pub const BUFFER_MAX: usize = ALIGN << (CLASSES - 1);

/// A pool. Not shared: each worker has its own.
#[derive(Debug)]
pub struct Pool {
    free: [Vec<Buf>; CLASSES],
    /// Bytes of all buffers, here and out.
    made: usize,
    limit: usize,
}

fn class_of(bytes: usize) -> Option<usize> {
    let pages = bytes.max(1).div_ceil(ALIGN).next_power_of_two();
    let class = usize::try_from(pages.trailing_zeros()).ok()?;
    (class < CLASSES).then_some(class)
}

impl Pool {
    /// At most `limit` bytes of buffers.
    #[must_use]
    pub fn new(limit: usize) -> Pool {
        Pool { free: [const { Vec::new() }; CLASSES], made: 0, limit }
    }

    /// A buffer of at least `bytes`, rounded up to [`ALIGN`]; `None` if the pool is empty, or no
    /// buffer is that big. What it holds is old.
    pub fn take(&mut self, bytes: usize) -> Option<Buf> {
        let class = class_of(bytes)?;
        let size = ALIGN << class;
        let mut buf = match self.free.get_mut(class)?.pop() {
            Some(buf) => buf,
            None => {
                while self.made + size > self.limit {
                    self.shrink(class)?;
                }
                self.made += size;
                Buf::zeroed(size)
            }
        };
        buf.resize(bytes);
        Some(buf)
    }

    /// Gives up a free buffer of another class.
    fn shrink(&mut self, class: usize) -> Option<()> {
        let others = (0..CLASSES).rev().filter(|other| *other != class);
        for other in others {
            if self.free.get_mut(other)?.pop().is_some() {
                self.made -= ALIGN << other;
                return Some(());
            }
        }
        None
    }

    /// Takes back a buffer it gave.
    pub fn give(&mut self, buf: Buf) {
        if let Some(free) = class_of(buf.capacity()).and_then(|class| self.free.get_mut(class)) {
            free.push(buf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_is_taken_again_and_the_sum_holds() {
        let mut pool = Pool::new(4 * ALIGN);
        let a = pool.take(1).unwrap();
        let b = pool.take(ALIGN + 1).unwrap();
        assert_eq!((a.len(), b.len()), (ALIGN, 2 * ALIGN));
        let place = a.as_ptr();
        pool.give(a);
        assert_eq!(pool.take(ALIGN).unwrap().as_ptr(), place);
        assert!(pool.take(2 * ALIGN).is_none(), "only one page is left");
        assert!(pool.take(1).is_some());
        assert!(pool.take(1).is_none());
        pool.give(b);
        assert!(pool.take(1).is_some(), "what lies in another class is given up");
        assert!(pool.take(BUFFER_MAX + 1).is_none());
    }
}
