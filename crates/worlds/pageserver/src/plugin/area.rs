//! The memory a thread of the DPU side and a plug-in's process share.
//!
//! ```text
//! 0x000  u32 stage      0 being loaded, 1 ready, 2 refused           plug-in
//! 0x040  u32 asked      number of the batch asked last | u32 bytes   DPU side
//! 0x080  u32 said       number of the batch answered | u32 bytes     plug-in
//! 0x0C0  u32 sleeps     the plug-in's process is to be woken         plug-in; DPU side clears
//! 0x100  u32 waits      the DPU side is to be woken                  DPU side; plug-in clears
//! 0x1000              the batch asked, up to BATCH bytes
//! 0x1000 + BATCH      what is said: first the profile, or why it is refused; then batches
//! ```
//!
//! Who goes to sleep says so, passes a fence, and looks once more.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use outboard_link::region::fence;

use super::Profile;
use super::sys::abi::CFrames;
use outboard_os::shm::{NotShareable, Shared};

/// Bytes of a batch either way: a write of the largest size fits.
pub(super) const BATCH: usize = 1 << 20;
const BATCH64: u64 = BATCH as u64;

const STAGE: u64 = 0;
const ASKED: u64 = 0x40;
const SAID: u64 = 0x80;
const SLEEPS: u64 = 0xC0;
const WAITS: u64 = 0x100;
const QUESTIONS: u64 = 0x1000;
const ANSWERS: u64 = QUESTIONS + BATCH64;
const LEN: u64 = ANSWERS + BATCH64;

/// How far a plug-in's process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Loading,
    Ready,
    Refused,
}

/// The area. Either side may find anything there: every length is held against [`BATCH`].
pub(super) struct Area(Shared);

impl Area {
    pub(super) fn create() -> io::Result<Area> {
        Ok(Area(Shared::create("outboard-plugin", LEN)?))
    }

