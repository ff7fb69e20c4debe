//! The socket that trainers connect to: its setup, its access control, and a thread for each connection.

use std::cell::Cell;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use sumac_api::{Channel, Code, Failure, FrameError, Outbound};
use sumac_datapath::monotonic_ns;
use sumac_host::{ConnectionId, Credentials};

use crate::access::{self, UnknownPrincipal, gid};
use crate::arena::SessionHandle;
use crate::config::Config;
use crate::core::Core;
use crate::outbox::{Notification, Outbox};
use crate::peer_process::PeerProcess;
use crate::session::{Session, operations_that_fit};
use crate::stats::StatsSource;
use crate::sync::Event;

/// The length of the kernel's queue of connections that are not accepted yet.
const BACKLOG: i32 = 64;
/// The pause of the accepting thread when the process has no descriptors or threads left.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The pause after a refused connection, so that a flood of them takes little of a CPU.
const REFUSAL_PAUSE: Duration = Duration::from_millis(1);
/// The time for sessions to end when the daemon stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("another daemon serves {0}; stop it first, or give this one a `socket` of its own")]
    Taken(PathBuf),
    #[error("{0} is there and is no socket; remove it, or set another `socket`")]
    NotASocket(PathBuf),
    #[error("{path} is a socket that is not a dead daemon's ({source}); remove it, or set another `socket`")]
    Foreign { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Path(#[from] FrameError),
    #[error(transparent)]
    Group(#[from] UnknownPrincipal),
    #[error("cannot {doing} {path}: {source}; see `socket` in the configuration")]
    System { doing: &'static str, path: PathBuf, source: std::io::Error },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptMode {
    Running,
    /// Connections wait in the kernel's queue.
    Frozen,
    Stopped,
}

/// Whether the accepting thread accepts. It holds the lock while it does.
#[derive(Debug)]
struct AcceptGate {
    mode: Mutex<AcceptMode>,
    changed: Condvar,
    wake: Event,
}

impl AcceptGate {
    fn new(mode: AcceptMode) -> std::io::Result<AcceptGate> {
        let (mode, changed) = (Mutex::new(mode), Condvar::new());
        Ok(AcceptGate { mode, changed, wake: Event::new()? })
    }

    fn lock(&self) -> MutexGuard<'_, AcceptMode> {
        self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the mode; the thread accepts no connection in between.
    fn set(&self, mode: AcceptMode) {
        self.wake.signal();
        *self.lock() = mode;
        self.changed.notify_all();
    }

    /// Waits for a connection. Returns `false` when the thread is to end.
    fn wait(&self, listener: &OwnedFd) -> bool {
        let frozen = |mode: &mut AcceptMode| *mode == AcceptMode::Frozen;
        let mode = self.changed.wait_while(self.lock(), frozen).unwrap_or_else(PoisonError::into_inner);
        if *mode == AcceptMode::Stopped {
            return false;
        }
        drop(mode);
        let mut poll = [PollFd::new(listener, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
        // After an error the caller's accept fails, and it tries again.
        let _ = rustix::event::poll(&mut poll, None);
        if !poll[1].revents().is_empty() {
            self.wake.reset();
        }
        true
    }
}

#[derive(Debug)]
pub(crate) struct Server {
    core: Arc<Core>,
    path: PathBuf,
    pub(crate) listener: Arc<OwnedFd>,
    gate: Arc<AcceptGate>,
    thread: JoinHandle<()>,
}

impl Server {
    pub(crate) fn start(sessions: Sessions, listener: OwnedFd) -> Result<Server, ServeError> {
        Server::begin(sessions, listener, AcceptMode::Running)
    }

    /// Continues with another daemon's socket after [`Server::thaw`].
    pub(crate) fn resume(sessions: Sessions, listener: OwnedFd) -> Result<Server, ServeError> {
        Server::begin(sessions, listener, AcceptMode::Frozen)
    }

    fn begin(sessions: Sessions, listener: OwnedFd, mode: AcceptMode) -> Result<Server, ServeError> {
        let (path, listener) = (sessions.config.socket.clone(), Arc::new(listener));
        // A client may end its connection between poll and accept; the latter shall not wait for the next
        // one.
        rustix::io::ioctl_fionbio(&listener, true).map_err(system("configure the socket", &path))?;
        let gate = Arc::new(AcceptGate::new(mode).map_err(system("make an eventfd for", &path))?);
        let core = sessions.core.clone();
        let acceptor = Acceptor { sessions, listener: listener.clone(), gate: gate.clone() };
        let thread = std::thread::Builder::new().name("sumac-accept".into()).spawn(move || acceptor.run());
        let thread = thread.map_err(system("start the thread that accepts at", &path))?;
        tracing::info!(socket = %path.display(), "listening for trainers");
        Ok(Server { core, path, listener, gate, thread })
    }

    /// Accepts no connection until [`Server::thaw`].
    pub(crate) fn freeze(&self) {
        self.gate.set(AcceptMode::Frozen);
    }

    pub(crate) fn thaw(&self) {
        self.gate.set(AcceptMode::Running);
    }

    /// Ends, and leaves socket and connections to another daemon.
    pub(crate) fn hand_over(self) {
        self.gate.set(AcceptMode::Stopped);
        let _ = self.thread.join();
    }

    pub(crate) fn stop(self) {
        self.gate.set(AcceptMode::Stopped);
        // Connections that wait are refused.
        let _ = rustix::net::shutdown(&self.listener, Shutdown::Both);
        // A panic of the thread has been printed.
        let _ = self.thread.join();
        // Before the sessions end, so that a trainer that reconnects at once is refused by the kernel.
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
        self.core.notify_sessions(|| Notification::Stop);
        let deadline = Instant::now() + STOP_TIMEOUT;
        while !self.core.outboxes().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub(crate) fn system<E: Into<std::io::Error>>(
    doing: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> ServeError {
    let path = path.to_owned();
    move |source| ServeError::System { doing, path, source: source.into() }
}

/// The users that the kernel lets connect to the socket.
pub(crate) struct Permissions {
    mode: u32,
    /// `None`: the group of the daemon's process.
    group: Option<u32>,
}

impl Permissions {
    pub(crate) fn of(config: &Config) -> Result<Permissions, UnknownPrincipal> {
        let group = config.socket_group.as_ref().map(|group| gid(group, "socket_group")).transpose()?;
        Ok(Permissions { mode: config.mode_bits().unwrap_or(0o600), group })
    }
}

/// Creates the listening socket; the socket of a dead daemon is replaced.
pub(crate) fn listen(path: &Path, permissions: &Permissions) -> Result<OwnedFd, ServeError> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(system("create the directory", parent))?;
    }
    remove_stale(path)?;
    let address = SocketAddrUnix::new(path).map_err(system("listen at", path))?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)
        .map_err(system("create the socket", path))?;
    rustix::net::bind(&socket, &address).map_err(system("bind", path))?;
    // Before `listen`, so that no trainer connects under the permissions of the umask.
    if let Some(group) = permissions.group {
        rustix::fs::chown(path, None, Some(rustix::fs::Gid::from_raw(group)))
            .map_err(system("give its group (`socket_group`) to", path))?;
    }
    rustix::fs::chmod(path, Mode::from_bits_truncate(permissions.mode))
        .map_err(system("set the permissions of", path))?;
    rustix::net::listen(&socket, BACKLOG).map_err(system("listen at", path))?;
    Ok(socket)
}

/// Removes a socket that no process serves.
fn remove_stale(path: &Path) -> Result<(), ServeError> {
    use std::os::unix::fs::FileTypeExt;

    match std::fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(found) if !found.file_type().is_socket() => return Err(ServeError::NotASocket(path.to_owned())),
        Ok(_) => {}
    }
    match Channel::connect(path) {
        Ok(_) => Err(ServeError::Taken(path.to_owned())),
        // Only this error shows that no process listens. A socket of another type or user may be in use.
        Err(FrameError::Connect { source, .. }) if source.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(system("remove the stale", path))
        }
        Err(FrameError::Connect { source, .. }) => Err(ServeError::Foreign { path: path.to_owned(), source }),
        Err(error) => Err(error.into()),
    }
}

/// Checks whether a user may connect. `own`: the daemon's user.
fn check_user(uid: u32, own: u32, allowed: Option<&[u32]>) -> Result<(), Failure> {
    match allowed {
        // Without a list the socket's permissions have decided.
        Some(allowed) if uid != 0 && uid != own && !allowed.contains(&uid) => {
            Err(Failure::new(Code::Denied, format!("user {uid} may not use this daemon"))
                .hint("add the uid to allow_uids in the daemon's configuration"))
        }
        _ => Ok(()),
    }
}

struct Acceptor {
    sessions: Sessions,
    listener: Arc<OwnedFd>,
    gate: Arc<AcceptGate>,
}

impl Acceptor {
    fn run(self) {
        let gate = self.gate.clone();
        while gate.wait(&self.listener) {
            let mode = gate.lock();
            if *mode != AcceptMode::Running {
                continue;
            }
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.accept(socket),
                Err(Errno::INTR | Errno::CONNABORTED | Errno::AGAIN) => {}
                // Shut down by [`Server::stop`].
                Err(Errno::INVAL) => return,
                Err(errno) => {
                    log_limited!(error, %errno, "cannot accept a trainer; are there too many open files?");
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
        }
    }

    fn accept(&self, socket: OwnedFd) {
        let channel = Channel::from_socket(socket);
        let session = match self.admit(&channel) {
            Ok(admitted) => admitted,
            Err(failure) => {
                log_limited!(warn, %failure, "a connection was refused");
                if let Ok(bytes) = Outbound::failed(None, failure).encode() {
                    // The connection ends in any case.
                    let _ = channel.try_send(&bytes, &[]);
                }
                std::thread::sleep(REFUSAL_PAUSE);
                return;
            }
        };
        let (connection, credentials, outbox) = session;
        self.sessions.session(connection, credentials, Arc::new(channel), outbox).start();
    }

    /// Checks the process at the other end of a connection (SO_PEERCRED), and creates its outbox.
    fn admit(&self, channel: &Channel) -> Result<(ConnectionId, Credentials, Arc<Outbox>), Failure> {
        let peer = getsockopt(channel, PeerCredentials).map_err(|error| {
            Failure::new(Code::Internal, format!("cannot read the credentials of the connection: {error}"))
        })?;
        let own = rustix::process::geteuid().as_raw();
        check_user(peer.uid(), own, self.sessions.config.allow_uids.as_deref())?;
        let outbox =
            Outbox::new().map_err(|error| Failure::new(Code::Limit, format!("no eventfd: {error}")))?;
        let credentials = access::credentials(peer.pid(), peer.uid(), peer.gid());
        let operations = operations_that_fit(channel);
        let now = monotonic_ns();
        let connection =
            self.sessions.core.call(|host, _, _| host.connect(now, credentials.clone(), operations))?;
        Ok((connection, credentials, Arc::new(outbox)))
    }
}

/// The parts of the daemon that sessions use.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    pub(crate) config: Arc<Config>,
    pub(crate) core: Arc<Core>,
    pub(crate) stats: Arc<StatsSource>,
}

impl Sessions {
    /// Returns the session of a connection that the core has.
    pub(crate) fn session(
        &self,
        connection: ConnectionId,
        credentials: Credentials,
        channel: Arc<Channel>,
        outbox: Arc<Outbox>,
    ) -> Session {
        let handle = SessionHandle { channel: channel.clone(), outbox: outbox.clone() };
        self.core.call(|_, arena, _| drop(arena.sessions.insert(connection, handle)));
        let (core, stats) = (self.core.clone(), self.stats.clone());
        let peer = PeerProcess::of(&channel, credentials.pid);
        Session {
            core,
            stats,
            channel,
            outbox,
            connection,
            credentials,
            peer,
            is_frozen: false,
            // Of another daemon's session, perhaps.
            has_unchecked_pages: Cell::new(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stale_socket_is_replaced() {
        let directory = std::env::temp_dir().join(format!("sumac-server-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("s.sock");
        let daemon = listen(&path, &Permissions { mode: 0o600, group: None }).unwrap();
        assert!(matches!(remove_stale(&path), Err(ServeError::Taken(_))));
        drop(daemon);
        remove_stale(&path).unwrap();
        assert!(!path.exists(), "a stale socket is removed");
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(matches!(remove_stale(&path), Err(ServeError::Foreign { .. })), "another program's stays");
        assert!(path.exists());
        drop(other);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_list_of_users_does_not_concern_root_and_the_daemons_user() {
        let cases = [
            ("no list", 7, None, true),
            ("listed", 7, Some(&[6, 7][..]), true),
            ("not listed", 8, Some(&[6, 7][..]), false),
            ("root", 0, Some(&[][..]), true),
            ("the daemon's user", 5, Some(&[][..]), true),
        ];
        for (name, uid, allowed, is_allowed) in cases {
            assert_eq!(check_user(uid, 5, allowed).is_ok(), is_allowed, "{name}");
        }
    }
}
