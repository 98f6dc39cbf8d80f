//! What a node doubts, of objects that other nodes have copies of: all of them where power was
//! lost, and with it perhaps what it had acknowledged, and not flushed; and those of which a grain
//! was found damaged. It serves none of these until who resolved one, or all, says that what is
//! here is what all have.
//!
//! Who resolves works under the fence that it has sealed the object with, which no client has, so
//! what is asked under it is served.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Objects that are trusted one by one; then the oldest are doubted again. As many as there is room
/// for in the memory of handlers.
const TRUSTED_MAX: usize = 1 << 15;
/// Objects that are being resolved.
const SEALED_MAX: usize = 1 << 12;
/// Damaged objects at a time; the others are found again.
const DAMAGED_MAX: usize = 1 << 10;

/// What is known of objects: of so many, the last ones.
#[derive(Debug, Default)]
struct Recent<V, const MOST: usize> {
    all: BTreeMap<u64, V>,
    /// Oldest first.
    order: VecDeque<u64>,
}

impl<V, const MOST: usize> Recent<V, MOST> {
    fn put(&mut self, object: u64, value: V) {
        if self.all.insert(object, value).is_some() {
            return;
        }
        self.order.push_back(object);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }
}

/// That there is doubt, and what not of.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    /// Of all objects, but for those that are trusted since.
    of_all: bool,
    trusted: Recent<(), TRUSTED_MAX>,
    damaged: BTreeSet<u64>,
    /// Fences of seals since the process began.
    sealed: Recent<u64, SEALED_MAX>,
}

impl Doubt {
    /// Stands for all objects.
    pub(crate) const ALL: u64 = u64::MAX;

    /// Bytes of it that handlers look at.
    pub(super) const MEMORY: usize =
        (TRUSTED_MAX + DAMAGED_MAX) * size_of::<u64>() + SEALED_MAX * size_of::<(u64, u64)>();

    /// After a loss of power.
    pub(crate) fn of_all() -> Doubt {
        Doubt { of_all: true, ..Doubt::default() }
    }

    /// Whether what is here of an object counts.
    pub(crate) fn trusts(&self, object: u64) -> bool {
        let trusted = !self.of_all || self.trusted.all.contains_key(&object);
        trusted && !self.damaged.contains(&object)
    }

    /// A grain of an object was found damaged.
    pub(crate) fn damage(&mut self, object: u64) {
        if self.damaged.len() < DAMAGED_MAX {
            self.damaged.insert(object);
        }
    }

    /// Objects of which a grain was found damaged, if those are all that is doubted.
    pub(crate) fn damaged(&self) -> Option<&BTreeSet<u64>> {
        (!self.of_all).then_some(&self.damaged)
    }

    /// All that was lost with the power was found again.
    pub(crate) fn trust_all(&mut self) {
        (self.of_all, self.trusted) = (false, Recent::default());
    }

    /// Whether there is doubt of anything.
    pub(crate) fn is_any(&self) -> bool {
        self.of_all || !self.damaged.is_empty()
    }

    /// Whether what is asked of an object under a fence is served.
    pub(super) fn serves(&self, object: u64, fence: u64) -> bool {
        self.trusts(object) || self.sealed.all.get(&object) == Some(&fence)
    }

    /// An object was sealed: who did that resolves it.
    pub(crate) fn seal(&mut self, object: u64, fence: u64) {
        let known = self.sealed.all.get(&object).copied();
        self.sealed.put(object, fence.max(known.unwrap_or(0)));
    }

    /// An object is served from now on.
    pub(crate) fn trust(&mut self, object: u64) {
        self.damaged.remove(&object);
        if self.of_all {
            self.trusted.put(object, ());
        }
    }

    /// How many objects are trusted.
    pub(crate) fn trusted(&self) -> usize {
        self.trusted.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_objects_are_known_as_there_is_room_for() {
        let mut doubt = Doubt::of_all();
        let most = u64::try_from(TRUSTED_MAX).unwrap();
        // Twice is once.
        (0..most).chain(0..9).for_each(|object| doubt.trust(object));
        assert!((0..most).all(|object| doubt.trusts(object)) && !doubt.trusts(most));
        doubt.trust(most);
        assert!(!doubt.trusts(0) && (1..=most).all(|object| doubt.trusts(object)));
        doubt.trust(0);
        assert!(doubt.trusts(0) && !doubt.trusts(1) && !doubt.trusts(Doubt::ALL));
        assert_eq!((doubt.trusted(), doubt.trusted.order.len()), (TRUSTED_MAX, TRUSTED_MAX));
    }

    #[test]
    fn what_is_asked_under_the_last_seal_is_served() {
        let mut doubt = Doubt::of_all();
        doubt.seal(7, 5);
        doubt.seal(7, 9);
        doubt.seal(7, 8);
        let served: Vec<u64> = (0..20).filter(|fence| doubt.serves(7, *fence)).collect();
        assert_eq!((served, doubt.trusts(7), doubt.serves(8, 9)), (vec![9], false, false));
        doubt.trust(7);
        assert!(doubt.serves(7, 10) && doubt.serves(7, 9));
        let most = u64::try_from(SEALED_MAX).unwrap();
        (100..100 + most).for_each(|object| doubt.seal(object, 3));
        assert_eq!((doubt.sealed.all.len(), doubt.sealed.order.len()), (SEALED_MAX, SEALED_MAX));
        doubt.seal(99, 3);
        assert!(!doubt.serves(100, 3) && doubt.serves(101, 3) && doubt.serves(99, 3));
    }

    #[test]
    fn what_is_damaged_is_doubted_beside_what_else_is() {
        let mut doubt = Doubt::default();
        doubt.damage(7);
        doubt.seal(7, 9);
        let served = (doubt.serves(7, 8), doubt.serves(7, 9), doubt.serves(8, 1));
        assert_eq!((served, doubt.damaged().unwrap().len()), ((false, true, true), 1));
        doubt.trust(7);
        assert!(doubt.trusts(7) && !doubt.is_any());
        let mut doubt = Doubt::of_all();
        doubt.trust(7);
        doubt.damage(7);
        assert!(!doubt.trusts(7) && doubt.damaged().is_none() && !doubt.trusts(8));
        doubt.trust_all();
        assert!(!doubt.trusts(7) && doubt.trusts(8) && doubt.is_any());
        (0..DAMAGED_MAX as u64 + 9).for_each(|object| doubt.damage(object));
        assert_eq!(doubt.damaged().unwrap().len(), DAMAGED_MAX);
    }
}
