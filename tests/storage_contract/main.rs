//! One suite that every storage backend has to pass, and what each backend adds to it.

mod backends;
mod loops;
mod properties;
mod suite;

use std::io::Write;

use millrace::memory::Pages;
use millrace::memory::seal::CountingAllocator;

/// Pages of the suite's arenas: what every machine has.
const PAGES: Pages = Pages::Base;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Says that a test could not run, past the capture of the test's output.
fn skip(test: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIP {test}: {reason}");
}
