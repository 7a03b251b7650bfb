//! What the kernel knows of a socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes given to a TCP socket that the peer's kernel has not acknowledged; the end of the stream,
/// once announced, counts as one (tcp(7), SIOCOUTQ, which is TIOCOUTQ).
///
/// # Errors
///
/// Where it is not a connected socket.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: this request writes one int to the address, and nothing else.
    let done = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(bytes.max(0) as usize) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_the_peer_has_is_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        // More than the peer's kernel takes while nobody reads.
        let mut sent = 0;
        while let Ok(n) = near.write(&[0; 1 << 16]) {
            sent += n;
        }
        assert!(unacknowledged(&near).unwrap() > 0);
        let mut rest = vec![0; sent];
        far.read_exact(&mut rest).unwrap();
        while unacknowledged(&near).unwrap() > 0 {
            std::thread::yield_now();
        }
        assert!(unacknowledged(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
