//! Arenas: one mapping, on one NUMA node, of a known page size, faulted in before use.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Context, Error, Kind, Result};
use crate::host::{Root, hugepages};
use crate::limits::SLOT_ALIGN;
use crate::units::format_size;

/// Which pages an arena is asked to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Pages {
    /// The default hugepage size where enough of it is free, else base pages; the choice and its
    /// reason are in [`Arena::why`].
    #[serde(rename = "auto")]
    Auto,
    /// Base pages (4 KiB on x86-64). Transparent hugepages are switched off for the mapping.
    #[serde(rename = "none")]
    Base,
    /// 2 MiB hugepages.
    #[serde(rename = "2m")]
    Huge2M,
    /// 1 GiB hugepages.
    #[serde(rename = "1g")]
    Huge1G,
}

impl Pages {
    /// Size in bytes of an explicitly chosen page.
    fn explicit_size(self) -> Option<usize> {
        match self {
            Pages::Auto => None,
            Pages::Base => Some(base_page_size()),
            Pages::Huge2M => Some(2 << 20),
            Pages::Huge1G => Some(1 << 30),
        }
    }
}

impl std::str::FromStr for Pages {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Pages::Auto),
            "none" => Ok(Pages::Base),
            "2m" => Ok(Pages::Huge2M),
            "1g" => Ok(Pages::Huge1G),
            _ => Err(Error::usage(format!("\"{text}\" is not a page size"))
                .remedy("choose auto, none, 2m or 1g")),
        }
    }
}

/// What an arena is to be.
#[derive(Debug, Clone, Copy)]
pub struct ArenaSpec {
    /// Size in bytes; rounded up to whole pages.
    pub bytes: usize,
    /// Page size.
    pub pages: Pages,
    /// NUMA node to be on; `None` leaves it to the kernel.
    pub node: Option<u32>,
}

enum Release {
    /// Mapped by us with this length.
    Unmap,
    /// Allocated by hugepage-rs with this layout.
    HugepageRs(Layout),
    /// Somebody else's memory (SPDK's DMA allocator), given back by calling this.
    Foreign(Box<dyn FnOnce() + Send + Sync>),
}

/// One mapping that hardware may be given addresses of. Shared by `Arc`: whoever registers it
/// holds one, so it is unmapped only after the last registration is gone.
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
    page_size: usize,
    node: Option<u32>,
    why: String,
    claimed: AtomicBool,
    release: Option<Release>,
}