    pub(super) fn open(fd: OwnedFd) -> Result<Area, NotShareable> {
        Ok(Area(Shared::open(fd, LEN)?))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn get(&self, at: u64) -> u32 {
        // Every place is within.
        self.0.region().load_u32(at, Ordering::Acquire).unwrap_or(0)
    }

    fn set(&self, at: u64, value: u32) {
        let _within = self.0.region().store_u32(at, value, Ordering::Release);
    }

    fn bytes(&self, at: u64, len: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len).ok().filter(|len| *len <= BATCH)?];
        self.0.region().read_into(at, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Writes bytes and their length behind the number of `word`.
    fn put(&self, at: u64, word: u64, bytes: &[u8]) {
        let bytes = bytes.get(..bytes.len().min(BATCH)).unwrap_or_default();
        let _within = self.0.region().write_from(at, bytes);
        self.set(word + 4, u32::try_from(bytes.len()).unwrap_or(0));
    }

    pub(super) fn stage(&self) -> Stage {
        match self.get(STAGE) {
            0 => Stage::Loading,
            1 => Stage::Ready,
            _ => Stage::Refused,
        }
    }

    /// DPU side: asks batch `number`; whether the other is to be woken.
    pub(super) fn ask(&self, number: u32, batch: &[u8]) -> bool {
        self.put(QUESTIONS, ASKED, batch);
        self.set(ASKED, number);
        fence();
        self.get(SLEEPS) == 1
    }

    /// Plug-in: what was asked after batch `last`; no bytes if they cannot be.
    pub(super) fn asked(&self, last: u32) -> Option<(u32, Vec<u8>)> {
        let number = self.get(ASKED);
        let is_new = number != last;
        is_new.then(|| (number, self.bytes(QUESTIONS, self.get(ASKED + 4)).unwrap_or_default()))
    }

    /// Plug-in: answers it; whether the other is to be woken.
    pub(super) fn say(&self, number: u32, batch: &[u8]) -> bool {
        self.put(ANSWERS, SAID, batch);
        self.set(SAID, number);
        fence();
        self.get(WAITS) == 1
    }

    pub(super) fn is_said(&self, number: u32) -> bool {
        self.get(SAID) == number
    }

    /// DPU side: what was said; `None` if it cannot be.
    pub(super) fn said(&self) -> Option<Vec<u8>> {
        self.bytes(ANSWERS, self.get(SAID + 4))
    }

    /// Plug-in: says that it sleeps, or not.
    pub(super) fn set_sleeps(&self, sleeps: bool) {
        self.set(SLEEPS, sleeps.into());
        fence();
    }

    /// DPU side: the same.
    pub(super) fn set_waits(&self, waits: bool) {
        self.set(WAITS, waits.into());
        fence();
    }

    /// Plug-in: it is loaded.
    pub(super) fn introduce(&self, profile: &[u8]) {
        self.put(ANSWERS, SAID, profile);
        self.set(STAGE, 1);
    }

    /// Plug-in: it cannot be.
    pub(super) fn refuse(&self, why: &str) {
        self.put(ANSWERS, SAID, why.as_bytes());
        self.set(STAGE, 2);
    }

    /// DPU side: why it was refused.
    pub(super) fn refusal(&self) -> String {
        let text = self.bytes(ANSWERS, self.get(SAID + 4).min(1024)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.chars().filter(|char| !char.is_control()).collect()
    }

    /// DPU side: what it says of itself; `None` if that makes no sense.
    pub(super) fn profile(&self) -> Option<Profile> {
        parse_profile(&self.said()?)
    }
}

/// Longest name of a plug-in.
const NAME_MAX: usize = 64;

/// ```text
/// u32 1 told of writes + 2 of reads | frames of messages, of answers, 7 u32 each | name
/// ```
pub(super) fn put_profile(tells: u32, frames: [&CFrames; 2], name: &[u8]) -> Vec<u8> {
    let words = frames.into_iter().flat_map(CFrames::words);
    let mut bytes: Vec<u8> =
        std::iter::once(tells).chain(words).flat_map(u32::to_le_bytes).collect();
    bytes.extend_from_slice(name.get(..name.len().min(NAME_MAX)).unwrap_or_default());
    bytes
}

fn parse_profile(bytes: &[u8]) -> Option<Profile> {
    let (words, name) = bytes.split_at_checked(4 * (1 + 2 * CFrames::WORDS))?;
    let mut words = words.chunks_exact(4).filter_map(|word| word.try_into().ok());
    let mut next = || words.next().map_or(0, u32::from_le_bytes);
    let tells = next();
    let mut frames = || CFrames::of(std::array::from_fn(|_| next())).frames();
    let (messages, answers) = (frames()?, frames()?);
    let name = String::from_utf8_lossy(name.get(..name.len().min(NAME_MAX))?);
    let name = name.chars().filter(|char| !char.is_control()).collect();
    let (caches, invalidates) = (tells & 1 != 0, tells & 2 != 0);
    Some(Profile { name, messages, answers, caches, invalidates })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_one_side_puts_the_other_finds() {
        let here = Area::create().unwrap();
        let there = Area::open(here.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((here.stage(), there.asked(0)), (Stage::Loading, None));
        let frames = CFrames { kind: 1, bytes: 16, ..CFrames::default() };
        there.introduce(&put_profile(3, [&frames, &frames], b"records\n"));
        let profile = here.profile().unwrap();
        assert_eq!((here.stage(), profile.name.as_str()), (Stage::Ready, "records"));
        assert!(profile.caches && profile.invalidates);
        there.set_sleeps(true);
        assert!(here.ask(1, b"a batch"));
        assert_eq!(there.asked(0), Some((1, b"a batch".to_vec())));
        assert!(!there.say(1, b"said") && here.is_said(1));
        assert_eq!(here.said(), Some(b"said".to_vec()));
        // A length that cannot be.
        here.set(SAID + 4, u32::MAX);
        here.set(ASKED + 4, u32::MAX);
        assert_eq!((here.said(), there.asked(0)), (None, Some((1, Vec::new()))));
        there.refuse("it is\x1b[31m wrong");
        assert_eq!((here.stage(), here.refusal().as_str()), (Stage::Refused, "it is[31m wrong"));
    }

    proptest! {
        #[test]
        fn no_profile_breaks_it(bytes: Vec<u8>) {
            if let Some(profile) = parse_profile(&bytes) {
                prop_assert!(profile.name.len() <= 3 * NAME_MAX);
            }
        }
    }
}
