//! Answers GET /metrics: one thread, a fixed number of connections, nothing kept between them.
//!
//! The common small server crates start a thread for each connection. Threads that come and go map
//! and unmap their stacks, and every unmapping makes the kernel interrupt all cores of the process,
//! the workers' among them (a TLB shootdown). So this is one loop over sockets that do not block,
//! with buffers that are made once.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};

use super::metrics::{CONTENT_TYPE, render};
use super::run::View;
use crate::error::{Context, Result};

/// Connections at once; more wait in the backlog until one ends.
const CONNECTIONS: usize = 8;

/// Most bytes of a request; those of Prometheus have about 300.
const MOST: usize = 4096;

/// Time that a connection has from its acceptance to its last byte.
const LIMIT: Duration = Duration::from_secs(5);

/// How often the loop looks at limits and at the stop flag.
const TICK: Duration = Duration::from_millis(100);

const LISTENER: Token = Token(CONNECTIONS);

/// A running responder. Dropping it stops it.
#[derive(Debug)]
pub struct MetricsServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
}

impl MetricsServer {
    /// Listens on `address` and shows `view` to whoever asks.
    ///
    /// # Errors
    ///
    /// `Resource` where the port is in use; else what the system says.
    pub fn start(address: SocketAddr, view: Arc<View>) -> Result<Self> {
        let what = || format!("cannot show metrics on {address}");
        let socket = TcpListener::bind(address).context(what)?;
        socket.set_nonblocking(true).context(what)?;
        let address = socket.local_addr().context(what)?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut responder = Responder::new(socket, view).context(what)?;
        let asked = Arc::clone(&stop);
        let thread = Builder::new()
            .name("metrics".into())
            .spawn(move || {
                while !asked.load(Ordering::Relaxed) {
                    responder.turn();
                }
            })
            .context(what)?;
        Ok(Self { stop, thread: Some(thread), address })
    }

    /// The address that is listened on, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the metrics thread panicked; see its message");
        }
    }
}

/// A connection: its request so far, then its answer.
struct Visitor {
    stream: Option<TcpStream>,
    until: Instant,
    request: Vec<u8>,
    answer: String,
    /// Bytes of the answer that are sent; `None` while the request is incomplete.
    sent: Option<usize>,
}

struct Responder {
    socket: TcpListener,
    view: Arc<View>,
    poll: Poll,
    events: Events,
    visitors: Vec<Visitor>,
    page: String,
}

impl Responder {
    fn new(socket: TcpListener, view: Arc<View>) -> std::io::Result<Self> {
        let poll = Poll::new()?;
        let readable = Interest::READABLE;
        poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), LISTENER, readable)?;
        let visitor = || Visitor {
            stream: None,
            until: Instant::now(),
            request: Vec::with_capacity(MOST),
            answer: String::new(),
            sent: None,
        };
        let visitors = (0..CONNECTIONS).map(|_| visitor()).collect();
        let events = Events::with_capacity(CONNECTIONS + 1);
        Ok(Self { socket, view, poll, events, visitors, page: String::new() })
    }

    fn turn(&mut self) {
        if let Err(error) = self.poll.poll(&mut self.events, Some(TICK))
            && error.kind() != ErrorKind::Interrupted
        {
            log::error!("metrics: cannot wait for connections: {error}");
            std::thread::sleep(TICK);
        }
        // Who waits in the backlog raises no new edge when a place becomes free.
        self.accept();
        let now = Instant::now();
        for place in 0..CONNECTIONS {
            let visitor = &mut self.visitors[place];
            if visitor.stream.is_some()
                && (visitor.is_done(&self.view, &mut self.page) || now >= visitor.until)
            {
                visitor.end(self.poll.registry());
            }
        }
    }

    fn accept(&mut self) {
        while let Some(place) = self.visitors.iter().position(|v| v.stream.is_none()) {
            let Ok((stream, _)) = self.socket.accept() else { return };
            let both = Interest::READABLE | Interest::WRITABLE;
            let registry = self.poll.registry();
            let ready = stream.set_nonblocking(true).and_then(|()| {
                registry.register(&mut SourceFd(&stream.as_raw_fd()), Token(place), both)
            });
            match ready {
                Ok(()) => self.visitors[place].begin(stream),
                Err(error) => log::warn!("metrics: a connection cannot be set up: {error}"),
            }
        }
    }
}

