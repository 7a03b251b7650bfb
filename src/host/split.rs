//! Into how many requests the kernel cuts a read, foretold from the limits of the drive's queue.
//!
//! A read arrives at the block layer as a list of pieces, each contiguous in physical memory. A
//! request ends where it would have more pieces than `max_segments`, or more bytes than
//! `max_sectors_kb` (block/blk-merge.c, `bio_split_rw_at`). How long the pieces are depends on the
//! pages, on whether the memory is registered, and on the kernel:
//!
//! - Registered base pages are one piece each.
//! - Registered hugepages were one piece for each 4 KiB before kernel 6.3; from 6.3 on they are one
//!   piece where all of the registered memory is a single hugepage; from 6.12 on, one for each
//!   hugepage (io_uring/rsrc.c, `io_sqe_buffer_register`).
//! - Memory that is not registered is looked up for each read, and neighbours in physical memory
//!   become one piece. How many base pages are neighbours depends on what the memory has been used
//!   for: between all and none.

use serde::Serialize;

use super::queue::Queue;

/// Size of a base page.
const BASE: u64 = 4096;

/// Most pieces of one bio that is made for memory that is not registered (`BIO_MAX_VECS`).
const BIO_MAX: u64 = 256;

/// The limits that cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// `max_segments`.
    pub segments: u64,
    /// `max_segment_size` in bytes.
    pub segment_bytes: u64,
    /// `max_sectors_kb` in bytes.
    pub bytes: u64,
}

impl Limits {
    /// Those of a queue; `None` where one could not be read.
    pub fn of(queue: &Queue) -> Option<Self> {
        Some(Self {
            segments: queue.max_segments.copied().filter(|n| *n > 0)?,
            segment_bytes: queue.max_segment_bytes.copied().filter(|n| *n >= BASE)?,
            bytes: queue.max_kib.copied().filter(|n| *n > 0)? << 10,
        })
    }
}

/// The memory that is read into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Buffer {
    /// Page size in bytes.
    pub page: u64,
    /// True where it is registered with the ring.
    pub registered: bool,
    /// Bytes that are registered in one piece.
    pub registered_bytes: u64,
}

/// What will become of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Split {
    /// Pieces of memory in the whole read, at most.
    pub pieces: u64,
    /// Requests at least.
    pub least: u64,
    /// Requests at most; another figure than `least` only where it depends on which pages of memory
    /// are neighbours.
    pub most: u64,
    /// True where it is `max_segments` that cuts, not `max_sectors_kb`.
    pub by_segments: bool,
}

/// Cuts a read of `io_size` bytes on a kernel of this version (major, minor).
pub fn split(io_size: u64, limits: Limits, buffer: Buffer, kernel: (u32, u32)) -> Split {
    let by_size = cut(io_size, limits, io_size.max(BASE));
    let piece = piece(buffer, kernel);
    let most = match buffer.registered || buffer.page > BASE {
        true => cut(io_size, limits, piece),
        // As many bios as 256 pages each are, if no two are neighbours.
        false => {
            let whole = BIO_MAX * BASE;
            io_size / whole * cut(whole, limits, piece)
                + match io_size % whole {
                    0 => 0,
                    rest => cut(rest, limits, piece),
                }
        }
    };
    let least = match buffer.registered || buffer.page > BASE {
        true => most,
        false => by_size,
    };
    Split {
        pieces: io_size.div_ceil(piece),
        least: least.min(most),
        most,
        by_segments: most > by_size,
    }
}

/// Bytes of one contiguous piece of the memory.
fn piece(buffer: Buffer, kernel: (u32, u32)) -> u64 {
    if buffer.page <= BASE {
        return BASE;
    }
    let single = buffer.registered_bytes <= buffer.page;
    match buffer.registered {
        false => buffer.page,
        true if kernel >= (6, 12) || (kernel >= (6, 3) && single) => buffer.page,
        true => BASE,
    }
}

/// Requests of a read whose pieces are `piece` bytes long. Where it begins within a piece does not
/// matter: a piece that long is far from filling a request's number of them.
fn cut(io_size: u64, limits: Limits, piece: u64) -> u64 {
    let piece = piece.min(limits.segment_bytes);
    let full = limits.segments.saturating_mul(piece);
    io_size.div_ceil(full.min(limits.bytes).max(BASE)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const OBJECT: u64 = 1028 << 10;
    const OLD: (u32, u32) = (6, 1);
    const NEW: (u32, u32) = (6, 12);

    fn drive(segments: u64) -> Limits {
        Limits { segments, segment_bytes: u64::from(u32::MAX), bytes: MIB }
    }

    fn buffer(page: u64, registered: bool) -> Buffer {
        Buffer { page, registered, registered_bytes: 64 * MIB }
    }

    /// The table of measurements of 1,028 KiB in a guest: mean size of what the drive saw.
    #[test]
    fn the_measured_table_is_foretold() {
        for segments in [127, 128] {
            let requests = |page, registered, kernel| {
                let split = split(OBJECT, drive(segments), buffer(page, registered), kernel);
                (split.least, split.most)
            };
            // 342.67 KiB is a third of 1,028, 514 KiB the half.
            assert_eq!(requests(BASE, true, OLD), (3, 3));
            assert_eq!(requests(2 * MIB, true, OLD), (3, 3));
            assert_eq!(requests(2 * MIB, true, NEW), (2, 2));
            for kernel in [OLD, NEW] {
                assert_eq!(requests(2 * MIB, false, kernel), (2, 2));
                // Fresh memory is contiguous: the lower end. Used memory need not be.
                assert_eq!(requests(BASE, false, kernel).0, 2);
            }
            // 376 KiB, between half and third, on 6.12: see docs/TUNING.md.
            assert_eq!(requests(BASE, true, NEW), (3, 3));
        }
    }

    #[test]
    fn pieces_and_sizes_cut_by_turns() {
        let base = |io_size, segments| split(io_size, drive(segments), buffer(BASE, true), OLD);
        assert_eq!(
            base(MIB / 2, 128),
            Split { pieces: 128, least: 1, most: 1, by_segments: false }
        );
        assert_eq!(base(MIB / 2, 127).most, 2);
        assert_eq!(base(OBJECT, 127).pieces, 257);
        assert!(base(OBJECT, 127).by_segments);
        assert_eq!(base(4 * MIB, 127).most, 9);
        assert_eq!(split(4 * MIB, drive(127), buffer(2 * MIB, true), NEW).most, 4);
        assert_eq!(split(4096, drive(1), buffer(BASE, true), OLD).most, 1);
        // A smaller max_sectors_kb cuts first.
        let small = Limits { bytes: 220 << 10, ..drive(128) };
        assert_eq!(split(OBJECT, small, buffer(BASE, true), OLD).most, 5);
    }

    #[test]
    fn one_hugepage_is_one_piece_from_6_3_on() {
        let one = Buffer { page: 1 << 30, registered: true, registered_bytes: 64 * MIB };
        assert_eq!(split(OBJECT, drive(127), one, OLD).most, 3);
        assert_eq!(split(OBJECT, drive(127), one, (6, 3)).most, 2);
        let many = Buffer { page: 2 * MIB, ..one };
        assert_eq!(split(OBJECT, drive(127), many, (6, 8)).most, 3);
    }
}
