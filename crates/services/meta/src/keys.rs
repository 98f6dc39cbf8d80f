//! Keys that capabilities are signed with: which is used now, and which nodes must know.
//!
//! Time is cut into slots of a key's life; a slot's key is made of the cluster's and the slot's
//! number, so that a server that starts anew signs with what nodes know already. Nodes are told the
//! keys of the slot before, of this and of the next, again and again. A key signs once a round of
//! telling has ended in which every node that can be reached took it; until then the one before it
//! does. It counts at nodes until two slots and the life of a capability after its own have begun.
//!
//! Whoever manages the cluster may have the keys *rotated*: those of every slot are others from
//! then on, and the ones before count for the life of a capability, so that what was granted is not
//! cut short.

use std::time::Duration;

use outboard_base::Errno;
use outboard_codec::mac;
use outboard_wire::shared::Capability;
use outboard_wire::shared::call::Key;

/// What a key is made for.
const CONTEXT: &str = "outboard capability";

/// The keys.
#[derive(Debug)]
pub(crate) struct Keys {
    cluster: [u8; 32],
    /// Milliseconds of a slot.
    life: u64,
    /// Milliseconds for which a capability counts.
    capability: u64,
    /// How often they were rotated, and when last: milliseconds of Unix time.
    rotated: (u64, u64),
    /// The last slot whose key nodes have.
    told: Option<u64>,
    /// The slot whose key signs.
    signs: Option<u64>,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX >> 8).max(1)
}

impl Keys {
    pub(crate) fn new(cluster: [u8; 32], life: Duration, capability: Duration) -> Keys {
        let (life, capability) = (millis(life), millis(capability));
        Keys { cluster, life, capability, rotated: (0, 0), told: None, signs: None }
    }

    /// They were rotated so often, last at this time. Nothing is signed before nodes were told.
    pub(crate) fn rotate(&mut self, count: u64, wall_ms: u64) {
        self.rotated = (count, wall_ms);
        self.told = None;
    }

    /// How often they were rotated.
    pub(crate) fn rotation(&self) -> u64 {
        self.rotated.0
    }

    /// The number by which capabilities name a slot's key. A rotation is far from the one before,
    /// whose keys count beside it.
    fn id(slot: u64, rotation: u64) -> u8 {
        u8::try_from(slot.wrapping_add(rotation.wrapping_mul(16)) % 256).unwrap_or(0)
    }

    fn key(&self, slot: u64, rotation: u64) -> [u8; 32] {
        let name = [slot, rotation].map(u64::to_le_bytes).concat();
        mac::derive(&self.cluster, CONTEXT, &name)
    }

    /// The keys before the last rotation that may be in use; they count a little longer.
    fn rotated_out(&self, wall_ms: u64) -> Vec<Key> {
        let (count, at) = self.rotated;
        let until = at.saturating_add(self.capability);
        let Some(before) = count.checked_sub(1).filter(|_| wall_ms < until) else {
            return Vec::new();
        };
        let slot = at / self.life;
        let slots = slot.saturating_sub(2)..=slot.saturating_add(1);
        let key = |slot| Key { id: Keys::id(slot, before), until, key: self.key(slot, before) };
        slots.map(key).collect()
    }

    /// What nodes must be told now, and what [`Keys::told`] is to be told once they know it.
    pub(crate) fn to_tell(&self, wall_ms: u64) -> (Vec<Key>, u64) {
        let now = wall_ms / self.life;
        let last = now.max(self.signs.unwrap_or(0)).saturating_add(1);
        let keys = now.saturating_sub(1)..=last;
        let rotation = self.rotated.0;
        let before = self.rotated_out(wall_ms);
        let room = outboard_wire::shared::call::KEYS_MAX.saturating_sub(before.len());
        let keys = keys.take(room).map(|slot| {
            let until = slot.saturating_add(2).saturating_mul(self.life);
            let until = until.saturating_add(self.capability);
            Key { id: Keys::id(slot, rotation), until, key: self.key(slot, rotation) }
        });
        (before.into_iter().chain(keys).collect(), last)
    }

    /// Every node that can be reached has the keys of this rotation up to this slot's.
    pub(crate) fn told(&mut self, last: u64, rotation: u64) {
        if rotation == self.rotated.0 {
            self.told = self.told.max(Some(last));
        }
    }

    /// Whether a round of telling must come before anything can be signed.
    pub(crate) fn is_untold(&self) -> bool {
        self.told.is_none()
    }

    /// Signs a capability, which counts from now on for its time.
    ///
    /// # Errors
    /// `EAGAIN` while no key was told.
    pub(crate) fn sign(
        &mut self,
        mut capability: Capability,
        wall_ms: u64,
    ) -> Result<Capability, Errno> {
        let told = self.told.ok_or(Errno::EAGAIN)?;
        let slot = (wall_ms / self.life).min(told).max(self.signs.unwrap_or(0));
        self.signs = Some(slot);
        capability.key = Keys::id(slot, self.rotated.0);
        capability.expires = wall_ms.saturating_add(self.capability);
        capability.mac = mac::tag(&self.key(slot, self.rotated.0), &[&capability.signed()]);
        Ok(capability)
    }

