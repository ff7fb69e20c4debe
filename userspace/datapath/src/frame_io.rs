//! The interface between a data path thread and the queue or socket that it sends and receives on.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use serde::Serialize;
use sumac_host::JobId;
use sumac_udp::Counts;
use sumac_wire::header::HEADER_LEN;
use sumac_wire::{Header, tos};
use sumac_xsk::{Bound, Conservation, Statistics};

use super::groups::ResultGroup;

/// The most packets of one lane or parameter host before the next one's turn.
const TURN: usize = 64;
/// The pause when a descriptor is in an error state, which ends every wait at once.
const BROKEN_PAUSE: Duration = Duration::from_millis(10);

/// A received packet. Its header is parsed here, and nowhere above.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    pub from: SocketAddrV4,
    pub port: u16,
    pub header: Header,
    pub elements: &'a [u8],
    /// Whether the network marked it: congestion experienced.
    pub is_marked: bool,
}

/// An aggregator, a parameter host or a worker that packets are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub ip: Ipv4Addr,
    /// The UDP port of shard 0.
    pub base_port: u16,
    /// The MAC address of the peer or of the next hop (XDP).
    pub mac: [u8; 6],
    /// Whether packets carry a UDP checksum (XDP).
    pub checksum: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmitted {
    /// A packet is staged; [`FrameIo::flush`] sends it.
    Staged,
    /// There was nothing to send.
    Nothing,
    /// There is no free frame; `build` was not called.
    Full,
}

/// An explicit path of packets (MLT section 4.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Route {
    /// The MAC address of the next hop; `None`: the peer's.
    pub mac: Option<[u8; 6]>,
    /// The 802.1Q tag.
    pub vlan: Option<u16>,
}

/// A payload that was written, and its addressing. The kernel chooses MAC addresses and checksum over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    pub len: usize,
    pub to: SocketAddrV4,
    pub mac: [u8; 6],
    /// The number of its path, which chooses the UDP source port and the route.
    pub path: u16,
    pub dscp_ecn: u8,
    pub checksum: bool,
}

/// The name and addresses of an interface, which may change while it stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    pub mac: [u8; 6],
    /// The address that packets come from.
    pub ip: Ipv4Addr,
}

/// Writes one payload into the frame's bytes, if there is one to send.
pub type Build<'a> = &'a mut dyn FnMut(&mut [u8]) -> Option<Outgoing>;

pub trait FrameIo: Send {
    /// Returns the largest UDP payload that can be sent, in bytes.
    fn capacity(&self) -> usize;

    /// Returns how many shards a job can have over all queues or sockets of the data path.
    fn shards(&self) -> u16;

    /// Returns the number of paths: of UDP source ports that packets have.
    fn paths(&self) -> u16;

