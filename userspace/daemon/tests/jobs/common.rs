//! A daemon in a directory of its own, and a trainer without the client library.

use std::fs::Permissions;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sumac_api::{Channel, FrameError, Inbound, MAX_MESSAGE};
use sumac_daemon::Daemon;
use sumac_daemon::config::Config;
use tempfile::TempDir;

pub const SECRET: &str = "a secret of some length";
/// The timeout of a daemon's message on a busy machine.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// A directory that other users may enter, and that is removed when dropped.
pub fn scratch() -> TempDir {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap()
}

/// A daemon in a directory of its own.
pub struct Alone {
    pub daemon: Daemon,
    pub socket: PathBuf,
    pub scratch: TempDir,
}

impl Alone {
    /// A daemon with further lines in its configuration.
    pub fn new(further: &str) -> Alone {
        Alone::with(SECRET, further)
    }

    /// The same, with this secret or join token.
    pub fn with(secret: &str, further: &str) -> Alone {
        let scratch = scratch();
        let (daemon, socket) = daemon(&scratch, "a", secret, further);
        Alone { daemon, socket, scratch }
    }

    /// A trainer that has sent `hello`.
    pub fn raw(&self) -> Raw {
        Raw::greeted(&self.socket)
    }
}

/// A daemon on the UDP backend, with this secret or join token and further lines in its configuration.
pub fn daemon(scratch: &TempDir, name: &str, secret: &str, further: &str) -> (Daemon, PathBuf) {
    let config = Config::parse(&text(scratch, name, secret, further), Path::new("test.toml")).unwrap();
    let socket = config.socket.clone();
    (Daemon::start(config).unwrap(), socket)
}

/// The configuration of such a daemon.
pub fn text(scratch: &TempDir, name: &str, secret: &str, further: &str) -> String {
    let socket = scratch.path().join(format!("{name}.sock"));
    format!("socket = {socket:?}\nbackend = \"udp\"\nsecret = {secret:?}\n{further}")
}

/// A trainer without the client library.
pub struct Raw {
    pub channel: Channel,
    next: u64,
    buffer: Vec<u8>,
    /// Events that arrived before a reply.
    pub events: Vec<Value>,
}

impl Raw {
    pub fn connect(socket: &Path) -> Raw {
        let channel = Channel::connect(socket).unwrap();
        Raw { channel, next: 0, buffer: vec![0; MAX_MESSAGE], events: Vec::new() }
    }

    /// Connects and sends `hello`.
    pub fn greeted(socket: &Path) -> Raw {
        let mut raw = Raw::connect(socket);
        let reply = raw.ask(json!({"cmd": "hello", "version": 4}));
        assert_eq!(reply["ok"]["version"], 4, "{reply}");
        raw
    }

    /// Sends a command and returns its id.
    pub fn send(&mut self, command: Value, fds: &[BorrowedFd<'_>]) -> u64 {
        self.next += 1;
        let mut command = command;
        command["id"] = self.next.into();
        self.channel.send(command.to_string().as_bytes(), fds).unwrap();
        self.next
    }

    /// Sends a command and returns its reply.
    pub fn ask(&mut self, command: Value) -> Value {
        self.ask_with(command, &[]).0
    }

    pub fn ask_with(&mut self, command: Value, fds: &[BorrowedFd<'_>]) -> (Value, Vec<OwnedFd>) {
        let id = self.send(command, fds);
        self.reply_to(id)
    }

    pub fn reply_to(&mut self, id: u64) -> (Value, Vec<OwnedFd>) {
        loop {
            let (message, fds) = self.receive().expect("the daemon closed the connection");
            if message["id"] == id {
                return (message, fds);
            }
            self.events.push(message);
        }
    }

    /// Receives the next message; `None` when the daemon has closed the connection.
    pub fn receive(&mut self) -> Option<(Value, Vec<OwnedFd>)> {
        let deadline = Instant::now() + MESSAGE_TIMEOUT;
        loop {
            match self.channel.try_receive(&mut self.buffer) {
                Ok(Inbound::Message(message)) => {
                    return Some((serde_json::from_slice(message.bytes).unwrap(), message.fds));
                }
                Ok(Inbound::End) | Err(FrameError::Closed) => return None,
                Err(FrameError::Empty) => {
                    assert!(Instant::now() < deadline, "no message from the daemon");
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The next event.
    pub fn event(&mut self) -> Value {
        if self.events.is_empty() {
            self.receive().expect("the daemon closed the connection").0
        } else {
            self.events.remove(0)
        }
    }

    /// Registers a new memfd of this size. Returns the region's handle.
    pub fn region(&mut self, size: u64) -> Value {
        self.register(&memfd(size, true), size)["ok"]["region"].clone()
    }

    /// Registers a memfd of this size, sealed or not.
    pub fn register(&mut self, file: &OwnedFd, size: u64) -> Value {
        self.ask_with(json!({"cmd": "register", "size": size}), &[file.as_fd()]).0
    }
}

/// A memfd of this size, whose pages are allocated.
pub fn memfd(size: u64, sealed: bool) -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags};

    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, size).unwrap();
    rustix::io::pwrite(&file, &vec![0; size as usize], 0).unwrap();
    if sealed {
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    }
    file
}

/// The code of an error reply.
pub fn code(reply: &Value) -> &str {
    reply["error"]["code"].as_str().unwrap_or("none")
}
