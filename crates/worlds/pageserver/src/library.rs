//! The file library over an attachment: what `outboard_dds::host` needs of the world.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::time::Duration;

use outboard_base::Time;
use outboard_dds::host::{Library, World};

use super::host::Attachment;
use outboard_os::clock;

/// A file library whose DPU side is a process of this computer.
pub type FileLibrary = Library<Attachment>;

/// The file library of an attachment.
///
/// # Errors
/// If the rings do not lie in its memory.
pub fn file_library(attachment: Attachment) -> io::Result<FileLibrary> {
    let (region, shape) = (attachment.region().clone(), attachment.shape());
    Library::new(&region, shape, attachment).map_err(io::Error::other)
}

/// A thread that never sleeps looks at the socket once in so many calls.
const LOOK_EVERY: u32 = 256;

thread_local! {
    /// The calling thread's number, 0 before it was asked for.
    static THREAD: Cell<u64> = const { Cell::new(0) };
    /// Its calls.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

impl World for Attachment {
    fn who(&self) -> u64 {
        THREAD.with(|known| {
            if known.get() == 0 {
                let id = rustix::thread::gettid().as_raw_nonzero().get();
                known.set(u64::from(id.unsigned_abs()));
            }
            known.get()
        })
    }

    /// A thread is dead when this process has none of its number. The kernel may have given the
    /// number to a new one: then the old one is found out when that has ended too.
    fn is_dead(&self, who: u64) -> bool {
        matches!(Path::new("/proc/self/task").join(who.to_string()).try_exists(), Ok(false))
    }

    fn now(&self) -> Time {
        clock::now()
    }

    fn work(&self, _: u16) {
        self.notify();
    }

    fn sleep(&self, group: u16, is_ready: &dyn Fn() -> bool, at_most: Duration) {
        // A sleep that fails is a short one: whoever polls asks again whether the other is lost.
        let _ = Attachment::sleep(self, group, at_most, is_ready);
    }

    fn is_lost(&self) -> bool {
        let calls = CALLS.with(|calls| calls.replace(calls.get().wrapping_add(1)));
        if calls.is_multiple_of(LOOK_EVERY) { self.look() } else { Attachment::is_lost(self) }
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "a test may panic")]
mod tests {
    use std::time::Instant;

    use outboard_base::Errno;
    use outboard_dds::groups::Shape;
    use outboard_dds::host::{Completion, STUCK};
    use outboard_link::ring::progress;
    use outboard_medium::ALIGN;
    use outboard_wire::dds::DirectoryId;

    use super::*;
    use crate::host::LOSS_NOTICED;
    use crate::server::{Server, ServerOptions};
    use outboard_os::room::Reserve;

    const LIMIT: Duration = Duration::from_secs(20);

    struct Rig {
        library: FileLibrary,
        server: Option<Server>,
        _dir: tempfile::TempDir,
    }

    fn rig() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve { most: 1 << 20, one_in: 1000 };
        let options = ServerOptions::new(dir.path().join("volume"), dir.path().join("socket"));
        let options = ServerOptions { capacity: Some(1 << 30), items: 1000, reserve, ..options };
        let server = Server::start(options).unwrap();
        let shape = Shape::new(3, 256 << 10, 512 << 10, ALIGN as u32).unwrap();
        let attachment = Attachment::attach(&dir.path().join("socket"), shape, LIMIT).unwrap();
        Rig { library: file_library(attachment).unwrap(), server: Some(server), _dir: dir }
    }

    fn wait(rig: &Rig, count: usize) -> Vec<Completion> {
        let (mut out, from) = (Vec::new(), Instant::now());
        while out.len() < count {
            let poll = rig.library.default_poll();
            rig.library.poll_wait(poll, &mut out, 100, LIMIT).unwrap();
            assert!(from.elapsed() < LIMIT, "{} of {count}", out.len());
        }
        out
    }

    /// Through real rings, wakeups and a device: names, data of every size and place against a
    /// vector, many operations at once, and sleeping for them.
    #[test]
    fn files_hold_what_was_written() {
        let rig = rig();
        let library = &rig.library;
        let directory = library.create_directory(b"d").unwrap();
        let file = library.create_file(directory, b"f").unwrap();
        assert_eq!(library.create_file(directory, b"f").unwrap_err(), Errno::EEXIST);
        assert_eq!(library.open_file(directory, b"f").unwrap().id(), file.id());
        let (mut model, mut rng) = (Vec::new(), outboard_base::Rng::new(5));
        for user in 0..200u64 {
            let offset = rng.below(300_000) as usize;
            let mut data = vec![0; rng.below(60_000) as usize];
            rng.fill(&mut data);
            let cut = data.len() / 3;
            let (low, high) = data.split_at(cut);
            library.write_gathered(&file, offset as u64, &[low, high], user).unwrap();
            let done = &wait(&rig, 1)[0];
            assert_eq!((done.user, done.result), (user, Ok(data.len() as u64)));
            if !data.is_empty() {
                model.resize(model.len().max(offset + data.len()), 0);
                model[offset..offset + data.len()].copy_from_slice(&data);
            }
            let from = rng.below(model.len() as u64) as usize;
            let buffers = vec![vec![0; rng.below(5000) as usize], vec![0; 3000]];
            library.read_scattered(&file, from as u64, buffers, user).unwrap();
            let done = &wait(&rig, 1)[0];
            let read = done.buffers.concat();
            let expected = &model[from..model.len().min(from + read.len())];
            assert_eq!(done.result, Ok(expected.len() as u64));
            assert_eq!(&read[..expected.len()], expected);
        }
        assert_eq!(library.file_size(&file), Ok(model.len() as u64));
        library.flush_file(&file, 0).unwrap();
        assert_eq!(wait(&rig, 1)[0].result, Ok(0));
        let listed = library.list(directory).unwrap();
        assert_eq!((listed.len(), &listed[0].name[..]), (1, &b"f"[..]));
        assert_eq!(library.list(DirectoryId::ROOT).unwrap()[0].name, b"d");
        for user in 0..100 {
            library.read_file(&file, user * 512, vec![0; 512], user).unwrap();
        }
        let mut users: Vec<u64> = wait(&rig, 100).iter().map(|done| done.user).collect();
        users.sort_unstable();
        assert_eq!(users, (0..100).collect::<Vec<_>>());
        library.delete_file(&file).unwrap();
        assert_eq!(library.file_size(&file), Err(Errno::ENOENT));
    }

    #[test]
    fn what_is_asked_of_a_dpu_side_that_is_gone_fails_soon() {
        let mut rig = rig();
        let directory = rig.library.create_directory(b"d").unwrap();
        let file = rig.library.create_file(directory, b"f").unwrap();
        let server = rig.server.take().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                server.stop().unwrap();
            });
            let (mut out, from) = (Vec::new(), Instant::now());
            while rig.library.write_file(&file, 0, &[1; 100], 1).is_ok() {
                let poll = rig.library.default_poll();
                rig.library.poll_wait(poll, &mut out, 1, LIMIT).unwrap();
                assert!(from.elapsed() < LIMIT);
            }
            assert!(from.elapsed() < Duration::from_millis(50) + 20 * LOSS_NOTICED);
        });
        let refused = rig.library.read_file(&file, 0, vec![0; 9], 1).unwrap_err();
        assert_eq!((refused.errno, refused.buffers[0].len()), (Errno::EIO, 9));
        assert_eq!(rig.library.file_size(&file), Err(Errno::EIO));
    }

    /// A thread of this process ends between reserving and finishing; the kernel says that it is
    /// gone, and the group goes on.
    #[test]
    fn a_thread_that_died_in_a_call_stops_nobody() {
        let rig = rig();
        let library = &rig.library;
        let directory = library.create_directory(b"d").unwrap();
        let file = library.create_file(directory, b"f").unwrap();
        let place = library.shape().rings(1).unwrap().0;
        let region = library.world().region().clone();
        let ring = progress::Ring::new(region, place, place.bytes()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut producer = ring.producer(library.world().who()).unwrap();
                let shape = progress::Shape { head: 32, data: 999, align: 8 };
                std::mem::forget(producer.reserve(shape).unwrap());
                std::mem::forget(producer);
            });
        });
        let from = Instant::now();
        library.write_file(&file, 0, b"behind", 1).unwrap();
        assert_eq!(wait(&rig, 1)[0].result, Ok(6));
        assert!(from.elapsed() >= STUCK, "not on suspicion");
        library.write_file(&file, 0, b"after", 2).unwrap();
        assert_eq!(wait(&rig, 1)[0].result, Ok(5));
    }

    #[test]
    fn a_thread_that_has_ended_is_proved_dead() {
        let id = || rustix::thread::gettid().as_raw_nonzero().get();
        let is_there = |id: i32| {
            std::path::Path::new("/proc/self/task").join(id.to_string()).try_exists().unwrap()
        };
        let ended = std::thread::spawn(id).join().unwrap();
        let from = std::time::Instant::now();
        // The kernel may take a moment to forget it.
        while is_there(ended) && from.elapsed().as_secs() < 5 {
            std::thread::yield_now();
        }
        assert!(is_there(id()) && !is_there(ended));
    }
}
