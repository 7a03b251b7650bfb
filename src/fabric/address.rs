//! Names of servers: `tcp://host:port`, `rdma://host:port`, and `host:port` to listen on.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use crate::error::{Context, Error, Kind, Result};

/// Which fabric carries a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricKind {
    /// Sockets of the kernel.
    Tcp,
    /// Verbs, connected by rdma_cm.
    Rdma,
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FabricKind::Tcp => "tcp",
            FabricKind::Rdma => "rdma",
        })
    }
}

impl FromStr for FabricKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "tcp" => Ok(FabricKind::Tcp),
            "rdma" => Ok(FabricKind::Rdma),
            _ => {
                Err(Error::usage(format!("\"{text}\" is not a fabric"))
                    .remedy("choose tcp or rdma"))
            }
        }
    }
}

/// A host and a port, and the fabric where it is named. Nothing is resolved yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// The fabric before `://`, if there is one.
    pub fabric: Option<FabricKind>,
    /// Host name or address; an IPv6 address has no brackets here.
    pub host: String,
    /// Port; 0 lets the system choose one to listen on.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fabric) = self.fabric {
            write!(f, "{fabric}://")?;
        }
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |what: &str| {
            Error::usage(format!("\"{text}\" is not an address: {what}"))
                .remedy("write host:port, [IPv6]:port, tcp://host:port or rdma://host:port")
        };
        let (fabric, rest) = match text.split_once("://") {
            Some((fabric, rest)) => (Some(fabric.parse()?), rest),
            None => (None, text),
        };
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, port) =
                    rest.split_once("]:").ok_or_else(|| wrong("\"]:port\" is missing"))?;
                host.parse::<std::net::Ipv6Addr>()
                    .map_err(|_| wrong("what the brackets hold is not an IPv6 address"))?;
                (host, port)
            }
            None => rest.rsplit_once(':').ok_or_else(|| wrong("the port is missing"))?,
        };
        if host.is_empty() {
            return Err(wrong("the host is missing"));
        }
        if host.contains(':') && !rest.starts_with('[') {
            return Err(wrong("an IPv6 address needs brackets"));
        }
        if host.contains(['/', ' ', ',']) {
            return Err(wrong("the host has a character that no host name has"));
        }
        let port = port.parse().map_err(|_| wrong("the port is not a number up to 65535"))?;
        Ok(Self { fabric, host: host.to_owned(), port })
    }
}

impl Address {
    /// Reads a list with commas between its addresses.
    pub fn parse_list(text: &str) -> Result<Vec<Self>> {
        text.split(',').map(|part| part.trim().parse()).collect()
    }

    /// The socket addresses of it, at least one. It may ask a name server: not for a worker.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>> {
        let remedy = || format!("check the name: `getent hosts {}`", self.host);
        let found: Vec<_> = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .context(|| format!("cannot resolve the host \"{}\"", self.host))
            .map_err(|e| e.remedy(remedy()))?
            .collect();
        if found.is_empty() {
            let what = format!("the host \"{}\" has no address", self.host);
            return Err(Error::new(Kind::NotFound, what).remedy(remedy()));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_addresses_round_trip() {
        for text in [
            "tcp://node7:4420",
            "rdma://10.0.0.1:4420",
            "localhost:0",
            "[::1]:4420",
            "tcp://[fe80::1]:1",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let v6: Address = "tcp://[::1]:9".parse().unwrap();
        assert_eq!((v6.fabric, v6.host.as_str(), v6.port), (Some(FabricKind::Tcp), "::1", 9));
        assert_eq!(v6.resolve().unwrap(), ["[::1]:9".parse().unwrap()]);
        assert_eq!(Address::parse_list("a:1, tcp://b:2").unwrap().len(), 2);
    }

    #[test]
    fn wrong_addresses_say_why() {
        for (text, why) in [
            ("node7", "port is missing"),
            (":4420", "host is missing"),
            ("node7:70000", "up to 65535"),
            ("node7:", "up to 65535"),
            ("::1:4420", "needs brackets"),
            ("[::1]", "\"]:port\" is missing"),
            ("[nope]:1", "not an IPv6"),
            ("http://x:1", "not a fabric"),
            ("tcp://a/b:1", "character"),
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.what().contains(why), "{text}: {error}");
            assert!(error.remedy_text().is_some());
        }
        assert!(Address::parse_list("a:1,,b:2").is_err());
    }

    #[test]
    fn an_unknown_host_is_named() {
        let error = "no-such-host.invalid:1".parse::<Address>().unwrap().resolve().unwrap_err();
        assert!(error.what().contains("no-such-host.invalid"), "{error}");
    }
}
