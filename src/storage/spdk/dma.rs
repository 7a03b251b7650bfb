//! Arenas of SPDK's DMA allocator: every SPDK transport and any NIC can reach them.

use std::ptr::NonNull;
use std::sync::Arc;

use spdk_sys as sys;

use super::env::{self, Env};
use crate::error::{Error, Kind, Result};
use crate::host::{Root, hugepages};
use crate::limits::SLOT_ALIGN;
use crate::memory::{Arena, ArenaSpec, Pages};
use crate::units::format_size;

/// Largest single allocation that DPDK's lists of segments take (RTE_MAX_MEM_MB_PER_LIST).
const MAX_ARENA: usize = 32 << 30;

/// Allocates an arena as `spec` asks, zeroed, with all pages present.
///
/// DPDK has hugepages of the sizes that are mounted and takes the default size here; base pages
/// cannot be had.
///
/// # Errors
///
/// `Resource` for a shortage, with the command that mends it; `Unsupported` for page sizes that
/// DPDK does not have here.
pub(super) fn arena(_: Env, spec: &ArenaSpec) -> Result<Arc<Arena>> {
    let root = Root::system();
    let page = hugepages::default_size(&root)?;
    let asked = match spec.pages {
        Pages::Auto => page,
        Pages::Huge2M => 2 << 20,
        Pages::Huge1G => 1 << 30,
        Pages::Base => {
            return Err(Error::new(Kind::Unsupported, "SPDK's memory is on hugepages only")
                .remedy("use --hugepages auto with --backend spdk"));
        }
    };
    if asked != page {
        let (asked, page) = (format_size(asked as u64), format_size(page as u64));
        return Err(Error::new(
            Kind::Unsupported,
            format!("{asked} pages are asked for; DPDK has those of the default size, {page}"),
        )
        .remedy(format!(
            "use --hugepages auto, or boot with default_hugepagesz={asked} hugepagesz={asked}"
        )));
    }
    if spec.bytes == 0 || spec.bytes > MAX_ARENA {
        return Err(Error::usage(format!("an arena of {}", format_size(spec.bytes as u64)))
            .remedy(format!(
                "choose a depth and slot size below {}",
                format_size(MAX_ARENA as u64)
            )));
    }
    allocate(&root, spec.bytes.next_multiple_of(page), page, page, spec.node)
}

/// A small arena for the control plane: it takes no page of its own where there is room in others.
pub(super) fn scratch(_: Env, bytes: usize) -> Result<Arc<Arena>> {
    let root = Root::system();
    let page = hugepages::default_size(&root)?;
    allocate(&root, bytes.next_multiple_of(SLOT_ALIGN), SLOT_ALIGN, page, None)
}

fn allocate(
    root: &Root,
    len: usize,
    align: usize,
    page: usize,
    node: Option<u32>,
) -> Result<Arc<Arena>> {
    env::forget_errors();
    let id = node.map_or(sys::SPDK_ENV_NUMA_ID_ANY, |node| node as i32);
    let lock = env::exclusive();
    // SAFETY: the environment is up. Alignment is a power of two; the unused pointer is null.
    let base =
        unsafe { sys::spdk_zmalloc(len, align, std::ptr::null_mut(), id, sys::SPDK_MALLOC_DMA) };
    drop(lock);
    let Some(base) = NonNull::new(base.cast::<u8>()) else {
        // DPDK needs a header in front of what it aligns: one page more.
        let need = len.div_ceil(page) as u64 + 1;
        let free = hugepages::free(root, page, node)?;
        let mut error = crate::host::hugepages::shortage(page, need, free.min(need - 1), node);
        if let Some(lines) = env::errors() {
            error = error.caused_by(lines);
        }
        return Err(error);
    };
    let why = format!("{} pages of DPDK's allocator", format_size(page as u64));
    let address = base.as_ptr() as usize;
    let release = Box::new(move || {
        let _lock = env::exclusive();
        // SAFETY: allocated above and given back once: the arena calls this when nobody holds it.
        unsafe { sys::spdk_free(address as *mut _) };
    });
    // SAFETY: `len` zeroed bytes from `base` on, ours until the release.
    let arena = unsafe { Arena::from_foreign(base, len, page, node, why, release) };
    Ok(Arc::new(arena))
}
