//! The socket that trainers connect to: made, guarded, and a thread for each who comes.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sumac_api::{Channel, Code, Failure, FrameError, Outbound};

use crate::access;
use crate::hub::Hub;
use crate::inbox::Inbox;
use crate::session::{Note, Session};

/// The most connections at once: each is a thread.
const MAX_CLIENTS: u32 = 256;
/// Connections that the kernel keeps waiting.
const BACKLOG: i32 = 64;
/// How long the accepting thread rests when the process is out of descriptors or threads.
const RETRY: Duration = Duration::from_millis(100);
/// How long sessions have to end when the daemon stops.
const PARTING: Duration = Duration::from_secs(2);

/// Why the socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another daemon is there.
    #[error("another daemon serves {0}; stop it first, or give this one a `socket` of its own")]
    Taken(PathBuf),
    /// Something else is at the path.
    #[error("{0} is there and is no socket; remove it, or set another `socket`")]
    NotASocket(PathBuf),
    /// A socket is there that may be in use.
    #[error("{path} is a socket that is not a dead daemon's ({source}); remove it, or set another `socket`")]
    Foreign {
        /// Where.
        path: PathBuf,
        /// What the system said to a connection.
        source: std::io::Error,
    },
    /// The path cannot be a socket's address.
    #[error(transparent)]
    Path(#[from] FrameError),
    /// The system refused.
    #[error("cannot {doing} {path}: {source}; see `socket` in the configuration")]
    System {
        /// What was being done.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

type Inboxes = Arc<Mutex<HashMap<u64, Weak<Inbox<Note>>>>>;

/// The listening socket and its thread.
#[derive(Debug)]
pub(crate) struct Server {
    hub: Arc<Hub>,
    path: PathBuf,
    stop: Arc<OwnedFd>,
    inboxes: Inboxes,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at the configured path.
    pub(crate) fn start(hub: Arc<Hub>) -> Result<Server, ServeError> {
        let path = hub.config.socket.clone();
        let listener = listen(&path, hub.config.mode_bits().unwrap_or(0o600))?;
        let system = |doing| {
            let path = path.clone();
            move |source: std::io::Error| ServeError::System { doing, path, source }
        };
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| system("make the eventfd that stops")(errno.into()))?;
        let stop = Arc::new(stop);
        let inboxes = Inboxes::default();
        let door =
            Door { hub: hub.clone(), listener, stop: stop.clone(), inboxes: inboxes.clone(), visitors: 0 };
        let thread = std::thread::Builder::new()
            .name("sumac-accept".into())
            .spawn(move || door.run())
            .map_err(system("start the thread that accepts at"))?;
        tracing::info!(socket = %path.display(), "listening for trainers");
        Ok(Server { hub, path, stop, inboxes, thread: Some(thread) })
    }

    /// Takes no more trainers and sends those away who are there.
    pub(crate) fn stop(mut self) {
        // The counter cannot be full, and nothing else can go wrong with an eventfd of one's own.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic in there has been printed, and leaves nothing to be done here.
            let _ = thread.join();
        }
        // Before the sessions end, so that a trainer who comes back at once finds nobody rather than a dying daemon.
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
        for inbox in self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).values() {
            if let Some(inbox) = inbox.upgrade() {
                // Fails when the session has just ended by itself.
                let _ = inbox.push(Note::Stop);
            }
        }
        let deadline = Instant::now() + PARTING;
        while self.hub.clients.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Makes the listening socket; a leftover of a dead daemon is replaced.
fn listen(path: &Path, mode: u32) -> Result<OwnedFd, ServeError> {
    let system = |doing: &'static str| {
        move |errno: Errno| ServeError::System { doing, path: path.to_owned(), source: errno.into() }
    };
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(|source| ServeError::System {
            doing: "make the directory",
            path: parent.to_owned(),
            source,
        })?;
    }
    clear(path)?;
    let address = SocketAddrUnix::new(path).map_err(system("listen at"))?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(system("make the socket"))?;
    rustix::net::bind(&socket, &address).map_err(system("bind"))?;
    // Nobody can connect before `listen`, so nobody comes in under the permissions of the umask.
    rustix::fs::chmod(path, Mode::from_bits_truncate(mode)).map_err(system("set the permissions of"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(system("listen at"))?;
    Ok(socket)
}

/// Removes a socket that nobody serves any more.
fn clear(path: &Path) -> Result<(), ServeError> {
    use std::os::unix::fs::FileTypeExt;

    match std::fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(found) if !found.file_type().is_socket() => return Err(ServeError::NotASocket(path.to_owned())),
        Ok(_) => {}
    }
    match Channel::connect(path) {
        Ok(_) => Err(ServeError::Taken(path.to_owned())),
        // Only this says that nobody listens. A socket of another type or of somebody else's is in use for all we know.
        Err(FrameError::Connect { source, .. }) if source.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|source| ServeError::System {
                doing: "remove the leftover",
                path: path.to_owned(),
                source,
            })
        }
        Err(FrameError::Connect { source, .. }) => Err(ServeError::Foreign { path: path.to_owned(), source }),
        Err(error) => Err(error.into()),
    }
}

