//! Making a store: what is on the drives is looked at, then superblocks are written, last of all
//! those that say it is ready.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Kind, Result};
use crate::object::{BLOCK, Layout, MAX_OBJECT, State, StoreId, Superblock};
use crate::storage::{DriveInfo, Operation, Queue, Storage};
use crate::units::format_size;

use super::io::{Io, IoOptions};
use super::open::take_lock;
use super::probe::{CHUNK, probe};
use super::set::{read_pair, store_on};

/// What a store is to be.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Longest object in bytes.
    pub object_limit: u64,
    /// Serial numbers or names of drives that may be written over.
    pub force: Vec<String>,
    /// How the drives are reached.
    pub io: IoOptions,
    /// Where the locks of stores are.
    pub lock_dir: PathBuf,
}

/// A store that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    /// Its identity.
    pub store: StoreId,
    /// Slots in all: as many objects fit.
    pub slots: u64,
    /// Longest object in bytes.
    pub object_limit: u32,
}

/// Makes a store on all drives of `storage`, which were opened to be written.
///
/// # Errors
///
/// `Usage` for a limit that is not possible, a drive that is too small, and names in `force` that
/// are of no drive; `Denied` where a drive holds something and is not named in `force`; `Busy`
/// where a process has a store on it open. Nothing was written then. `Device` where a write fails.
pub fn create<S: Storage>(storage: &S, options: &CreateOptions) -> Result<Created> {
    let infos = storage.drives();
    let superblocks = plan(infos, options.object_limit)?;
    check_force(infos, &options.force)?;
    let mut io = Io::new(storage, CHUNK, &IoOptions { depth: 1, ..options.io })?;
    let mut locks = Vec::new();
    for (number, info) in infos.iter().enumerate() {
        let pair = read_pair(&mut io, number as u16, info)?;
        let on_it = store_on(&pair);
        if let Some((store, _)) = on_it
            && !locks.iter().any(|(locked, _)| *locked == store)
        {
            locks.push((store, take_lock(&options.lock_dir, store)?));
        }
        // A creation that was cut short was allowed to write here, and nothing was stored since.
        if matches!(on_it, Some((_, State::Creating))) {
            continue;
        }
        let found = probe(&mut io, number as u16, info)?;
        if !found.is_empty() && !is_forced(info, &options.force) {
            return Err(refusal(info, &found));
        }
    }
    for state in [State::Creating, State::Ready] {
        for (number, superblock) in superblocks.iter().enumerate() {
            let superblock = Superblock { state, ..*superblock };
            write(&mut io, number as u16, &infos[number], &superblock)?;
        }
        // Two names of one drive are told by what the second has written over the first.
        for (number, superblock) in superblocks.iter().enumerate() {
            let expected = Superblock { state, ..*superblock };
            read_back(&mut io, number as u16, infos, &expected)?;
        }
    }
    let first = superblocks[0];
    let slots = superblocks.iter().map(|superblock| superblock.slots).sum();
    Ok(Created { store: first.store, slots, object_limit: first.object_limit })
}

fn plan(infos: &[DriveInfo], limit: u64) -> Result<Vec<Superblock>> {
    if limit == 0 || limit > MAX_OBJECT.into() || !limit.is_multiple_of(BLOCK as u64) {
        return Err(Error::usage(format!("an object limit of {limit} bytes")).remedy(format!(
            "choose a multiple of {} up to {}",
            format_size(BLOCK as u64),
            format_args!("{}KiB", MAX_OBJECT >> 10)
        )));
    }
    let (limit, store) = (limit as u32, StoreId::random());
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut superblocks = Vec::with_capacity(infos.len());
    for (number, info) in infos.iter().enumerate() {
        // Drives in memory are named by their size alone.
        let named = |before: &&DriveInfo| before.name == info.name;
        if !info.name.starts_with("mem:")
            && let Some(before) = infos[..number].iter().find(named)
        {
            return Err(Error::usage(format!("{} is named twice", before.name))
                .remedy("name each drive once"));
        }
        let slots = Layout::slots_of(info.capacity, limit);
        if slots == 0 {
            return Err(Error::usage(format!(
                "{} has {}, which is too small for one object of {}",
                info.name,
                format_size(info.capacity),
                format_size(limit.into())
            ))
            .remedy("use a larger drive, or a smaller --object-size"));
        }
        superblocks.push(Superblock {
            state: State::Creating,
            store,
            drive: number as u16,
            drives: infos.len() as u16,
            object_limit: limit,
            slots,
            bytes: info.capacity - info.capacity % BLOCK as u64,
            created,
        });
    }
    if Layout::new(&superblocks, BLOCK as u32).is_none() {
        return Err(Error::usage("more than 2^32 - 2 slots")
            .remedy("choose a larger --object-size, or make several stores"));
    }
    Ok(superblocks)
}

fn is_forced(info: &DriveInfo, force: &[String]) -> bool {
    let serial = info.serial.as_deref().filter(|serial| !serial.is_empty());
    force.iter().any(|named| *named == info.name || Some(&**named) == serial)
}

fn check_force(infos: &[DriveInfo], force: &[String]) -> Result<()> {
    let of_none =
        |named: &&String| !infos.iter().any(|info| is_forced(info, std::slice::from_ref(*named)));
    match force.iter().find(of_none) {
        None => Ok(()),
        Some(named) => Err(Error::usage(format!("--force {named}: no drive that was named is it"))
            .remedy("give the serial number or the name of a drive, as in --device")),
    }
}

fn refusal(info: &DriveInfo, found: &[&str]) -> Error {
    let which = info.serial.as_deref().filter(|serial| !serial.is_empty()).unwrap_or(&info.name);
    let what = format!("{} holds data: {}", info.name, found.join(", "));
    Error::new(Kind::Denied, what).remedy(format!(
        "choose another drive; or, if everything on it may be lost, add --force {which}"
    ))
}

fn failed(info: &DriveInfo, what: &str, cause: String) -> Error {
    Error::new(Kind::Device, format!("{}: {what}", info.name))
        .caused_by(cause)
        .remedy("check the drive, and run the command again: nothing was stored yet")
}

fn write<Q: Queue>(
    io: &mut Io<Q>,
    number: u16,
    info: &DriveInfo,
    superblock: &Superblock,
) -> Result<()> {
    for offset in [superblock.bytes - BLOCK as u64, 0] {
        io.carry_out(Operation::WriteDurable, number, offset, &mut superblock.encode())
            .map_err(|e| failed(info, "cannot write its superblock", e.to_string()))?;
    }
    Ok(())
}

fn read_back<Q: Queue>(
    io: &mut Io<Q>,
    number: u16,
    infos: &[DriveInfo],
    expected: &Superblock,
) -> Result<()> {
    let info = &infos[usize::from(number)];
    for offset in [0, expected.bytes - BLOCK as u64] {
        let mut block = [0; BLOCK];
        io.carry_out(Operation::Read, number, offset, &mut block)
            .map_err(|e| failed(info, "cannot read its superblock back", e.to_string()))?;
        match Superblock::decode(&block) {
            Ok(found) if found == *expected => {}
            Ok(found) if found.store == expected.store => {
                return Err(Error::usage(format!(
                    "{} and {} are the same drive",
                    infos[usize::from(found.drive)].name,
                    info.name
                ))
                .remedy("name each drive once, then run the command again"));
            }
            _ => {
                let cause = "other bytes came back than were written".to_owned();
                return Err(failed(info, "its superblock did not stay", cause));
            }
        }
    }
    Ok(())
}
