//! Objects by key: get, put, delete.
//!
//! A put is copied into a slot of the client with its key and the CRC-64/NVME of the data, and the
//! server fetches it from there; a get lands in a slot like a read. The CRC of a get is the one
//! that was computed when the object was put, so [`Client::verify`] covers the whole way.
//!
//! ```no_run
//! use millrace::client::{Client, ClientOptions, Get, Put};
//!
//! # fn main() -> millrace::Result<()> {
//! let mut client = Client::connect("tcp://127.0.0.1:4790", &ClientOptions::default())?;
//!
//! // One at a time, blocking:
//! client.put(b"greeting", b"hello")?;
//! assert_eq!(client.get(b"greeting")?, b"hello");
//!
//! // Many in flight:
//! for tag in 0..8 {
//!     let key = format!("part-{tag}");
//!     client.submit_put(Put { key: key.as_bytes(), data: &[7; 4096], tag })?;
//! }
//! let mut done = Vec::with_capacity(8);
//! while client.in_flight() > 0 {
//!     client.flush()?;
//!     client.poll(&mut done)?;
//!     for put in done.drain(..) {
//!         client.outcome(&put)?;
//!         client.recycle(put);
//!     }
//! }
//! client.submit_get(Get { key: b"part-3", tag: 3 })?;
//! # client.flush()?;
//! # while client.poll(&mut done)? == 0 { client.flush()?; }
//! # for get in done.drain(..) { client.recycle(get); }
//! client.delete(b"greeting")?;
//! # Ok(())
//! # }
//! ```

use zerocopy::IntoBytes;

use super::{Client, ClientOptions, Done, Submitted};
use crate::check::crc;
use crate::error::{Error, Kind, Result};
use crate::fabric::Channel;
use crate::limits::SLOT_ALIGN;
use crate::object::{Digest, KeyName};
use crate::wire::{PUT_PREFIX, PutPrefix, Request, Status, StoreInfo};

/// A get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Get<'a> {
    /// The object's key: 1 to 255 bytes.
    pub key: &'a [u8],
    /// The caller's own word.
    pub tag: u64,
}

/// A put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put<'a> {
    /// The object's key: 1 to 255 bytes.
    pub key: &'a [u8],
    /// The object: 1 byte to the store's limit.
    pub data: &'a [u8],
    /// The caller's own word.
    pub tag: u64,
}

/// A delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The object's key: 1 to 255 bytes.
    pub key: &'a [u8],
    /// The caller's own word.
    pub tag: u64,
}

impl Client {
    /// As [`Client::connect`], with landing memory for the longest object of the server's store,
    /// where `options` has less.
    ///
    /// # Errors
    ///
    /// As [`Client::connect`]; `Usage` where the server has no store.
    pub fn connect_to_store(address: &str, options: &ClientOptions) -> Result<Self> {
        let client = Self::connect(address, options)?;
        let store = client.require_store()?;
        let need = (store.object_limit as usize + PUT_PREFIX).next_multiple_of(SLOT_ALIGN);
        if need <= options.max_read {
            return Ok(client);
        }
        drop(client);
        Self::connect(address, &ClientOptions { max_read: need, ..options.clone() })
    }
}

impl Done {
    /// How a request ended.
    ///
    /// # Errors
    ///
    /// `NotFound` for an object that is not there, `Data` for a damaged one, `Denied` where the
    /// server takes no changes, `Resource` where the store is full, `Usage` where the request does
    /// not suit the server, and `Device` for the rest.
    pub fn outcome(&self) -> Result<()> {
        let (status, detail) = (self.record.status(), self.record.detail.get());
        if status == Status::Ok {
            return Ok(());
        }
        let kind = match status {
            Status::NotFound => Kind::NotFound,
            Status::Damaged | Status::BodyCrc => Kind::Data,
            Status::ReadOnly => Kind::Denied,
            Status::NoSpace => Kind::Resource,
            Status::TooLong | Status::BadKey | Status::WrongMode => Kind::Usage,
            _ => Kind::Device,
        };
        let error = Error::new(kind, format!("request {}: {}", self.tag, status.describe(detail)));
        Err(match status {
            Status::ReadOnly => error.remedy("start the server with --writable"),
            Status::NoSpace => error.remedy("delete objects, or make a store on more drives"),
            Status::Damaged => {
                error.remedy("put the object again; `millrace store verify` finds what else is so")
            }
            _ => error,
        })
    }
}

impl<C: Channel> Client<C> {
    /// The server's store; `None` where it serves ranges of drives.
    pub fn store(&self) -> Option<StoreInfo> {
        self.channel.welcome().store()
    }

