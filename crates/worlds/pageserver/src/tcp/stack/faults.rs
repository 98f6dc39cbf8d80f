//! A device that loses, doubles and swaps frames of another, as a network does on a bad day.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_base::Rng;
use outboard_dds::dpu::director::packet::finish_checksum;

use super::device::{Device, HEADER, unfinished};

/// How often, of a thousand frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// Lost.
    pub lost: u64,
    /// Sent twice.
    pub doubled: u64,
    /// Overtaken by the next.
    pub swapped: u64,
    /// A bit of them is another.
    pub damaged: u64,
}

struct State {
    rng: Rng,
    /// Overtaken, waits for the next frame out.
    held: Option<Vec<u8>>,
    /// Came already.
    pending: VecDeque<Vec<u8>>,
}

/// A device, and what goes wrong with it.
pub struct Faulty {
    inner: Arc<dyn Device>,
    rates: Rates,
    state: Mutex<State>,
}

enum Fate {
    Passes,
    Lost,
    Doubled,
    Swapped,
    Damaged,
}

impl Faulty {
    /// The same seed decides alike.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>, rates: Rates, seed: u64) -> Faulty {
        let state = State { rng: Rng::new(seed), held: None, pending: VecDeque::new() };
        Faulty { inner, rates, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn fate(&mut self, rates: &Rates) -> Fate {
        let mut dice = self.rng.below(1000);
        for (rate, fate) in [
            (rates.lost, Fate::Lost),
            (rates.doubled, Fate::Doubled),
            (rates.swapped, Fate::Swapped),
            (rates.damaged, Fate::Damaged),
        ] {
            if dice < rate {
                return fate;
            }
            dice -= rate;
        }
        Fate::Passes
    }

    /// Another bit behind the headers of link and network, as on a wire: where the checksum was
    /// finished, and who receives has to look at it.
    fn damage(&mut self, frame: &mut [u8]) {
        const BEHIND: usize = HEADER + 34;
        let checksum = unfinished(frame);
        let Some((header, bytes)) = frame.split_at_mut_checked(HEADER) else { return };
        if let Some((start, offset)) = checksum {
            // One that lies elsewhere stays wrong, as it shall be.
            let _finished = finish_checksum(bytes, start, offset);
        }
        header.fill(0);
        if let Some(rest) = frame.get_mut(BEHIND..).filter(|rest| !rest.is_empty()) {
            let at = usize::try_from(self.rng.below(rest.len() as u64)).unwrap_or(0);
            if let Some(byte) = rest.get_mut(at) {
                *byte ^= 1 << self.rng.below(8);
            }
        }
    }
}

impl Device for Faulty {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        let mut state = self.state();
        loop {
            if let Some(frame) = state.pending.pop_front() {
                if let Some(place) = buf.get_mut(..frame.len()) {
                    place.copy_from_slice(&frame);
                }
                return Ok(Some(frame.len()));
            }
            let Some(len) = self.inner.receive(buf)? else { return Ok(None) };
            let frame = buf.get_mut(..len).unwrap_or_default();
            match state.fate(&self.rates) {
                Fate::Passes => return Ok(Some(len)),
                Fate::Lost => {}
                Fate::Doubled => {
                    state.pending.push_back(frame.to_vec());
                    return Ok(Some(len));
                }
                Fate::Swapped => {
                    let overtaken = frame.to_vec();
                    let next = self.inner.receive(buf)?;
                    state.pending.push_back(overtaken);
                    if next.is_some() {
                        return Ok(next);
                    }
                }
                Fate::Damaged => {
                    state.damage(frame);
                    return Ok(Some(len));
                }
            }
        }
    }

    fn send(&self, frame: &[u8]) -> bool {
        let mut state = self.state();
        let fate = state.fate(&self.rates);
        let held = state.held.take();
        let sent = match fate {
            Fate::Passes => self.inner.send(frame),
            Fate::Lost => true,
            Fate::Doubled => self.inner.send(frame) && self.inner.send(frame),
            Fate::Swapped => {
                state.held = Some(frame.to_vec());
                true
            }
            Fate::Damaged => {
                let mut frame = frame.to_vec();
                state.damage(&mut frame);
                self.inner.send(&frame)
            }
        };
        held.is_none_or(|held| self.inner.send(&held)) && sent
    }

    fn tend(&self) -> Option<Duration> {
        self.inner.tend()
    }
}