// SAFETY: the arena only hands out addresses; access to the bytes goes through Slot, each of which
// owns its range alone. Unmapping happens once, in Drop.
unsafe impl Send for Arena {}
// SAFETY: as above; `&Arena` gives no access to the bytes.
unsafe impl Sync for Arena {}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena")
            .field("base", &self.base)
            .field("len", &self.len)
            .field("page_size", &self.page_size)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Arena {
    /// Maps and faults in an arena. All pages are present and zero when it returns.
    ///
    /// # Errors
    ///
    /// `Resource` where pages of an explicitly chosen size are short: with how many are needed
    /// and free, on which node, and the command that reserves them.
    pub fn map(spec: &ArenaSpec) -> Result<Self> {
        if spec.bytes == 0 {
            return Err(Error::usage("an arena of 0 bytes"));
        }
        match spec.pages {
            Pages::Auto => Self::map_auto(spec),
            Pages::Base => Self::map_pages(spec, base_page_size(), "base pages as asked".into()),
            Pages::Huge2M | Pages::Huge1G => {
                let size = spec.pages.explicit_size().expect("an explicit size");
                Self::map_pages(spec, size, format!("{} pages as asked", format_size(size as u64)))
            }
        }
    }

    /// Takes memory that another allocator owns; `release` gives it back, on whichever thread
    /// drops the last user of the arena.
    ///
    /// # Panics
    ///
    /// If `base` is not aligned as slots are.
    ///
    /// # Safety
    ///
    /// `base` must be the start of `len` (at most `isize::MAX`) initialised, writable bytes that
    /// nobody else accesses and that stay mapped until `release` is called.
    pub unsafe fn from_foreign(
        base: NonNull<u8>,
        len: usize,
        page_size: usize,
        node: Option<u32>,
        why: String,
        release: Box<dyn FnOnce() + Send + Sync>,
    ) -> Self {
        // Slots and shared words rely on it; our own mappings are of whole pages.
        assert!((base.as_ptr() as usize).is_multiple_of(SLOT_ALIGN), "memory at {base:?}");
        let release = Some(Release::Foreign(release));
        Self { base, len, page_size, node, why, claimed: AtomicBool::new(false), release }
    }

    fn map_auto(spec: &ArenaSpec) -> Result<Self> {
        let root = Root::system();
        let size = hugepages::default_size(&root)?;
        let need = spec.bytes.div_ceil(size) as u64;
        let free = hugepages::free(&root, size, spec.node)?;
        if free >= need {
            let why = format!("{need} of {free} free {} pages", format_size(size as u64));
            match Self::map_default_huge(spec, size, why) {
                Ok(arena) => return Ok(arena),
                // Another program may take the pages between the look and the mapping.
                Err(e) => log::warn!("hugepages were free, but are not to be had: {}", e.report()),
            }
        }
        let why = format!(
            "base pages: {need} {} pages needed, {free} free{}",
            format_size(size as u64),
            on_node(spec.node)
        );
        log::warn!("arena on {why}; {}", hugepages::remedy(size, need - free.min(need), spec.node));
        Self::map_pages(spec, base_page_size(), why)
    }

    /// Hugepages of the system's default size.
    fn map_default_huge(spec: &ArenaSpec, page_size: usize, why: String) -> Result<Self> {
        let len = spec.bytes.next_multiple_of(page_size);
        let layout = Layout::from_size_align(len, page_size)
            .map_err(|_| Error::usage(format!("an arena of {len} bytes")))?;
        // SAFETY: the layout has a size above 0.
        let base = NonNull::new(unsafe { hugepage_rs::alloc(layout) }).ok_or_else(|| {
            Self::shortage(page_size, len / page_size, spec.node, std::io::Error::last_os_error())
        })?;
        Self {
            base,
            len,
            page_size,
            node: spec.node,
            why,
            claimed: AtomicBool::new(false),
            release: Some(Release::HugepageRs(layout)),
        }
        .place()
    }

    fn map_pages(spec: &ArenaSpec, page_size: usize, why: String) -> Result<Self> {
        let len = spec.bytes.next_multiple_of(page_size);
        let huge = page_size != base_page_size();
        let mut flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if huge {
            flags |= libc::MAP_HUGETLB;
            flags |= (page_size.trailing_zeros() as i32) << libc::MAP_HUGE_SHIFT;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            let cause = std::io::Error::last_os_error();
            if huge {
                return Err(Self::shortage(page_size, len / page_size, spec.node, cause));
            }
            return Err(Error::new(
                Kind::Resource,
                format!("cannot map an arena of {}", format_size(len as u64)),
            )
            .caused_by(cause));
        }
        if !huge {
            // A khugepaged collapse would change the page size under a measurement.
            // SAFETY: the range is the mapping made above; the advice does not touch contents.
            let done = unsafe { libc::madvise(base, len, libc::MADV_NOHUGEPAGE) };
            if done != 0 {
                // EINVAL: a kernel without transparent hugepages, which keeps base pages anyway.
                log::debug!("madvise(MADV_NOHUGEPAGE): {}", std::io::Error::last_os_error());
            }
        }
        Self {
            base: NonNull::new(base.cast()).expect("mmap never returns 0 without MAP_FIXED"),
            len,
            page_size,
            node: spec.node,
            why,
            claimed: AtomicBool::new(false),
            release: Some(Release::Unmap),
        }
        .place()
    }

    /// Binds the mapping to its node and faults every page in.
    fn place(self) -> Result<Self> {
        let base = self.base.as_ptr().cast::<libc::c_void>();
        if let Some(node) = self.node {
            let mut mask = [0u64; 16];
            let (word, bit) = (node as usize / 64, node % 64);
            *mask
                .get_mut(word)
                .ok_or_else(|| Error::usage(format!("NUMA node {node} is out of range")))? =
                1 << bit;
            const MPOL_BIND: libc::c_int = 2;
            // SAFETY: mbind(2) reads the mask of 1024 bits and changes the policy of a range
            // that this arena owns; nothing is faulted in yet, so nothing is moved.
            let done = unsafe {
                libc::syscall(
                    libc::SYS_mbind,
                    base,
                    self.len,
                    MPOL_BIND,
                    mask.as_ptr(),
                    (mask.len() * 64) as libc::c_ulong,
                    0,
                )
            };
            if done != 0 {
                return Err(std::io::Error::last_os_error()).context(|| {
                    format!("cannot place {} on NUMA node {node}", format_size(self.len as u64))
                });
            }
        }
        // Fails with an error where touching the page would kill the process by SIGBUS.
        // SAFETY: populates pages of our own mapping; contents stay zero.
        let done = unsafe { libc::madvise(base, self.len, libc::MADV_POPULATE_WRITE) };
        if done != 0 {
            let cause = std::io::Error::last_os_error();
            if self.page_size != base_page_size() {
                let pages = self.len / self.page_size;
                return Err(Self::shortage(self.page_size, pages, self.node, cause));
            }
            return Err(Error::new(
                Kind::Resource,
                format!("cannot fault in {}{}", format_size(self.len as u64), on_node(self.node)),
            )
            .caused_by(cause)
            .remedy("use a smaller --depth or --slot-size, or a machine with more memory"));
        }
        Ok(self)
    }

    fn shortage(size: usize, need: usize, node: Option<u32>, cause: std::io::Error) -> Error {
        let need = need as u64;
        let name = format_size(size as u64);
        match hugepages::free(&Root::system(), size, node) {
            Ok(free) => hugepages::shortage(size, need, free, node),
            Err(e) => Error::new(Kind::Unsupported, format!("no hugepages of {name} here"))
                .remedy(e.report()),
        }
        .caused_by(cause)
    }

    /// Address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes: whole pages.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Size in bytes of the pages behind it.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// NUMA node it is bound to.
    pub fn node(&self) -> Option<u32> {
        self.node
    }

    /// Why it has the pages that it has: for the log and for every result.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Marks the arena as cut into slots; a second pool on it would alias the first.
    pub(super) fn claim_for_slots(&self) -> Result<()> {
        if self.claimed.swap(true, Ordering::Relaxed) {
            return Err(Error::usage("this arena is cut into slots already"));
        }
        Ok(())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        match self.release.take() {
            Some(Release::Unmap) => {
                // SAFETY: base and len are of the mapping made in `map_pages`; every Slot and
                // every registration holds an Arc of this arena, so none is left.
                let done = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
                assert_eq!(done, 0, "munmap of an arena: {}", std::io::Error::last_os_error());
            }
            // SAFETY: allocated by hugepage_rs::alloc with this layout; no user is left, as above.
            Some(Release::HugepageRs(layout)) => unsafe {
                hugepage_rs::dealloc(self.base.as_ptr(), layout);
            },
            Some(Release::Foreign(release)) => release(),
            None => unreachable!("an arena is dropped once"),
        }
    }
}

