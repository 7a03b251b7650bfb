//! Gets of objects that `millrace store fill` has put: their keys and contents follow from a prefix
//! and a seed, so nobody has to list them.

use crate::client::{Client, Done, Get, Submitted};
use crate::error::{Error, Kind, Result};
use crate::fabric::Channel;
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

/// The gets of one thread: which object each of its tokens is of.
#[derive(Debug)]
pub(super) struct Gets {
    load: ObjectLoad,
    keys: Vec<Option<KeyName>>,
    expected: Vec<u8>,
}

impl Gets {
    pub(super) fn new(load: ObjectLoad) -> Self {
        Self { load, keys: Vec::new(), expected: Vec::new() }
    }

    /// Gets the object that the op's place stands for: places are as far apart as the op is long.
    pub(super) fn submit<C: Channel>(&mut self, client: &mut Client<C>, op: Op) -> Result<bool> {
        let key = self.load.key(op.offset / u64::from(op.len))?;
        let queued = client.submit_get(Get { key: key.bytes(), tag: op.token.into() })?;
        let place = op.token as usize;
        if self.keys.len() <= place {
            self.keys.resize(place + 1, None);
        }
        self.keys[place] = Some(key);
        Ok(queued == Submitted::Queued)
    }

    /// Compares CRC and contents.
    ///
    /// # Errors
    ///
    /// `Data` where they are not those of the object.
    pub(super) fn verify<C: Channel>(&mut self, client: &Client<C>, done: &Done) -> Result<()> {
        client.verify(done)?;
        let payload = client.payload(done)?;
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
