//! Checkpoints whose writes fail: a header that says what it should not is no trap for the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use outboard_base::Errno;
use outboard_base::task::{poll_for, run};
use outboard_medium::mem::{Faults, MemMedium};
use outboard_medium::{Buf, Medium};
use outboard_node::{Store, Version};

use super::model::{STRIP, options};

/// Of its writes one is done and said to have failed: the worst that a failure can be.
#[derive(Clone)]
struct Lying(Arc<MemMedium>, Arc<AtomicI64>);

impl Medium for Lying {
    async fn read(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        self.0.read(offset, buf).await
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        let (result, buf) = self.0.write(offset, buf).await;
        let is_it = self.1.fetch_sub(1, Ordering::Relaxed) == 0;
        (if is_it { Err(Errno::EIO) } else { result }, buf)
    }

    async fn flush(&self) -> Result<(), Errno> {
        self.0.flush().await
    }

    async fn grow(&self, len: u64) -> Result<(), Errno> {
        self.0.grow(len).await
    }

    fn len(&self) -> u64 {
        self.0.len()
    }
}

/// Any write of the log or of a checkpoint fails, and power is lost anywhere in what follows.
#[test]
fn a_checkpoint_that_fails_harms_nothing() {
    for fails in 0..7 {
        for polls in 0..50 {
            let seed = fails * 1000 + polls;
            let countdown = Arc::new(AtomicI64::new(-1));
            let medium = |seed| Lying(Arc::new(MemMedium::new(seed)), Arc::clone(&countdown));
            let data = Lying(Arc::new(MemMedium::new(seed)), Arc::new(AtomicI64::new(-1)));
            let log = medium(seed + 7);
            let open = || run(Store::open(log.clone(), data.clone(), options()));
            let store = open().unwrap();
            let write = async |sequence: u32, byte: u8| {
                let version = Version { fence: 1, sequence };
                store.write(7, STRIP, version, None, 0, &[byte; 9000]).await
            };
            run(write(1, 1)).unwrap();
            run(store.flush()).unwrap();
            for sequence in 2..8 {
                run(write(sequence, 2)).unwrap();
            }
            run(store.flush()).unwrap();
            countdown.store(i64::try_from(fails).unwrap(), Ordering::Relaxed);
            log.0.set_faults(Faults { delay_polls: 1, ..Faults::default() });
            let _left = poll_for(polls, async {
                for sequence in 8..20 {
                    let _perhaps = write(sequence, 2).await;
                    let _perhaps = store.tidy().await;
                }
            });
            drop(store);
            countdown.store(-1, Ordering::Relaxed);
            log.0.crash();
            data.0.crash();
            let store = open().unwrap_or_else(|error| panic!("{fails} {polls}: {error}"));
            assert_eq!(run(store.read(7, 0, 9000)), Ok(vec![2; 9000]), "{fails} {polls}");
        }
    }
}
