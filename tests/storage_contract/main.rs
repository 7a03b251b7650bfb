//! One suite that every storage backend has to pass, and what each backend adds to it.

mod backends;
mod loops;
mod properties;
mod suite;

#[path = "../support/skip.rs"]
mod skip;

use millrace::memory::Pages;
use millrace::memory::seal::CountingAllocator;

/// Pages of the suite's arenas: what every machine has.
const PAGES: Pages = Pages::Base;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
