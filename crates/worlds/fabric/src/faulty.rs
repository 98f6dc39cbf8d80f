//! A network that loses, doubles and delays datagrams, by a seed: for tests.
//!
//! `OUTBOARD_FAULTS=loss=2,double=1,delay=5:3,seed=7` loses 2 of 100 datagrams that are sent, sends
//! 1 twice, and holds 5 back for up to 3 ms, so that others pass them.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::Duration;

use outboard_base::{Rng, Time};

/// The variable that asks for them.
pub const VARIABLE: &str = "OUTBOARD_FAULTS";
/// Datagrams held back at a time; more are lost.
const HELD_MAX: usize = 4096;

/// What goes wrong, of a hundred datagrams each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Lost.
    pub loss: u8,
    /// Sent twice.
    pub double: u8,
    /// Held back, and for how long at most.
    pub delay: (u8, Duration),
    /// Which of them.
    pub seed: u64,
}

impl Settings {
    /// Reads `loss=2,double=1,delay=5:3,seed=7`; all may be left out.
    ///
    /// # Errors
    /// What is not understood, in words.
    pub fn parse(text: &str) -> Result<Settings, String> {
        let mut settings = Settings::default();
        let percent = |text: &str| text.parse::<u8>().ok().filter(|percent| *percent <= 100);
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let known = match name {
                "loss" => percent(value).map(|loss| settings.loss = loss),
                "double" => percent(value).map(|double| settings.double = double),
                "delay" => value.split_once(':').and_then(|(share, millis)| {
                    let millis = millis.parse().ok().filter(|millis| *millis <= 10_000)?;
                    settings.delay = (percent(share)?, Duration::from_millis(millis));
                    Some(())
                }),
                "seed" => value.parse().ok().map(|seed| settings.seed = seed),
                _ => None,
            };
            known.ok_or_else(|| {
                format!(
                    "{VARIABLE}: {word} is not understood; see loss=2,double=1,delay=5:3,seed=7"
                )
            })?;
        }
        Ok(settings)
    }

    /// As the environment asks; `None` if it does not.
    ///
    /// # Errors
    /// As [`Settings::parse`].
    pub fn of_environment() -> Result<Option<Settings>, String> {
        match std::env::var(VARIABLE) {
            Ok(text) => Settings::parse(&text).map(Some),
            Err(_) => Ok(None),
        }
    }
}

/// A network that is as its settings say.
pub struct Faulty {
    settings: Settings,
    rng: Rng,
    held: BTreeMap<(Time, u64), (SocketAddrV4, Vec<u8>)>,
    count: u64,
}

impl Faulty {
    /// The same for every process of the same `name` and seed.
    #[must_use]
    pub fn new(settings: Settings, name: &str) -> Faulty {
        let name = name.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(257) + u64::from(byte));
        let rng = Rng::new(settings.seed ^ name);
        Faulty { settings, rng, held: BTreeMap::new(), count: 0 }
    }

    /// Sends, or does not.
    pub fn send(
        &mut self,
        now: Time,
        to: SocketAddrV4,
        datagram: &[u8],
        mut go: impl FnMut(SocketAddrV4, &[u8]),
    ) {
        let Settings { loss, double, delay: (delay, most), .. } = self.settings;
        if self.rng.chance(loss.into(), 100) {
            return;
        }
        let copies = if self.rng.chance(double.into(), 100) { 2 } else { 1 };
        for _ in 0..copies {
            if self.rng.chance(delay.into(), 100) {
                let longest = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
                let until = now.after(Duration::from_nanos(self.rng.below(longest)));
                self.count += 1;
                if self.held.len() < HELD_MAX {
                    self.held.insert((until, self.count), (to, datagram.to_vec()));
                }
            } else {
                go(to, datagram);
            }
        }
    }

    /// Sends what was held back long enough.
    pub fn release(&mut self, now: Time, mut go: impl FnMut(SocketAddrV4, &[u8])) {
        while let Some(first) = self.held.first_entry().filter(|first| first.key().0 <= now) {
            let (to, datagram) = first.remove();
            go(to, &datagram);
        }
    }

    /// When the next is to be released.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.held.first_key_value().map(|((until, _), _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to() -> SocketAddrV4 {
        SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 1)
    }

    #[test]
    fn settings_are_read() {
        let read = Settings::parse("loss=2,double=1,delay=5:3,seed=7").unwrap();
        let delay = (5, Duration::from_millis(3));
        assert_eq!(read, Settings { loss: 2, double: 1, delay, seed: 7 });
        assert_eq!(Settings::parse("").unwrap(), Settings::default());
        for wrong in ["loss", "loss=101", "delay=3", "delay=3:x", "dup=1", "seed=-1"] {
            let message = Settings::parse(wrong).unwrap_err();
            assert!(message.contains(wrong), "{message}");
        }
    }

    /// Of ten thousand about as many are lost, doubled and held back as was asked for; nothing is
    /// released before its time, and at the end nothing is held.
    #[test]
    fn as_much_goes_wrong_as_was_asked_for() {
        let settings = Settings::parse("loss=10,double=20,delay=30:5,seed=3").unwrap();
        let sent = |seed| {
            let mut faulty = Faulty::new(Settings { seed, ..settings }, "node.1");
            let (mut at_once, mut later) = (Vec::new(), 0);
            for number in 0..10_000u32 {
                let bytes = number.to_le_bytes();
                faulty.send(Time(0), to(), &bytes, |_, got| at_once.push(got.to_vec()));
            }
            while let Some(deadline) = faulty.deadline() {
                assert!(deadline < Time(5_000_000));
                faulty.release(Time(deadline.0 - 1), |_, _| panic!("too early"));
                faulty.release(deadline, |_, _| later += 1);
            }
            (at_once, later)
        };
        let (at_once, later) = sent(3);
        let all = at_once.len() + later;
        assert!((10_500..11_100).contains(&all), "{all}");
        assert!((2_900..3_600).contains(&later), "{later}");
        assert_eq!(sent(3), (at_once.clone(), later), "the same seed");
        assert_ne!(sent(4).0, at_once, "another seed");
    }
}
