//! The memory a thread of the DPU side and a plug-in's process share: its layout, and the words by
//! which each says what it has done.
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

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outboard_link::Region;
use outboard_link::region::fence;

/// Bytes of a batch either way: a write of the largest size fits.
pub const BATCH: usize = 1 << 20;
const BATCH64: u64 = BATCH as u64;

const STAGE: u64 = 0;
const ASKED: u64 = 0x40;
const SAID: u64 = 0x80;
const SLEEPS: u64 = 0xC0;
const WAITS: u64 = 0x100;
const QUESTIONS: u64 = 0x1000;
const ANSWERS: u64 = QUESTIONS + BATCH64;

/// How far a plug-in's process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is being loaded.
    Loading,
    /// It can be asked.
    Ready,
    /// It cannot be used.
    Refused,
}

/// The area. Either side may find anything there: every length is held against [`BATCH`].
pub struct PluginArea(Arc<Region>);

impl PluginArea {
    /// Bytes of one.
    pub const LEN: u64 = ANSWERS + BATCH64;

    /// Over memory of at least [`PluginArea::LEN`] bytes.
    #[must_use]
    pub fn new(memory: Arc<Region>) -> PluginArea {
        PluginArea(memory)
    }

    fn get(&self, at: u64) -> u32 {
        // Every place is within.
        self.0.load_u32(at, Ordering::Acquire).unwrap_or(0)
    }

    fn set(&self, at: u64, value: u32) {
        let _within = self.0.store_u32(at, value, Ordering::Release);
    }

    fn bytes(&self, at: u64, len: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len).ok().filter(|len| *len <= BATCH)?];
        self.0.read_into(at, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Writes bytes and their length behind the number of `word`.
    fn put(&self, at: u64, word: u64, bytes: &[u8]) {
        let bytes = bytes.get(..bytes.len().min(BATCH)).unwrap_or_default();
        let _within = self.0.write_from(at, bytes);
        self.set(word + 4, u32::try_from(bytes.len()).unwrap_or(0));
    }

    /// DPU side: how far the plug-in has come.
    #[must_use]
    pub fn stage(&self) -> Stage {
        match self.get(STAGE) {
            0 => Stage::Loading,
            1 => Stage::Ready,
            _ => Stage::Refused,
        }
    }

    /// DPU side: asks batch `number`; whether the other is to be woken.
    #[must_use]
    pub fn ask(&self, number: u32, batch: &[u8]) -> bool {
        self.put(QUESTIONS, ASKED, batch);
        self.set(ASKED, number);
        fence();
        self.get(SLEEPS) == 1
    }

    /// Plug-in: what was asked after batch `last`; no bytes if they cannot be.
    #[must_use]
    pub fn asked(&self, last: u32) -> Option<(u32, Vec<u8>)> {
        let number = self.get(ASKED);
        let is_new = number != last;
        is_new.then(|| (number, self.bytes(QUESTIONS, self.get(ASKED + 4)).unwrap_or_default()))
    }

    /// Plug-in: answers it; whether the other is to be woken.
    #[must_use]
    pub fn say(&self, number: u32, batch: &[u8]) -> bool {
        self.put(ANSWERS, SAID, batch);
        self.set(SAID, number);
        fence();
        self.get(WAITS) == 1
    }

    /// DPU side: whether batch `number` is answered.
    #[must_use]
    pub fn is_said(&self, number: u32) -> bool {
        self.get(SAID) == number
    }

    /// DPU side: what was said; `None` if it cannot be.
    #[must_use]
    pub fn said(&self) -> Option<Vec<u8>> {
        self.bytes(ANSWERS, self.get(SAID + 4))
    }

    /// Plug-in: says that it sleeps, or not.
    pub fn set_sleeps(&self, sleeps: bool) {
        self.set(SLEEPS, sleeps.into());
        fence();
    }

    /// DPU side: the same.
    pub fn set_waits(&self, waits: bool) {
        self.set(WAITS, waits.into());
        fence();
    }

    /// Plug-in: it is loaded.
    pub fn introduce(&self, profile: &[u8]) {
        self.put(ANSWERS, SAID, profile);
        self.set(STAGE, 1);
    }

    /// Plug-in: it cannot be.
    pub fn refuse(&self, why: &str) {
        self.put(ANSWERS, SAID, why.as_bytes());
        self.set(STAGE, 2);
    }

    /// DPU side: why it was refused.
    #[must_use]
    pub fn refusal(&self) -> String {
        let text = self.bytes(ANSWERS, self.get(SAID + 4).min(1024)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.chars().filter(|char| !char.is_control()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_puts_the_other_finds() {
        let memory = Region::anonymous(PluginArea::LEN);
        let (here, there) = (PluginArea::new(Arc::clone(&memory)), PluginArea::new(memory));
        assert_eq!((here.stage(), there.asked(0)), (Stage::Loading, None));
        there.introduce(b"a profile");
        assert_eq!((here.stage(), here.said()), (Stage::Ready, Some(b"a profile".to_vec())));
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
}
