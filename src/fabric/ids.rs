//! A table of request ids in flight, sized once.

use crate::wire::Reason;

/// Open addressing with linear probing; deletion closes the gap, so there are no tombstones.
///
/// A peer chooses the ids, so it could make all of them collide. Then a look-up costs as many
/// steps as there are ids, which the credits bound.
#[derive(Debug)]
pub(in crate::fabric) struct IdTable<V> {
    places: Box<[Option<(u64, V)>]>,
    /// Places in use: a power of two, and the shift that maps a hash to one of them.
    size: usize,
    shift: u32,
    len: usize,
}

impl<V> IdTable<V> {
    /// Room for `capacity` ids, at most half full so that probes stay short.
    pub(in crate::fabric) fn new(capacity: usize) -> Self {
        let size = size_for(capacity);
        let places = std::iter::repeat_with(|| None).take(size).collect();
        Self { places, size, shift: 64 - size.trailing_zeros(), len: 0 }
    }

    /// Empties the table and uses no more of it than `capacity` ids need, so that a connection of
    /// few credits touches few cache lines.
    pub(in crate::fabric) fn reset(&mut self, capacity: usize) {
        self.drain().for_each(drop);
        self.size = size_for(capacity).min(self.places.len());
        self.shift = 64 - self.size.trailing_zeros();
    }

    /// Ids in the table.
    pub(in crate::fabric) fn len(&self) -> usize {
        self.len
    }

    /// Fibonacci hashing: ids counted up by a client spread evenly.
    fn home(&self, id: u64) -> usize {
        (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.size - 1)
    }

    /// The place of `id`, or the empty one where it would go.
    fn find(&self, id: u64) -> usize {
        let mut at = self.home(id);
        while self.places[at].as_ref().is_some_and(|(other, _)| *other != id) {
            at = self.next(at);
        }
        at
    }

    /// What was noted for `id`, if it is in the table.
    pub(in crate::fabric) fn get(&self, id: u64) -> Option<&V> {
        self.places[self.find(id)].as_ref().map(|(_, value)| value)
    }

    /// As [`IdTable::get`], to be changed.
    pub(in crate::fabric) fn get_mut(&mut self, id: u64) -> Option<&mut V> {
        let at = self.find(id);
        self.places[at].as_mut().map(|(_, value)| value)
    }

    /// True if `id` is in the table.
    pub(in crate::fabric) fn contains(&self, id: u64) -> bool {
        self.get(id).is_some()
    }

    /// Adds `id`; false if it is there already.
    ///
    /// # Panics
    ///
    /// If the table would be more than half full: the caller counts its credits.
    pub(in crate::fabric) fn insert(&mut self, id: u64, value: V) -> bool {
        let at = self.find(id);
        if self.places[at].is_some() {
            return false;
        }
        assert!(self.len < self.size / 2, "more ids than credits");
        self.places[at] = Some((id, value));
        self.len += 1;
        true
    }

    /// Takes `id` out.
    pub(in crate::fabric) fn remove(&mut self, id: u64) -> Option<V> {
        let mut hole = self.find(id);
        let (_, value) = self.places[hole].take()?;
        self.len -= 1;
        let mask = self.size - 1;
        let mut at = self.next(hole);
        while let Some((other, _)) = &self.places[at] {
            // It may move into the hole if the hole is not before its home.
            let from_home = at.wrapping_sub(self.home(*other)) & mask;
            if from_home >= at.wrapping_sub(hole) & mask {
                self.places[hole] = self.places[at].take();
                hole = at;
            }
            at = self.next(at);
        }
        Some(value)
    }

    /// Empties the table.
    pub(in crate::fabric) fn drain(&mut self) -> impl Iterator<Item = (u64, V)> + '_ {
        self.len = 0;
        self.places.iter_mut().filter_map(Option::take)
    }
}

impl IdTable<()> {
    /// Notes a request's id in the server's table, judging it by the protocol's two rules: no id
    /// twice, and no more of them than `credits`.
    pub(in crate::fabric) fn admit(&mut self, id: u64, credits: usize) -> Result<(), Reason> {
        if self.contains(id) {
            Err(Reason::Replay)
        } else if self.len >= credits {
            Err(Reason::Credits)
        } else {
            self.insert(id, ());
            Ok(())
        }
    }
}

fn size_for(capacity: usize) -> usize {
    (capacity * 2).next_power_of_two().max(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Few distinct ids in a small table, so that chains wrap around and gaps close.
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((any::<bool>(), 0u64..24), 1..400)) {
            let (mut table, mut model) = (IdTable::new(64), HashMap::new());
            table.reset(8);
            for (n, (add, id)) in steps.into_iter().enumerate() {
                if add && (model.len() < 8 || model.contains_key(&id)) {
                    prop_assert_eq!(table.insert(id, n), !model.contains_key(&id));
                    model.entry(id).or_insert(n);
                } else {
                    prop_assert_eq!(table.remove(id), model.remove(&id));
                }
                prop_assert_eq!(table.len(), model.len());
                for id in 0..24 {
                    prop_assert_eq!(table.contains(id), model.contains_key(&id));
                }
            }
            let mut left: Vec<_> = table.drain().collect();
            let mut expected: Vec<_> = model.into_iter().collect();
            left.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(left, expected);
        }
    }
}
