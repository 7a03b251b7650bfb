//! The commands, a file each: from what was said to what is done.

pub mod bench;
pub mod compare;
mod connection;
pub mod device;
pub mod doctor;
pub mod get;
pub mod local;
mod names;
mod options;
pub mod predict;
mod preflight;
pub mod put;
pub mod serve;
pub mod store;