    /// The number of the key that signs.
    pub(crate) fn signing(&self) -> Option<u8> {
        self.signs.map(|slot| Keys::id(slot, self.rotated.0))
    }
}

#[cfg(test)]
mod tests {
    use outboard_wire::shared::{Rights, Strategy};

    use super::*;

    const LIFE: u64 = 3_600_000;

    fn keys() -> Keys {
        Keys::new([7; 32], Duration::from_millis(LIFE), Duration::from_secs(300))
    }

    fn blank() -> Capability {
        Capability {
            key: 0,
            rights: Rights::READ,
            volume: 1,
            object: 2,
            first: 0,
            end: u64::MAX,
            client: 3,
            fence: 4,
            group: 5,
            strategy: Strategy::Single,
            k: 1,
            m: 0,
            expires: 0,
            mac: [0; 16],
        }
    }

    /// A node that was told at `told` takes a capability at `at`, by the key of its number.
    fn takes(told: &[Key], capability: &Capability, at: u64) -> bool {
        told.iter().any(|key| {
            key.id == capability.key
                && key.until > at
                && mac::is_tag(&key.key, &[&capability.signed()], &capability.mac)
        })
    }

    #[test]
    fn nothing_is_signed_before_nodes_were_told() {
        assert_eq!(keys().sign(blank(), 5).unwrap_err(), Errno::EAGAIN);
    }

    #[test]
    fn what_is_signed_counts_at_a_node_told_last_until_it_expires() {
        let mut keys = keys();
        let start = 1_700_000_000_000_u64;
        let mut slots = std::collections::BTreeSet::new();
        for step in 0..200 {
            let at = start + step * LIFE / 7;
            let (told, last) = keys.to_tell(at);
            keys.told(last, 0);
            // Told at the latest half a slot ago.
            for late in [0, LIFE / 2] {
                let signed = keys.sign(blank(), at + late).unwrap();
                slots.insert(signed.key);
                assert_eq!(signed.expires, at + late + 300_000);
                assert!(takes(&told, &signed, at + late), "{step}");
                assert!(takes(&told, &signed, signed.expires), "{step}");
                let forged = Capability { fence: signed.fence + 1, ..signed };
                assert!(!takes(&told, &forged, at), "{step}");
            }
        }
        assert!(slots.len() > 20, "keys change: {slots:?}");
    }

    #[test]
    fn a_key_that_was_not_told_does_not_sign() {
        let mut keys = keys();
        let (told, last) = keys.to_tell(10 * LIFE);
        keys.told(last, 0);
        // Nobody was told since.
        let signed = keys.sign(blank(), 12 * LIFE + 5).unwrap();
        assert!(takes(&told, &signed, 12 * LIFE + 5), "the last one told signs on");
    }

    #[test]
    fn a_server_that_starts_anew_signs_with_what_nodes_know() {
        let (mut before, mut after) = (keys(), keys());
        let (told, last) = before.to_tell(100 * LIFE + 3);
        before.told(last, 0);
        let (_, last) = after.to_tell(100 * LIFE + 9);
        after.told(last, 0);
        assert!(takes(&told, &after.sign(blank(), 100 * LIFE + 9).unwrap(), 100 * LIFE + 9));
    }

    #[test]
    fn a_clock_that_goes_back_brings_no_key_back() {
        let mut keys = keys();
        let (_, last) = keys.to_tell(50 * LIFE);
        keys.told(last, 0);
        let newest = keys.sign(blank(), 50 * LIFE).unwrap().key;
        assert_eq!(keys.sign(blank(), 48 * LIFE).unwrap().key, newest);
        let (told, _) = keys.to_tell(48 * LIFE);
        assert!(told.iter().any(|key| key.id == newest), "nodes are told it all the same");
    }

    /// After a rotation nothing is signed before nodes were told; what was signed before counts for
    /// its own time, and no longer, though its slot would go on for hours.
    #[test]
    fn rotated_keys_cut_nothing_short_and_are_soon_of_no_use() {
        let mut keys = keys();
        let start = 100 * LIFE + 5;
        let (before, last) = keys.to_tell(start);
        keys.told(last, 0);
        let old = keys.sign(blank(), start).unwrap();
        keys.rotate(1, start + 10);
        assert_eq!(keys.sign(blank(), start + 10).unwrap_err(), Errno::EAGAIN);
        let (told, last) = keys.to_tell(start + 10);
        keys.told(last, 0);
        assert!(keys.is_untold(), "a round that began before told nothing of it");
        keys.told(last, 1);
        let new = keys.sign(blank(), start + 10).unwrap();
        assert!(takes(&told, &old, start + 299_000) && takes(&told, &new, start + 299_000));
        // A node keeps what it was told before, under numbers that were not told again.
        let mut node: Vec<Key> = told.clone();
        node.extend(before.iter().filter(|key| told.iter().all(|one| one.id != key.id)).cloned());
        assert!(!takes(&node, &old, start + 300_011), "whoever has an old key makes nothing of it");
        assert!(takes(&node, &new, start + 300_009));
        let mut again = Keys::new([7; 32], Duration::from_millis(LIFE), Duration::from_secs(300));
        again.rotate(1, start + 10);
        assert_eq!(again.to_tell(start + 10).0, told, "a server that starts anew knows them");
    }
}
