//! The commands, a file each: from what was said to what is done.

pub mod bench;
pub mod device;
pub mod local;
mod names;
mod options;
pub mod serve;