    /// Passes a batch of received packets to `each`. Returns their number.
    fn receive(&mut self, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize>;

    /// Lets `build` write the next packet into a free frame, and stages it.
    fn transmit(&mut self, build: Build<'_>) -> io::Result<Transmitted>;

    /// Sends the staged packets. Packets that the kernel has no room for stay staged.
    fn flush(&mut self) -> io::Result<()>;

    /// Adds the descriptors by which arrived packets, and room for staged ones, end a wait. Returns until
    /// when the wait may last, unless it is for them alone.
    fn interest<'a>(&'a mut self, fds: &mut Vec<(BorrowedFd<'a>, PollFlags)>) -> Option<Instant>;

    /// Receives also what is sent to the multicast group of a job's results. An XDP program sees all frames.
    fn join(&mut self, _job: JobId, _group: ResultGroup) -> io::Result<()> {
        Ok(())
    }

    fn leave(&mut self, _job: JobId) {}

    /// Waits until sent frames have completed, at most until `deadline`.
    fn quiesce(&mut self, deadline: Instant);

    /// Sets the name and the addresses that the interface has by now.
    fn set_identity(&mut self, _identity: &Identity) {}

    /// Sets the explicit paths, of which packets take the one of their path's number, modulo how many there
    /// are.
    fn set_routes(&mut self, _routes: &[Route]) {}

    fn report(&self) -> IoReport;

    /// Returns the sockets that another process can continue to use, in an order that it knows.
    fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// The end of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// There was nothing more to send.
    Idle,
    /// There may be more.
    More,
    /// There was no free frame for it. Room ends the thread's wait.
    Full,
}

/// Sends up to a turn of packets.
pub(super) fn take_turn(io: &mut dyn FrameIo, build: Build<'_>) -> io::Result<TurnEnd> {
    for _ in 0..TURN {
        match io.transmit(build)? {
            Transmitted::Staged => {}
            Transmitted::Nothing => return Ok(TurnEnd::Idle),
            Transmitted::Full => return Ok(TurnEnd::Full),
        }
    }
    Ok(TurnEnd::More)
}

/// Sleeps until packets arrive at one of `ios`, staged packets can be sent, `wake` is readable, or
/// `deadline`. Returns whether `wake` is readable.
pub fn wait_for<'a>(
    ios: impl IntoIterator<Item = &'a mut dyn FrameIo>,
    deadline: Option<Instant>,
    wake: BorrowedFd<'a>,
) -> io::Result<bool> {
    let mut fds = Vec::with_capacity(3);
    let mut until = deadline;
    for io in ios {
        until = until.into_iter().chain(io.interest(&mut fds)).min();
    }
    fds.push((wake, PollFlags::POLLIN));
    wait(&fds, until)
}

/// Waits until one of `fds` is ready, a signal arrives, or `deadline`. Returns whether the last of them is
/// readable.
pub(super) fn wait(fds: &[(BorrowedFd<'_>, PollFlags)], deadline: Option<Instant>) -> io::Result<bool> {
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|(fd, flags)| PollFd::new(*fd, *flags)).collect();
    let timeout = deadline.map(|deadline| TimeSpec::from(deadline.saturating_duration_since(Instant::now())));
    match ppoll(&mut polled, timeout, None) {
        Ok(_) => {}
        Err(Errno::EINTR) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    let broken = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
    let state = |fd: &PollFd<'_>| fd.revents().unwrap_or(PollFlags::empty());
    if polled.iter().any(|fd| state(fd).intersects(broken)) {
        // The error shows when the descriptor is used.
        std::thread::sleep(BROKEN_PAUSE);
    }
    Ok(polled.last().is_some_and(|fd| state(fd).contains(PollFlags::POLLIN)))
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct IoReport {
    /// `xdp` or `udp`.
    pub backend: &'static str,
    pub interface: Option<String>,
    /// `driver`, `generic` or `hardware`.
    pub xdp_mode: Option<String>,
    pub local: Option<SocketAddrV4>,
    pub sockets: Vec<SocketReport>,
    /// The explicit paths (XDP).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Packets, and the batches that they were in: of a system call (XDP), or of a message of a run of
    /// packets (UDP).
    #[serde(flatten)]
    pub counts: Counts,
    /// Packets of this host to itself, neither sent nor received (XDP).
    pub own: u64,
    /// Attempts to send that found no free frame.
    pub full: u64,
    /// Received packets that are not Sumac's, or malformed.
    pub malformed: u64,
    /// Packets that the kernel refused to send.
    pub refused: u64,
    pub last_refusal: Option<String>,
    pub frames: Option<Conservation>,
    /// The part of the counters that is of the UDP socket beside AF_XDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp: Option<Box<IoReport>>,
}

impl IoReport {
    /// Passes a received UDP payload to `each`, or counts it as malformed.
    pub(super) fn pass(
        &mut self,
        from: SocketAddrV4,
        port: u16,
        dscp_ecn: u8,
        payload: &[u8],
        each: &mut dyn FnMut(Received<'_>),
    ) {
        let Ok(header) = Header::read(payload, 0, payload.len()) else { return self.malformed += 1 };
        let is_marked = tos::is_marked(dscp_ecn);
        each(Received { from, port, header, elements: &payload[HEADER_LEN..], is_marked });
    }

    pub(super) fn received_batch(&mut self, packets: usize) {
        self.counts.received += packets as u64;
        self.counts.batches_received += u64::from(packets > 0);
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct SocketReport {
    pub queue: u32,
    pub bound: Bound,
    pub received: u64,
    /// The kernel's XDP_STATISTICS.
    pub kernel: Option<Statistics>,
    pub frames: Conservation,
}
