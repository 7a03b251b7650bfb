//! Gets of objects that `millrace store fill` has put: their keys and contents follow from a prefix
//! and a seed, so nobody has to list them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::client::{Cluster, Done, Get, Placement, Sent};
use crate::error::{Error, Kind, Result};
use crate::object::{KeyName, content};

use super::target::Op;

/// Which objects are read.
#[derive(Debug, Clone)]
pub struct ObjectLoad {
    /// What their keys begin with; ten digits follow.
    pub prefix: String,
    /// Seed of their contents.
    pub seed: u64,
}

impl ObjectLoad {
    /// Key of object `number`.
    ///
    /// # Errors
    ///
    /// `Usage` where prefix and number are too long for a key.
    pub fn key(&self, number: u64) -> Result<KeyName> {
        Ok(KeyName::new(format!("{}{number:010}", self.prefix).as_bytes())?)
    }
}

/// Which objects each of several servers has: their numbers, by server.
pub type Shares = BTreeMap<usize, Arc<[u64]>>;

impl ObjectLoad {
    /// Shares out the first `count` objects over servers by the UUIDs of their stores.
    ///
    /// # Errors
    ///
    /// As [`ObjectLoad::key`]; `Usage` where a server has none of them.
    pub fn shares(&self, count: u64, stores: &[[u8; 16]]) -> Result<Shares> {
        let placement = Placement::new(stores);
        let mut shares: Vec<Vec<u64>> = vec![Vec::new(); stores.len()];
        for number in 0..count {
            shares[placement.owner(&self.key(number)?.digest().0)].push(number);
        }
        if let Some(none) = shares.iter().position(Vec::is_empty) {
            let what = format!("none of {count} objects is placed on server number {none}");
            return Err(Error::usage(what).remedy("ask for more --objects, or for fewer servers"));
        }
        Ok(shares.into_iter().map(Arc::from).enumerate().collect())
    }
}

/// The gets of one thread: which object each of its tokens is of.
#[derive(Debug)]
pub(super) struct Gets {
    load: ObjectLoad,
    shares: Shares,
    keys: Vec<Option<KeyName>>,
    expected: Vec<u8>,
}

impl Gets {
    pub(super) fn new(load: ObjectLoad, shares: Shares) -> Self {
        Self { load, shares, keys: Vec::new(), expected: Vec::new() }
    }

    /// Gets the object that the op's place stands for, among those of the lane's server: places
    /// are as far apart as the op is long.
    pub(super) fn submit(&mut self, cluster: &mut Cluster, lane: usize, op: Op) -> Result<Sent> {
        let share = &self.shares[&cluster.server_of(lane)];
        let key = self.load.key(share[(op.offset / u64::from(op.len)) as usize])?;
        let sent = cluster.get_on(lane, Get { key: key.bytes(), tag: op.token.into() }, op.at)?;
        let place = op.token as usize;
        if self.keys.len() <= place {
            self.keys.resize(place + 1, None);
        }
        self.keys[place] = Some(key);
        Ok(sent)
    }

    /// Compares CRC and contents.
    ///
    /// # Errors
    ///
    /// `Data` where they are not those of the object.
    pub(super) fn verify(&mut self, done: &Done) -> Result<()> {
        done.verify()?;
        let payload = done.payload()?;
        let key = self.keys.get(done.tag as usize).copied().flatten();
        let key = key
            .ok_or_else(|| Error::new(Kind::Protocol, format!("an answer to get {}", done.tag)))?;
        self.expected.resize(payload.len(), 0);
        content::fill(self.load.seed, key.bytes(), &mut self.expected);
        if payload == self.expected {
            return Ok(());
        }
        let at = payload.iter().zip(&self.expected).position(|(a, b)| a != b).unwrap_or(0);
        let what = format!("object {key}: byte {at} is not what was filled in");
        Err(Error::new(Kind::Data, what)
            .remedy("give --fill-seed and --fill-prefix as `millrace store fill` had them"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_is_asked_of_the_server_that_has_it() {
        let load = ObjectLoad { prefix: "object-".into(), seed: 1 };
        let stores = [[1; 16], [2; 16], [3; 16]];
        let shares = load.shares(300, &stores).unwrap();
        let mut all: Vec<u64> = shares.values().flat_map(|share| share.iter().copied()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..300).collect::<Vec<_>>(), "each once");
        let placement = Placement::new(&stores);
        for (server, share) in &shares {
            for number in share.iter() {
                let digest = load.key(*number).unwrap().digest();
                assert_eq!(placement.owner(&digest.0), *server);
            }
        }
        assert_eq!(load.shares(5, &stores[..1]).unwrap()[&0][..], [0, 1, 2, 3, 4]);
        let error = load.shares(1, &stores).unwrap_err();
        assert!(error.what().contains("none of 1 objects"), "{error}");
    }
}
