//! The commands, a file each: from what was said to what is done.

pub mod bench;
pub mod device;
pub mod local;
mod options;
pub mod serve;
