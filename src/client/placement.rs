//! Which server has a key: rendezvous hashing over the servers' store UUIDs.

use sha2::{Digest, Sha256};

/// Places keys on servers. Every client that knows the same set of stores places a key alike,
/// whatever the order of the set: docs/PROTOCOL.md fixes the function.
///
/// Each server has a score for a key, and the highest has it. Adding a server changes no score, so
/// only the keys that it wins move, about one in as many as there are servers then, and all of them
/// to it; a server that leaves gives its keys to the others evenly.
#[derive(Debug, Clone)]
pub struct Placement {
    seeds: Vec<u64>,
}

impl Placement {
    /// Placement over stores, by their UUIDs. There is at least one, and no two are equal.
    pub fn new(stores: &[[u8; 16]]) -> Self {
        let seed = |uuid: &[u8; 16]| first_word(&Sha256::digest(uuid));
        Self { seeds: stores.iter().map(seed).collect() }
    }

    /// The place in the list of stores of the one that has the key of this digest (24 bytes: the
    /// first ones of the SHA-256 of the key).
    pub fn owner(&self, digest: &[u8; 24]) -> usize {
        let key = first_word(digest);
        let score = |seed: u64| mix(key ^ seed);
        let best = (0..self.seeds.len()).max_by_key(|n| (score(self.seeds[*n]), self.seeds[*n]));
        best.expect("there is at least one store")
    }
}

fn first_word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every bit of the input changes about
/// half of the output's. A digest's bits are even already; what is mixed here is the server's part.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn digest(key: u64) -> [u8; 24] {
        Sha256::digest(key.to_le_bytes())[..24].try_into().unwrap()
    }

    const KEYS: u64 = 4000;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_new_server_takes_its_share_and_no_other_key_moves(
            mut stores in proptest::collection::hash_set(any::<[u8; 16]>(), 2..9)
                .prop_map(|set| set.into_iter().collect::<Vec<_>>()),
        ) {
            let new = stores.pop().unwrap();
            let before = Placement::new(&stores);
            stores.push(new);
            let after = Placement::new(&stores);
            let last = stores.len() - 1;
            let mut moved = 0;
            for key in 0..KEYS {
                let (old, new) = (before.owner(&digest(key)), after.owner(&digest(key)));
                if old != new {
                    prop_assert_eq!(new, last, "a key moved between old servers");
                    moved += 1;
                }
            }
            // Binomial: KEYS trials of chance 1/n; six standard deviations.
            let share = 1.0 / stores.len() as f64;
            let mean = KEYS as f64 * share;
            let off = 6.0 * (mean * (1.0 - share)).sqrt();
            prop_assert!((f64::from(moved) - mean).abs() < off, "{} of {} moved", moved, mean);
        }

        #[test]
        fn the_order_of_the_servers_does_not_matter(
            stores in proptest::collection::hash_set(any::<[u8; 16]>(), 1..9)
                .prop_map(|set| set.into_iter().collect::<Vec<_>>()),
            key in any::<u64>(),
        ) {
            let mut turned = stores.clone();
            turned.reverse();
            let here = stores[Placement::new(&stores).owner(&digest(key))];
            prop_assert_eq!(here, turned[Placement::new(&turned).owner(&digest(key))]);
        }
    }

    /// Clients of other versions must find what this one has placed.
    #[test]
    fn the_function_is_fixed() {
        let stores: Vec<[u8; 16]> = (0..4u8).map(|n| [n; 16]).collect();
        let placement = Placement::new(&stores);
        let owners: Vec<usize> = (0..16).map(|key| placement.owner(&digest(key))).collect();
        assert_eq!(owners, [1, 3, 0, 2, 0, 2, 2, 1, 1, 2, 1, 1, 1, 2, 1, 3]);
    }
}