    fn require_store(&self) -> Result<StoreInfo> {
        self.store().ok_or_else(|| {
            Error::usage("the server has ranges of drives, no objects")
                .remedy("start it without --raw on drives that `millrace store create` has made")
        })
    }

    /// Longest object in bytes that this connection can put: of the store, and of its own slots.
    pub fn max_object(&self) -> u32 {
        let slots = (self.slots.slot_size() - PUT_PREFIX) as u32;
        self.store().map_or(0, |store| store.object_limit.min(slots))
    }

    /// Puts a get in the batch. Its payload is the object.
    ///
    /// # Errors
    ///
    /// `Usage` for a key of no bytes or too many, or a server without objects. What else is wrong,
    /// the server says: see [`Client::outcome`].
    pub fn submit_get(&mut self, get: Get<'_>) -> Result<Submitted> {
        self.require_store()?;
        let key = KeyName::new(get.key)?;
        let most = self.max_read();
        Ok(self.send(Request::get(get.tag, key.digest().0, most)))
    }

    /// Puts a put in the batch: copies the data, and computes its CRC.
    ///
    /// # Errors
    ///
    /// `Usage` for a key of no bytes or too many, no data, more than [`Client::max_object`], or a
    /// server without objects.
    pub fn submit_put(&mut self, put: Put<'_>) -> Result<Submitted> {
        self.require_store()?;
        let key = KeyName::new(put.key)?;
        let (length, most) = (put.data.len(), self.max_object());
        if length == 0 || length > most as usize {
            let what = format!("an object of {length} bytes; 1 to {most} are possible");
            return Err(Error::usage(what).remedy(
                "split it, or make a store with a larger --object-size (millrace store create)",
            ));
        }
        let Some(mut slot) = self.slots.acquire() else { return Ok(Submitted::Busy) };
        let prefix = PutPrefix::new(key.bytes(), crc(put.data));
        let (head, body) = slot.bytes_mut(PUT_PREFIX + length).split_at_mut(PUT_PREFIX);
        head.copy_from_slice(prefix.as_bytes());
        body.copy_from_slice(put.data);
        Ok(self.send_slot(Request::put(put.tag, key.digest().0, length as u32), slot))
    }

    /// Puts a delete in the batch.
    ///
    /// # Errors
    ///
    /// `Usage` for a key of no bytes or too many, or a server without objects.
    pub fn submit_delete(&mut self, delete: Delete<'_>) -> Result<Submitted> {
        self.require_store()?;
        let digest = KeyName::new(delete.key)?.digest();
        Ok(self.send(Request::delete(delete.tag, digest.0)))
    }

    /// How a request ended: see [`Done::outcome`].
    ///
    /// # Errors
    ///
    /// Those of [`Done::outcome`].
    pub fn outcome(&self, done: &Done) -> Result<()> {
        done.outcome()
    }

    /// Gets an object and waits for it; its CRC is compared. Nothing else may be in flight.
    ///
    /// # Errors
    ///
    /// As [`Client::submit_get`], [`Client::poll`], [`Client::outcome`] and [`Client::verify`];
    /// `Network` where the answer does not come within the time-out.
    pub fn get(&mut self, key: &[u8]) -> Result<Vec<u8>> {
        self.require_store()?;
        let digest = self.digest_of(key)?;
        let done = self.round_trip(Request::get(0, digest.0, self.max_read()))?;
        let data = self.verify(&done).and_then(|()| self.payload(&done).map(<[u8]>::to_vec));
        self.recycle(done);
        data
    }

    /// Puts an object and waits until it is on the drive, where it survives a crash. Nothing else
    /// may be in flight.
    ///
    /// # Errors
    ///
    /// As [`Client::submit_put`], [`Client::poll`] and [`Client::outcome`]; `Network` where the
    /// answer does not come within the time-out: the object may be stored or not, then.
    pub fn put(&mut self, key: &[u8], data: &[u8]) -> Result<()> {
        self.only()?;
        self.submit_put(Put { key, data, tag: 0 })?;
        self.conclude()
    }

    /// Deletes an object and waits until that survives a crash. Nothing else may be in flight.
    ///
    /// # Errors
    ///
    /// As [`Client::submit_delete`], [`Client::poll`] and [`Client::outcome`]; `Network` where the
    /// answer does not come within the time-out: the object may be deleted or not, then.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.only()?;
        self.submit_delete(Delete { key, tag: 0 })?;
        self.conclude()
    }

    fn digest_of(&self, key: &[u8]) -> Result<Digest> {
        Ok(KeyName::new(key)?.digest())
    }

    fn conclude(&mut self) -> Result<()> {
        let done = self.wait_for_one()?;
        let outcome = self.outcome(&done);
        self.recycle(done);
        outcome
    }
}
