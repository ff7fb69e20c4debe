//! A shard's thread: packets from its socket to its core and back, by the batch.

use std::{
    io::{IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::fd::AsRawFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use nix::{
    cmsg_space,
    errno::Errno,
    sys::socket::{
        ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg, setsockopt, sockopt,
    },
};
use sumac_wire::{MAX_ELEMENTS, MAX_WORKERS, admit::payload_len, tos};

use super::{IDLE, LastRound, lock};
use crate::aggregator::{Answer, HostAggregator};

const BATCH: usize = 32;
/// Bytes of a packet's buffer: longer ones are cut short, and refused for it.
const CAPACITY: usize = payload_len(MAX_ELEMENTS as u16) + 64;

pub struct Pump {
    socket: UdpSocket,
    core: Arc<Mutex<HostAggregator>>,
    stop: Arc<AtomicBool>,
    last_round: LastRound,
    /// The origin of the shared slots' clock.
    start: Instant,
    /// The DSCP and ECN byte that the socket sends with now.
    tos: u8,
}

struct Arrival {
    source: Ipv4Addr,
    len: usize,
    /// Its DSCP and ECN byte.
    tos: u8,
}

/// A packet of the batch that is to be sent.
struct Outgoing {
    packet: usize,
    to: SocketAddrV4,
    tos: u8,
    /// The job, of one copy of a result for all.
    copy_of: Option<u16>,
    is_sent: bool,
}

impl Pump {
    /// Between this socket and this core, until `stop`.
    pub fn new(
        socket: UdpSocket,
        core: Arc<Mutex<HostAggregator>>,
        stop: Arc<AtomicBool>,
        last_round: LastRound,
    ) -> Pump {
        Pump { socket, core, stop, last_round, start: Instant::now(), tos: 0 }
    }

    pub fn run(mut self) {
        let mut buffers = vec![0; BATCH * CAPACITY];
        let mut arrivals = Vec::with_capacity(BATCH);
        let mut outgoing = Vec::with_capacity(BATCH * MAX_WORKERS);
        while !self.stop.load(Ordering::Relaxed) {
            self.last_round.note();
            arrivals.clear();
            match self.receive(&mut buffers, &mut arrivals) {
                Ok(()) | Err(Errno::EAGAIN | Errno::EINTR) => {}
                // An earlier datagram was refused by its receiver; that concerns nobody else.
                Err(Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH) => {}
                Err(error) => {
                    tracing::error!(error = error.desc(), "cannot receive; trying again");
                    thread::sleep(IDLE);
                }
            }
            if arrivals.is_empty() {
                continue;
            }
            outgoing.clear();
            self.aggregate(&mut buffers, &arrivals, &mut outgoing);
            self.send(&buffers, &arrivals, &mut outgoing);
            let mut core = lock(&self.core);
            let sent = outgoing.iter().filter(|outgoing| outgoing.is_sent);
            sent.filter_map(|outgoing| outgoing.copy_of).for_each(|job| core.count_sent(job));
        }
    }

    /// Waits for packets: at least one, or [`IDLE`].
    fn receive(&self, buffers: &mut [u8], arrivals: &mut Vec<Arrival>) -> nix::Result<()> {
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            buffers.chunks_exact_mut(CAPACITY).map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let mut headers = MultiHeaders::<SockaddrIn>::preallocate(BATCH, Some(cmsg_space!(u8)));
        let fd = self.socket.as_raw_fd();
        let messages = recvmmsg(fd, &mut headers, slices.iter_mut(), MsgFlags::MSG_WAITFORONE, None)?;
        for message in messages {
            let source = message.address.map_or(Ipv4Addr::UNSPECIFIED, |address| address.ip());
            let tos = message.cmsgs().ok().and_then(|mut all| all.find_map(|one| tos_of(&one)));
            arrivals.push(Arrival { source, len: message.bytes, tos: tos.unwrap_or(0) });
        }
        Ok(())
    }

    fn aggregate(&self, buffers: &mut [u8], arrivals: &[Arrival], outgoing: &mut Vec<Outgoing>) {
        let mut core = lock(&self.core);
        // It wraps after 49 days, as slots expect.
        core.set_now(self.start.elapsed().as_millis() as u32);
        let packets = buffers.chunks_exact_mut(CAPACITY).zip(arrivals);
        for (packet, (buffer, Arrival { source, len, tos })) in packets.enumerate() {
            let bytes = &mut buffer[..*len];
            let answer = match tos::is_marked(*tos) {
                true => core.on_marked_packet(*source, bytes),
                false => core.on_packet(*source, bytes),
            };
            let tos = tos::unmarked(*tos);
            match answer {
                Answer::None(_) => {}
                Answer::One(_, to) => {
                    outgoing.push(Outgoing { packet, to, tos, copy_of: None, is_sent: false });
                }
                Answer::All(_, job) => {
                    for rank in 0..core.workers(job).len() {
                        let to = core.workers(job).get(rank).copied().filter(|_| core.keeps_copy(job));
                        let copy = |to| Outgoing { packet, to, tos, copy_of: Some(job), is_sent: false };
                        outgoing.extend(to.map(copy));
                    }
                }
            }
        }
    }

    /// Sends the answers, and marks those that left. A datagram that the kernel refuses is skipped: its worker asks
    /// again.
    fn send(&mut self, buffers: &[u8], arrivals: &[Arrival], outgoing: &mut [Outgoing]) {
        let buffers: Vec<&[u8]> = buffers.chunks_exact(CAPACITY).collect();
        let mut first = 0;
        while first < outgoing.len() {
            let rest = &outgoing[first..outgoing.len().min(first + 2 * BATCH)];
            let tos = rest[0].tos;
            let batch = &rest[..rest.iter().take_while(|outgoing| outgoing.tos == tos).count()];
            self.set_tos(tos);
            let slices: Vec<[IoSlice<'_>; 1]> = batch
                .iter()
                .map(|outgoing| [IoSlice::new(&buffers[outgoing.packet][..arrivals[outgoing.packet].len])])
                .collect();
            let addresses: Vec<_> =
                batch.iter().map(|outgoing| Some(SockaddrIn::from(outgoing.to))).collect();
            let mut headers = MultiHeaders::preallocate(batch.len(), None);
            let flags = MsgFlags::empty();
            let sent = sendmmsg(self.socket.as_raw_fd(), &mut headers, &slices, &addresses, [], flags)
                .map(std::iter::Iterator::count);
            first += match sent {
                Ok(sent) => {
                    outgoing.iter_mut().skip(first).take(sent).for_each(|outgoing| outgoing.is_sent = true);
                    sent
                }
                Err(Errno::EINTR) => 0,
                Err(error) => {
                    let to = outgoing[first].to;
                    tracing::debug!(%to, error = error.desc(), "the kernel refuses to send a packet");
                    1
                }
            };
        }
    }

    /// Sends with this DSCP and ECN byte from now on.
    fn set_tos(&mut self, tos: u8) {
        if self.tos == tos {
            return;
        }
        match setsockopt(&self.socket, sockopt::Ipv4Tos, &i32::from(tos)) {
            Ok(()) => self.tos = tos,
            // Then queues drop where they could have marked.
            Err(error) => {
                tracing::debug!(tos, error = error.desc(), "the kernel refuses to set DSCP and ECN");
            }
        }
    }
}

/// The DSCP and ECN byte of a received datagram.
fn tos_of(message: &ControlMessageOwned) -> Option<u8> {
    match message {
        ControlMessageOwned::Ipv4Tos(tos) => Some(*tos),
        _ => None,
    }
}