impl Visitor {
    fn begin(&mut self, stream: TcpStream) {
        self.stream = Some(stream);
        self.until = Instant::now() + LIMIT;
        self.request.clear();
        self.answer.clear();
        self.sent = None;
    }

    fn end(&mut self, registry: &Registry) {
        if let Some(stream) = self.stream.take()
            && let Err(error) = registry.deregister(&mut SourceFd(&stream.as_raw_fd()))
        {
            log::debug!("metrics: {error}");
        }
    }

    /// Goes on as far as the socket lets it. True once nothing is left to do.
    fn is_done(&mut self, view: &View, page: &mut String) -> bool {
        if self.sent.is_none() {
            match self.read() {
                Some(status) => self.reply(status, view, page),
                None => return self.stream.is_none(),
            }
        }
        self.write()
    }

    /// Reads on. The status to answer with, once that is clear; ends a connection that has failed.
    fn read(&mut self) -> Option<&'static str> {
        let mut bytes = [0; 512];
        loop {
            match self.stream.as_mut()?.read(&mut bytes) {
                Ok(0) => return self.fail(),
                Ok(count) => self.request.extend_from_slice(&bytes[..count]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return None,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.fail(),
            }
            if self.request.windows(4).any(|end| end == b"\r\n\r\n") {
                return Some(judge(&self.request));
            }
            if self.request.len() > MOST - bytes.len() {
                return Some("431 Request Header Fields Too Large");
            }
        }
    }

    fn fail(&mut self) -> Option<&'static str> {
        self.stream = None;
        None
    }

    fn reply(&mut self, status: &'static str, view: &View, page: &mut String) {
        page.clear();
        match status.starts_with("200") {
            true => render(view, page),
            false => page.push_str(status),
        }
        let kind = if status.starts_with("200") { CONTENT_TYPE } else { "text/plain" };
        self.answer.push_str("HTTP/1.1 ");
        self.answer.push_str(status);
        self.answer.push_str("\r\nContent-Type: ");
        self.answer.push_str(kind);
        self.answer.push_str(&format!("\r\nContent-Length: {}", page.len()));
        self.answer.push_str("\r\nConnection: close\r\n\r\n");
        // The answer to HEAD has the length of a body that it does not have.
        if !self.request.starts_with(b"HEAD ") {
            self.answer.push_str(page);
        }
        self.sent = Some(0);
    }

    /// Sends on. True once all is sent, or nothing more can be.
    fn write(&mut self) -> bool {
        let (Some(stream), Some(sent)) = (self.stream.as_mut(), self.sent.as_mut()) else {
            return true;
        };
        while *sent < self.answer.len() {
            match stream.write(&self.answer.as_bytes()[*sent..]) {
                Ok(0) => return true,
                Ok(count) => *sent += count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
        // What the peer still sends would turn closing into a reset, and the answer be lost. Who
        // sends without end loses it.
        if stream.shutdown(std::net::Shutdown::Write).is_err() {
            return true;
        }
        let mut scrap = [0; MOST];
        match stream.read(&mut scrap) {
            Ok(count) => count == 0 || count == scrap.len(),
            Err(e) => e.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// The status that a whole request is answered with.
fn judge(request: &[u8]) -> &'static str {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let Ok(line) = std::str::from_utf8(line) else { return "400 Bad Request" };
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else { return "400 Bad Request" };
    if !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
        return "400 Bad Request";
    }
    if !matches!(method, "GET" | "HEAD") {
        return "405 Method Not Allowed";
    }
    match target.split('?').next() {
        Some("/metrics" | "/") => "200 OK",
        _ => "404 Not Found",
    }
}

#[cfg(test)]
mod tests;
