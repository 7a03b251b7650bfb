//! Tells the service manager how far this program is: datagrams to the socket that
//! `$NOTIFY_SOCKET` names (sd_notify(3), "Notes", which fixes the protocol).

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::error::{Context, Result};

/// A way to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notifier(Option<(UnixDatagram, SocketAddr)>);

impl Notifier {
    /// To the manager that started this program, as the environment says. Does nothing where none
    /// did.
    ///
    /// # Errors
    ///
    /// Where the environment names a socket that cannot be one.
    pub fn from_env() -> Result<Self> {
        std::env::var_os("NOTIFY_SOCKET").map_or_else(|| Ok(Self::default()), |n| Self::to(&n))
    }

    /// To a socket by its path, or by its abstract name after `@`.
    pub fn to(name: &OsStr) -> Result<Self> {
        let what = || format!("cannot notify by NOTIFY_SOCKET={}", name.to_string_lossy());
        let address = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
            _ => SocketAddr::from_pathname(name),
        };
        let socket = UnixDatagram::unbound().context(what)?;
        // A manager that is stuck must not stop the server with it.
        socket.set_nonblocking(true).context(what)?;
        Ok(Self(Some((socket, address.context(what)?))))
    }

    /// Clients can connect.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// The configuration is being read again; [`Notifier::ready`] follows. Carries the monotonic
    /// time in microseconds, as a manager of `Type=notify-reload` asks for.
    pub fn reloading(&self) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", super::affinity::monotonic_us()));
    }

    /// Requests in flight are being finished.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=finishing requests in flight");
    }

    /// A manager that does not listen is its own trouble: it is logged, and the server goes on.
    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.0
            && let Err(error) = socket.send_to_addr(text.as_bytes(), address)
        {
            log::warn!("the service manager was not told {text:?}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    #[test]
    fn a_path_and_an_abstract_name_are_reached() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::to(path.as_os_str()).unwrap();
        notifier.ready("2 shards");
        assert_eq!(heard(&by_path), "READY=1\nSTATUS=2 shards");
        notifier.reloading();
        let text = heard(&by_path);
        let stamp = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(stamp.parse::<u64>().unwrap() > 0, "{text}");
        notifier.stopping();
        assert!(heard(&by_path).starts_with("STOPPING=1\n"));

        let name = format!("millrace-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        Notifier::to(OsStr::new(&format!("@{name}"))).unwrap().ready("x");
        assert_eq!(heard(&by_name), "READY=1\nSTATUS=x");
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        Notifier::default().ready("nobody hears");
        Notifier::to(OsStr::new("/nonexistent/socket")).unwrap().ready("nor here");
        let long = "/x".repeat(200);
        assert!(Notifier::to(OsStr::new(&long)).is_err());
    }
}