fn base_page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

fn on_node(node: Option<u32>) -> String {
    node.map_or_else(String::new, |node| format!(" on NUMA node {node}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(bytes: usize, pages: Pages) -> Result<Arena> {
        Arena::map(&ArenaSpec { bytes, pages, node: None })
    }

    #[test]
    fn base_pages_are_always_to_be_had() {
        let arena = map(10_000, Pages::Base).unwrap();
        assert_eq!(arena.len(), 12_288);
        assert_eq!(arena.page_size(), 4096);
    }

    #[test]
    fn auto_says_why() {
        let arena = map(1 << 20, Pages::Auto).unwrap();
        assert!(arena.why().contains("free"), "{}", arena.why());
    }

    #[test]
    fn a_shortage_names_the_numbers_and_the_command() {
        let error = map(1 << 50, Pages::Huge2M).unwrap_err();
        assert_eq!(error.kind(), Kind::Resource);
        assert!(error.what().starts_with("536870912 hugepages of 2MiB needed"), "{error}");
        assert!(error.report().contains("nr_hugepages"), "{}", error.report());
    }

    #[test]
    fn a_node_that_does_not_exist_is_an_error() {
        let spec = ArenaSpec { bytes: 4096, pages: Pages::Base, node: Some(1023) };
        assert!(Arena::map(&spec).unwrap_err().what().contains("NUMA node 1023"));
    }

    #[test]
    #[should_panic(expected = "memory at")]
    fn foreign_memory_is_aligned() {
        let bytes = Box::leak(Box::new([0u64; 1024]));
        // One of both is not aligned to 4096 bytes.
        for word in &mut bytes[..2] {
            let base = NonNull::from(word).cast();
            // SAFETY: leaked and used by nobody else; 8 bytes are left out at the end.
            drop(unsafe {
                Arena::from_foreign(base, 8184, 4096, None, String::new(), Box::new(|| ()))
            });
        }
    }

    #[test]
    fn page_names_parse() {
        assert_eq!("2m".parse::<Pages>().unwrap(), Pages::Huge2M);
        assert!("3m".parse::<Pages>().is_err());
    }
}
