//! `millrace doctor`: its checks on made hosts, the walls that it must name first, and the command.

mod checks;
mod command;
#[path = "../support/hosts.rs"]
mod hosts;
mod walls;
