//! Accepts connections and hands them to the workers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use zerocopy::IntoBytes;

use super::connection::Connection;
use super::{TcpEndpoint, TcpOptions, configure};
use crate::error::{Context, Error, Kind, Result};
use crate::fabric::address::FabricKind;
use crate::fabric::handshake::{ServerHandshake, nonce};
use crate::fabric::{EndpointConfig, Listener};
use crate::memory::Arena;
use crate::wire::{Reason, Reject};

/// Connections that may wait to be accepted; the kernel lowers it to net.core.somaxconn.
const BACKLOG: i32 = 1024;

/// How often the listener looks whether it shall stop.
const TICK: Duration = Duration::from_millis(50);

/// How long a refused peer may take to read why, and others their last answers.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// Refused peers that may be reading at once; more are closed without waiting.
const MAX_LINGERING: usize = 64;

/// What the listener and one worker share. A worker looks at `waiting` once a turn; the locks
/// are taken only where a connection comes or goes.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) config: EndpointConfig,
    pub(super) options: TcpOptions,
    /// Connections in `arrivals`.
    waiting: AtomicUsize,
    /// `None` once the endpoint is gone: what was put in then would never be taken out.
    #[expect(clippy::vec_box, reason = "the boxes are what is handed over and reused")]
    arrivals: Mutex<Option<Vec<Box<Connection>>>>,
    /// Memory of connections that have ended.
    #[expect(clippy::vec_box, reason = "as above")]
    retired: Mutex<Vec<Box<Connection>>>,
    /// Connections given to the worker that it has not retired.
    assigned: AtomicUsize,
    refusing: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each critical section is one push or pop, which leaves the list whole whatever happens.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mailbox {
    pub(super) fn new(config: EndpointConfig, options: TcpOptions) -> Self {
        let most = config.max_connections;
        Self {
            config,
            options,
            waiting: AtomicUsize::new(0),
            arrivals: Mutex::new(Some(Vec::with_capacity(most))),
            retired: Mutex::new(Vec::with_capacity(most)),
            assigned: AtomicUsize::new(0),
            refusing: AtomicBool::new(false),
        }
    }

    /// The next connection for the worker. One atomic load when there is none.
    pub(super) fn take(&self) -> Option<Box<Connection>> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let connection = lock(&self.arrivals).as_mut()?.pop()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(connection)
    }

    /// Gives back the memory of a connection that has ended.
    pub(super) fn retire(&self, connection: Box<Connection>) {
        lock(&self.retired).push(connection);
        self.assigned.fetch_sub(1, Ordering::Release);
    }

    /// From now on nothing new is wanted.
    pub(super) fn refuse(&self) {
        self.refusing.store(true, Ordering::Release);
    }

    /// Ends the mailbox; what is in it is for the caller to refuse.
    #[expect(clippy::vec_box, reason = "as above")]
    pub(super) fn close(&self) -> Vec<Box<Connection>> {
        self.refuse();
        lock(&self.arrivals).take().unwrap_or_default()
    }

    pub(super) fn is_refusing(&self) -> bool {
        self.refusing.load(Ordering::Acquire)
    }

    fn has_room(&self) -> bool {
        self.assigned.load(Ordering::Acquire) < self.config.max_connections
    }

    /// Hands a connection over. Gives it back where the mailbox is closed.
    pub(super) fn give(&self, stream: TcpStream) -> Result<Option<TcpStream>> {
        let spare = lock(&self.retired).pop();
        let mut connection = spare.unwrap_or_else(|| Connection::new(self.config.credits));
        let handshake =
            ServerHandshake::new(self.config.token.current(), nonce()?, self.config.welcome);
        connection.start(stream, handshake, Instant::now() + self.config.handshake_timeout);
        let mut arrivals = lock(&self.arrivals);
        let Some(arrivals) = arrivals.as_mut() else { return Ok(connection.stream.take()) };
        self.assigned.fetch_add(1, Ordering::Relaxed);
        arrivals.push(connection);
        self.waiting.fetch_add(1, Ordering::Release);
        Ok(None)
    }
}

/// Listens on one address for all workers.
#[derive(Debug)]
pub struct TcpListener {
    socket: std::net::TcpListener,
    local: SocketAddr,
    options: TcpOptions,
    workers: Mutex<Vec<Arc<Mailbox>>>,
}

impl TcpListener {
    /// Listens on `address`; with port 0 the system chooses one.
    ///
    /// # Errors
    ///
    /// The port is in use, is privileged, or the address is not of this machine.
    pub fn bind(address: SocketAddr, options: TcpOptions) -> Result<Self> {
        let socket = listen(address, &options)
            .context(|| format!("cannot listen on {address}"))
            .map_err(|e| bind_remedy(e, address))?;
        let local = socket.local_addr().context(|| format!("cannot listen on {address}"))?;
        Ok(Self { socket, local, options, workers: Mutex::new(Vec::new()) })
    }

