//! The commands of the command line: arguments, and calls of the parts that do the work.

pub mod device;