/// The accepting thread's state.
struct Door {
    hub: Arc<Hub>,
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    inboxes: Inboxes,
    visitors: u64,
}

impl Door {
    fn run(mut self) {
        loop {
            let mut poll =
                [PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
            match rustix::event::poll(&mut poll, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "cannot wait for trainers");
                    std::thread::sleep(RETRY);
                }
            }
            if !poll[0].revents().is_empty() {
                return;
            }
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.admit(socket),
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    tracing::error!(%errno, "cannot take a trainer in; are there too many open files?");
                    std::thread::sleep(RETRY);
                }
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let peer = access::peer(&socket.as_fd());
        let channel = Channel::from_socket(socket);
        let admitted = match peer {
            Err(error) => Err(Failure::new(Code::Internal, format!("cannot tell who connects: {error}"))),
            Ok(peer) => {
                let own = rustix::process::geteuid().as_raw();
                access::admit(peer, own, self.hub.config.allow_uids.as_deref()).map(|()| peer)
            }
        };
        let admitted = admitted.and_then(|peer| {
            if self.hub.clients.load(Ordering::Acquire) < MAX_CLIENTS {
                Ok(peer)
            } else {
                Err(Failure::new(
                    Code::Limit,
                    format!("this daemon serves {MAX_CLIENTS} connections already"),
                ))
            }
        });
        let peer = match admitted {
            Ok(peer) => peer,
            Err(failure) => {
                tracing::warn!(%failure, "a trainer was turned away");
                return turn_away(&channel, failure);
            }
        };
        match Inbox::new() {
            Ok(inbox) => self.receive(Arc::new(inbox), channel, peer),
            Err(error) => turn_away(&channel, Failure::new(Code::Limit, format!("no eventfd: {error}"))),
        }
    }

    /// Gives the trainer a thread.
    fn receive(&mut self, inbox: Arc<Inbox<Note>>, channel: Channel, peer: crate::session::Peer) {
        self.visitors += 1;
        let key = self.visitors;
        let guest = Guest { hub: self.hub.clone(), inboxes: self.inboxes.clone(), key };
        self.hub.clients.fetch_add(1, Ordering::AcqRel);
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::downgrade(&inbox));
        let session = Session::new(self.hub.clone(), channel, peer, inbox);
        let spawned = std::thread::Builder::new().name("sumac-session".into()).spawn(move || {
            let _guest = guest;
            session.run();
        });
        if let Err(error) = spawned {
            // The closure is gone with all it held, so the connection is closed and the guest signed out.
            tracing::error!(%error, "no thread for a trainer");
        }
    }
}

fn turn_away(channel: &Channel, failure: Failure) {
    if let Ok(bytes) = Outbound::failed(None, failure).encode() {
        // Whether it is read does not matter.
        let _ = channel.try_send(&bytes, &[]);
    }
}

/// Signs a session out, however it ends.
struct Guest {
    hub: Arc<Hub>,
    inboxes: Inboxes,
    key: u64,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        self.hub.clients.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_that_nobody_serves_is_replaced() {
        let directory = std::env::temp_dir().join(format!("sumac-server-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("s.sock");
        let daemon = listen(&path, 0o600).unwrap();
        assert!(matches!(clear(&path), Err(ServeError::Taken(_))));
        drop(daemon);
        clear(&path).unwrap();
        assert!(!path.exists(), "a leftover goes");
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(matches!(clear(&path), Err(ServeError::Foreign { .. })), "another program's stays");
        assert!(path.exists());
        drop(other);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
