//! The superblocks of the drives that were named: whether they make one store.

use crate::error::{Error, Kind, Result};
use crate::object::{BLOCK, BadSuperblock, State, StoreId, Superblock};
use crate::storage::{DriveInfo, Operation, Queue};

use super::io::Io;

/// Something that does not keep the store from being used, and should not stay so.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SetWarning {
    /// Name of the drive.
    pub drive: String,
    /// Byte offset of the damaged superblock.
    pub offset: u64,
    /// What is wrong with it.
    pub what: String,
}

/// The drives of one store.
#[derive(Debug)]
pub(super) struct Set {
    /// In the order of the storage.
    pub superblocks: Vec<Superblock>,
    pub warnings: Vec<SetWarning>,
}

const CREATE: &str = "if its objects are not needed, make it anew: millrace store create --force";

/// Both superblocks of a drive, as they were found.
pub(super) struct Pair {
    pub first: Result<Superblock, BadSuperblock>,
    pub copy: Result<Superblock, BadSuperblock>,
    pub copy_at: u64,
}

impl Pair {
    /// A superblock that belongs to this drive, of a creation cut short if there is one.
    pub fn any(&self) -> Option<&Superblock> {
        let mut both = self.first.iter().chain(self.copy.iter());
        let creating = both.clone().find(|found| found.state == State::Creating);
        creating.or_else(|| both.next())
    }
}

/// Reads both superblocks of a drive.
///
/// # Errors
///
/// `Device` where neither can be read; one that cannot counts as damaged.
pub(super) fn read_pair<Q: Queue>(io: &mut Io<Q>, number: u16, info: &DriveInfo) -> Result<Pair> {
    let end = info.capacity - info.capacity % BLOCK as u64;
    if end < 2 * BLOCK as u64 {
        return Ok(Pair {
            first: Err(BadSuperblock::None),
            copy: Err(BadSuperblock::None),
            copy_at: 0,
        });
    }
    let mut block = [0; BLOCK];
    let mut read = |offset| {
        let read = io.carry_out(Operation::Read, number, offset, &mut block);
        read.map(|()| Superblock::decode(&block))
    };
    let first = read(0);
    // Where the first says, since the drive may have grown; else at the end.
    let copy_at = match &first {
        Ok(Ok(found)) if found.bytes <= end => found.bytes,
        _ => end,
    } - BLOCK as u64;
    let copy = read(copy_at);
    if let (Err(status), Err(_)) = (&first, &copy) {
        let what = format!("{}: cannot read its superblocks", info.name);
        return Err(Error::new(Kind::Device, what).caused_by(status.to_string()));
    }
    let unreadable = Err(BadSuperblock::Crc);
    Ok(Pair { first: first.unwrap_or(unreadable), copy: copy.unwrap_or(unreadable), copy_at })
}

/// Reads and checks the superblocks of all drives.
///
/// # Errors
///
/// With the drives' names and what to do: no store, a damaged or half-created one, another
/// version, drives of several stores, a drive named twice, a drive missing.
pub(super) fn read<Q: Queue>(io: &mut Io<Q>, infos: &[DriveInfo]) -> Result<Set> {
    let mut set = Set { superblocks: Vec::new(), warnings: Vec::new() };
    for (number, info) in infos.iter().enumerate() {
        let pair = read_pair(io, number as u16, info)?;
        set.superblocks.push(choose(&pair, info, &mut set.warnings)?);
    }
    check(&set.superblocks, infos)?;
    Ok(set)
}

fn choose(pair: &Pair, info: &DriveInfo, warnings: &mut Vec<SetWarning>) -> Result<Superblock> {
    let name = &info.name;
    let mut warn = |offset, bad: &BadSuperblock| {
        let what = format!("{bad}; the other one is used");
        warnings.push(SetWarning { drive: name.clone(), offset, what });
    };
    if let Some(found) = pair.any().filter(|found| found.state == State::Creating) {
        return Err(Error::new(
            Kind::Data,
            format!("{name}: the creation of store {} was cut short", found.store),
        )
        .remedy("run `millrace store create` again; there is nothing to lose on it"));
    }
    let found = match (&pair.first, &pair.copy) {
        (Ok(first), Ok(copy)) if first == copy => *first,
        (Ok(first), Ok(copy)) => {
            return Err(Error::new(
                Kind::Data,
                format!(
                    "{name}: its two superblocks differ: drive {} of store {}, and drive {} of \
                     store {}",
                    first.drive, first.store, copy.drive, copy.store
                ),
            )
            .remedy(CREATE));
        }
        (Ok(first), Err(bad)) => {
            warn(pair.copy_at, bad);
            *first
        }
        (Err(bad), Ok(copy)) => {
            warn(0, bad);
            *copy
        }
        (Err(BadSuperblock::None), Err(BadSuperblock::None)) => {
            return Err(Error::new(Kind::NotFound, format!("{name}: there is no store on it"))
                .remedy("make one with `millrace store create`, or name the right drives"));
        }
        (Err(bad @ BadSuperblock::Version(_)), _) | (_, Err(bad @ BadSuperblock::Version(_))) => {
            return Err(Error::new(Kind::Unsupported, format!("{name}: {bad}"))
                .remedy("use the millrace that made the store"));
        }
        (Err(first), Err(copy)) => {
            return Err(Error::new(
                Kind::Data,
                format!("{name}: both superblocks are lost: {first}, and at its end {copy}"),
            )
            .remedy(CREATE));
        }
    };
    if info.capacity < found.bytes {
        return Err(Error::new(
            Kind::Data,
            format!(
                "{name} has {} bytes; store {} was made on {}",
                info.capacity, found.store, found.bytes
            ),
        )
        .remedy("use the drive, file or partition in its full size"));
    }
    Ok(found)
}

fn check(superblocks: &[Superblock], infos: &[DriveInfo]) -> Result<()> {
    let first = superblocks[0];
    let name = |at: usize| &*infos[at].name;
    for (at, found) in superblocks.iter().enumerate() {
        if found.store != first.store {
            return Err(Error::usage(format!(
                "{} is of store {}, and {} of store {}",
                name(0),
                first.store,
                name(at),
                found.store
            ))
            .remedy("name the drives of one store"));
        }
        if let Some(before) = superblocks[..at].iter().position(|s| s.drive == found.drive) {
            return Err(Error::usage(format!(
                "{} and {} are both drive {} of store {}: one drive that was named twice, or a \
                 copy",
                name(before),
                name(at),
                found.drive,
                found.store
            ))
            .remedy("name each drive of the store once"));
        }
        if (found.drives, found.object_limit) != (first.drives, first.object_limit) {
            return Err(Error::new(
                Kind::Data,
                format!("{} and {} disagree about store {}", name(0), name(at), first.store),
            )
            .remedy(CREATE));
        }
    }
    let missing: Vec<String> = (0..first.drives)
        .filter(|number| superblocks.iter().all(|found| found.drive != *number))
        .map(|number| number.to_string())
        .collect();
    if !missing.is_empty() {
        return Err(Error::new(
            Kind::NotFound,
            format!(
                "store {} has {} drives; missing: number {} (counted from 0)",
                first.store,
                first.drives,
                missing.join(", ")
            ),
        )
        .remedy("name all drives of the store, in any order: --device ... --device ..."));
    }
    Ok(())
}

/// The store whose superblock a drive has, if any: for who is about to write over it.
pub(super) fn store_on(pair: &Pair) -> Option<(StoreId, State)> {
    pair.any().map(|found| (found.store, found.state))
}
