//! A plug-in's area ([`PluginArea`]) in memory that two processes share, and what a plug-in says of
//! itself there.

use std::io;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use outboard_dds::dpu::offload::plugin::area::PluginArea;
use outboard_os::shm::{NotShareable, Shared};

use super::Profile;
use super::sys::abi::CFrames;

/// The area, with the descriptor it is handed over by.
pub(super) struct SharedArea {
    memory: Shared,
    area: PluginArea,
}

impl Deref for SharedArea {
    type Target = PluginArea;

    fn deref(&self) -> &PluginArea {
        &self.area
    }
}

impl SharedArea {
    pub(super) fn create() -> io::Result<SharedArea> {
        Ok(SharedArea::over(Shared::create("outboard-plugin", PluginArea::LEN)?))
    }

    pub(super) fn open(fd: OwnedFd) -> Result<SharedArea, NotShareable> {
        Ok(SharedArea::over(Shared::open(fd, PluginArea::LEN)?))
    }

    fn over(memory: Shared) -> SharedArea {
        let area = PluginArea::new(Arc::clone(memory.region()));
        SharedArea { memory, area }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
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
    use outboard_dds::dpu::offload::plugin::area::Stage;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_profile_that_one_process_puts_the_other_finds() {
        let here = SharedArea::create().unwrap();
        let there = SharedArea::open(here.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((here.stage(), there.asked(0)), (Stage::Loading, None));
        let frames = CFrames { kind: 1, bytes: 16, ..CFrames::default() };
        there.introduce(&put_profile(3, [&frames, &frames], b"records\n"));
        let profile = here.profile().unwrap();
        assert_eq!((here.stage(), profile.name.as_str()), (Stage::Ready, "records"));
        assert!(profile.caches && profile.invalidates);
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
