//! The file that a new daemon logs to. The standard error of `sumac upgrade` is not it, where that is a
//! terminal or pipe: it would end with the session, and keep open a pipe whose reader waits for its end.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    net::Shutdown,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{
            fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
            net::UnixStream,
        },
    },
    path::Path,
};

use rustix::{
    fs::{OFlags, fcntl_setfl},
    net::{self, AddressFamily, SocketAddrUnix, SocketType, sockopt::socket_peercred},
    process::geteuid,
};

/// The socket at which journald makes streams (sd_journal_stream_fd).
const JOURNAL: &str = "/run/systemd/journal/stdout";

/// Returns the file for the log of the daemon that takes over from the one at `socket`: this process's
/// standard error if that is a file or the journal's; the running daemon's; the journal; nothing.
pub(super) fn of_successor(socket: Option<&Path>) -> io::Result<OwnedFd> {
    if let Some(own) = own()? {
        return Ok(own);
    }
    if let Some(of_predecessor) = socket.and_then(|socket| of_daemon(socket).ok()) {
        return Ok(of_predecessor);
    }
    match journal() {
        Ok(journal) => Ok(journal),
        Err(_) => {
            tracing::warn!(
                "the new daemon's log goes nowhere: redirect standard error to a file, or run it as a unit"
            );
            Ok(OpenOptions::new().write(true).open("/dev/null")?.into())
        }
    }
}

/// Standard error, if it is a file or a stream of the journal.
fn own() -> io::Result<Option<OwnedFd>> {
    let own = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let metadata = own.metadata()?;
    let of_journal = std::env::var("JOURNAL_STREAM").ok();
    let is_journal =
        of_journal.is_some_and(|stream| stream == format!("{}:{}", metadata.dev(), metadata.ino()));
    Ok((metadata.is_file() || is_journal).then(|| own.into()))
}

/// The standard error of the daemon that listens at this socket.
fn of_daemon(socket: &Path) -> io::Result<OwnedFd> {
    let connection = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    net::connect(&connection, &SocketAddrUnix::new(socket)?)?;
    let peer = socket_peercred(&connection)?;
    // Another user's may be any file, opened for reading.
    if !peer.uid.is_root() && peer.uid != geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // A pipe without a reader would not be opened otherwise.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let path = format!("/proc/{}/fd/2", peer.pid.as_raw_nonzero());
    let file = OpenOptions::new().append(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_fifo() && !kind.is_char_device() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file.into())
}

/// A new stream of the journal.
fn journal() -> io::Result<OwnedFd> {
    let mut stream = UnixStream::connect(JOURNAL)?;
    stream.shutdown(Shutdown::Read)?;
    // Identifier, unit, priority (info); whether lines have prefixes, and go to syslog, kmsg and console.
    stream.write_all(b"sumac\n\n6\n0\n0\n0\n0\n")?;
    Ok(stream.into())
}