    fn accept_all(&self, turn: &mut usize, refused: &mut Vec<(TcpStream, Instant)>) -> Result<()> {
        loop {
            match self.socket.accept() {
                Ok((stream, peer)) => {
                    if let Err(error) = self.assign(stream, turn, refused) {
                        log::warn!("{peer}: cannot be set up: {}", error.report());
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => match e.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                        log::warn!(
                            "cannot accept a connection: {e}; raise the limit of open files \
                             (ulimit -n) above the number of connections"
                        );
                        return Ok(());
                    }
                    Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EOPNOTSUPP) => {
                        return Err(e).context(|| format!("cannot accept on {}", self.local));
                    }
                    // Whatever else accept(2) reports is the fate of one connection.
                    _ => continue,
                },
            }
        }
    }

    /// Gives the connection to the next worker that has room.
    fn assign(
        &self,
        mut stream: TcpStream,
        turn: &mut usize,
        refused: &mut Vec<(TcpStream, Instant)>,
    ) -> Result<()> {
        stream.set_nonblocking(true).context(|| "cannot make a socket nonblocking".into())?;
        configure(&stream).context(|| "cannot set the options of a socket".into())?;
        let workers = lock(&self.workers);
        for step in 0..workers.len() {
            let place = (*turn + step) % workers.len();
            let worker = &workers[place];
            if !worker.is_refusing() && worker.has_room() {
                *turn = place + 1;
                match worker.give(stream)? {
                    None => return Ok(()),
                    // Its endpoint went a moment ago.
                    Some(back) => stream = back,
                }
            }
        }
        let stopping = workers.iter().all(|worker| worker.is_refusing());
        let reason = if stopping { Reason::Stopping } else { Reason::Full };
        if (&stream).write(Reject::new(reason).as_bytes()).is_ok()
            && stream.shutdown(Shutdown::Write).is_ok()
            && refused.len() < MAX_LINGERING
        {
            refused.push((stream, Instant::now() + LINGER));
        }
        Ok(())
    }
}

/// Reads what refused peers still say, until they are done. Closing a socket that holds unread
/// bytes resets the connection, and then a peer may never read why it was refused.
fn drain_refused(refused: &mut Vec<(TcpStream, Instant)>) {
    let mut scrap = [0; 256];
    let now = Instant::now();
    refused.retain_mut(|(stream, until)| {
        let open = match stream.read(&mut scrap) {
            Ok(n) => n > 0,
            Err(e) => e.kind() == ErrorKind::WouldBlock,
        };
        open && now < *until
    });
}

fn listen(address: SocketAddr, options: &TcpOptions) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restarted server may have connections of its predecessor in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if let Some(bytes) = options.send_buffer {
        // Accepted sockets inherit it.
        SockRef::from(&socket).set_send_buffer_size(bytes)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

fn bind_remedy(error: Error, address: SocketAddr) -> Error {
    let port = address.port();
    let remedy = match error.kind() {
        Kind::Resource => format!(
            "another program has port {port}: see which with `ss -ltnp sport = :{port}`, or \
             choose another port"
        ),
        Kind::Denied => format!("ports below 1024 are for root: run as root, or not on {port}"),
        _ => format!("{} must be an address of this machine: see `ip address`", address.ip()),
    };
    error.remedy(remedy)
}

impl Listener for TcpListener {
    type Endpoint = TcpEndpoint;

    fn endpoint(&self, config: EndpointConfig, arena: &Arc<Arena>) -> Result<TcpEndpoint> {
        let mailbox = Arc::new(Mailbox::new(config, self.options.clone()));
        let endpoint = TcpEndpoint::new(Arc::clone(&mailbox), arena)?;
        lock(&self.workers).push(mailbox);
        Ok(endpoint)
    }

    fn fabric(&self) -> FabricKind {
        FabricKind::Tcp
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn run(&self, stop: &AtomicBool) -> Result<()> {
        let what = || format!("cannot wait for connections on {}", self.local);
        let mut poll = Poll::new().context(what)?;
        let mut events = Events::with_capacity(4);
        poll.registry()
            .register(&mut SourceFd(&self.socket.as_raw_fd()), Token(0), Interest::READABLE)
            .context(what)?;
        let mut turn = 0;
        let mut refused = Vec::with_capacity(MAX_LINGERING);
        while !stop.load(Ordering::Acquire) {
            // Without an event too: after EMFILE no new edge comes for those that still wait.
            self.accept_all(&mut turn, &mut refused)?;
            drain_refused(&mut refused);
            match poll.poll(&mut events, Some(TICK)) {
                Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e).context(what),
                _ => {}
            }
        }
        Ok(())
    }
}
