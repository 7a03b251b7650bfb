//! Flags of the commands for one object.

use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::options::{duration, read_token};
use crate::client::{Client, ClientOptions};
use crate::error::Result;
use crate::memory::Pages;

/// An object, and the server that has it.
#[derive(Debug, Clone, Args)]
pub struct ObjectArgs {
    /// Key of the object: 1 to 255 bytes
    #[arg(value_name = "KEY")]
    key: OsString,
    /// Server: tcp://host:port or rdma://host:port
    #[arg(long, value_name = "ADDRESS")]
    connect: String,
    /// File with the secret that the server asks for
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Local address of the NIC to use (rdma) [default: as the routing table says]
    #[arg(long, value_name = "ADDR")]
    bind: Option<IpAddr>,
    /// Time for connecting, and for the answer
    #[arg(long, default_value = "10s", value_parser = duration)]
    timeout: Duration,
}

impl ObjectArgs {
    /// The key's bytes.
    pub fn key(&self) -> &[u8] {
        self.key.as_bytes()
    }

    /// Connects, with room for one object of the server's store.
    pub fn connect(&self) -> Result<Client> {
        let options = ClientOptions {
            depth: 1,
            token: read_token(self.token_file.as_deref())?,
            pages: Pages::Base,
            local: self.bind,
            timeout: self.timeout,
            ..ClientOptions::default()
        };
        Client::connect_to_store(&self.connect, &options)
    }
}
