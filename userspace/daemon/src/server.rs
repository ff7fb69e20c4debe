//! The socket that trainers connect to: its setup, its access control, and a thread for each connection.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sumac_api::{Channel, Code, Failure, FrameError, Outbound};

use crate::session::{Credentials, Notification, Session};
use crate::state::DaemonState;
use crate::wake_queue::WakeQueue;

/// The limit of connections: each has a thread.
const MAX_CLIENTS: u32 = 256;
/// The length of the kernel's queue of connections that are not accepted yet.
const BACKLOG: i32 = 64;
/// The pause of the accepting thread when the process has no descriptors or threads left.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The time for sessions to end when the daemon stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Reasons that the socket cannot be served.
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
    #[error("cannot {doing} {path}: {source}; see `socket` in the configuration")]
    System { doing: &'static str, path: PathBuf, source: std::io::Error },
}

/// The notification queues of all sessions, by connection.
#[derive(Clone, Debug, Default)]
struct Sessions(Arc<Mutex<HashMap<u64, Weak<WakeQueue<Notification>>>>>);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Weak<WakeQueue<Notification>>>> {
        // Every statement leaves the map whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The listening socket and its thread.
#[derive(Debug)]
pub(crate) struct Server {
    daemon: Arc<DaemonState>,
    path: PathBuf,
    stop: Arc<OwnedFd>,
    sessions: Sessions,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at the configured path.
    pub(crate) fn start(daemon: Arc<DaemonState>) -> Result<Server, ServeError> {
        let path = daemon.config.socket.clone();
        let listener = listen(&path, daemon.config.mode_bits().unwrap_or(0o600))?;
        let system = |doing| {
            let path = path.clone();
            move |source: std::io::Error| ServeError::System { doing, path, source }
        };
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| system("create the eventfd that stops")(errno.into()))?;
        let (stop, sessions) = (Arc::new(stop), Sessions::default());
        let acceptor = Acceptor {
            daemon: daemon.clone(),
            listener,
            stop: stop.clone(),
            sessions: sessions.clone(),
            connections: 0,
        };
        let thread = std::thread::Builder::new()
            .name("sumac-accept".into())
            .spawn(move || acceptor.run())
            .map_err(system("start the thread that accepts at"))?;
        tracing::info!(socket = %path.display(), "listening for trainers");
        Ok(Server { daemon, path, stop, sessions, thread: Some(thread) })
    }

    /// Stops listening and ends all sessions.
    pub(crate) fn stop(mut self) {
        // A write of one to an empty eventfd does not fail.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
        // Before the sessions end, so that a trainer that reconnects at once is refused by the kernel.
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
        for session in self.sessions.lock().values().filter_map(Weak::upgrade) {
            // Fails when the session has ended.
            let _ = session.push(Notification::Stop);
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        while self.daemon.clients.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Creates the listening socket; the socket of a dead daemon is replaced.
fn listen(path: &Path, mode: u32) -> Result<OwnedFd, ServeError> {
    let system = |doing: &'static str| {
        move |errno: Errno| ServeError::System { doing, path: path.to_owned(), source: errno.into() }
    };
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(|source| ServeError::System {
            doing: "create the directory",
            path: parent.to_owned(),
            source,
        })?;
    }
    remove_stale(path)?;
    let address = SocketAddrUnix::new(path).map_err(system("listen at"))?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(system("create the socket"))?;
    rustix::net::bind(&socket, &address).map_err(system("bind"))?;
    // Before `listen`, so that no trainer connects under the permissions of the umask.
    rustix::fs::chmod(path, Mode::from_bits_truncate(mode)).map_err(system("set the permissions of"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(system("listen at"))?;
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
            std::fs::remove_file(path).map_err(|source| ServeError::System {
                doing: "remove the stale",
                path: path.to_owned(),
                source,
            })
        }
        Err(FrameError::Connect { source, .. }) => Err(ServeError::Foreign { path: path.to_owned(), source }),
        Err(error) => Err(error.into()),
    }
}

/// Returns the process at the other end of a connection (SO_PEERCRED).
fn credentials(socket: &OwnedFd) -> Result<Credentials, Failure> {
    let credentials = getsockopt(socket, PeerCredentials).map_err(|error| {
        Failure::new(Code::Internal, format!("cannot read the credentials of the connection: {error}"))
    })?;
    Ok(Credentials { pid: credentials.pid(), uid: credentials.uid() })
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

/// The state of the accepting thread.
struct Acceptor {
    daemon: Arc<DaemonState>,
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    sessions: Sessions,
    connections: u64,
}

impl Acceptor {
    fn run(mut self) {
        loop {
            let mut poll =
                [PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
            match rustix::event::poll(&mut poll, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "cannot wait for trainers");
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
            if !poll[0].revents().is_empty() {
                return;
            }
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.accept(socket),
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    tracing::error!(%errno, "cannot accept a trainer; are there too many open files?");
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
        }
    }

    fn accept(&mut self, socket: OwnedFd) {
        let checked = self.check(&socket);
        let channel = Channel::from_socket(socket);
        match checked {
            Ok((credentials, notes)) => self.start_session(channel, credentials, notes),
            Err(failure) => {
                tracing::warn!(%failure, "a connection was refused");
                if let Ok(bytes) = Outbound::failed(None, failure).encode() {
                    // The connection ends in any case.
                    let _ = channel.try_send(&bytes, &[]);
                }
            }
        }
    }

    /// Checks a connection and creates its notification queue.
    fn check(&self, socket: &OwnedFd) -> Result<(Credentials, Arc<WakeQueue<Notification>>), Failure> {
        let credentials = credentials(socket)?;
        let own = rustix::process::geteuid().as_raw();
        check_user(credentials.uid, own, self.daemon.config.allow_uids.as_deref())?;
        if self.daemon.clients.load(Ordering::Acquire) >= MAX_CLIENTS {
            let message = format!("this daemon serves {MAX_CLIENTS} connections already");
            return Err(Failure::new(Code::Limit, message));
        }
        let notes =
            WakeQueue::new().map_err(|error| Failure::new(Code::Limit, format!("no eventfd: {error}")))?;
        Ok((credentials, Arc::new(notes)))
    }

    fn start_session(
        &mut self,
        channel: Channel,
        credentials: Credentials,
        notes: Arc<WakeQueue<Notification>>,
    ) {
        self.connections += 1;
        let entry = SessionEntry {
            daemon: self.daemon.clone(),
            sessions: self.sessions.clone(),
            connection: self.connections,
        };
        self.daemon.clients.fetch_add(1, Ordering::AcqRel);
        self.sessions.lock().insert(self.connections, Arc::downgrade(&notes));
        let session = Session::new(self.daemon.clone(), channel, credentials, notes);
        let spawned = std::thread::Builder::new().name("sumac-session".into()).spawn(move || {
            let _entry = entry;
            session.run();
        });
        if let Err(error) = spawned {
            // The closure is dropped, which closes the connection and removes its entry.
            tracing::error!(%error, "no thread for a trainer");
        }
    }
}

/// The entry of a session, removed when dropped.
struct SessionEntry {
    daemon: Arc<DaemonState>,
    sessions: Sessions,
    connection: u64,
}

impl Drop for SessionEntry {
    fn drop(&mut self) {
        self.sessions.lock().remove(&self.connection);
        self.daemon.clients.fetch_sub(1, Ordering::AcqRel);
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
        let daemon = listen(&path, 0o600).unwrap();
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
