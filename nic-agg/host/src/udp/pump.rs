//! A shard's thread: packets from its socket to its core and back, by the batch.

use std::{
    net::SocketAddrV4,
    ops::Add,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::{errno::Errno, sys::socket::MsgFlags};
use sumac_udp::{Arrival, Counts, Datagram, DatagramSocket, buffer_len};
use sumac_wire::{Header, MAX_WORKERS, tos};

use super::{last_round::LastRound, sockets::Sockets};
use crate::{
    aggregator::{Answer, HostAggregator},
    lock::lock,
};

/// The interval at which an idle thread checks whether it should end.
pub const IDLE: Duration = Duration::from_millis(200);
/// Messages of runs of packets that are received at once.
const MESSAGES: usize = 8;

pub struct Pump {
    sockets: Sockets,
    core: Arc<Mutex<HostAggregator>>,
    stop: Arc<AtomicBool>,
    last_round: LastRound,
    counts: Arc<Mutex<Counts>>,
    /// The origin of the shared slots' clock.
    start: Instant,
}

/// A packet of the batch that is to be sent.
struct Outgoing {
    packet: usize,
    to: SocketAddrV4,
    path: u16,
    tos: u8,
    /// The job, of one copy of a result for all.
    copy_of: Option<u16>,
    is_sent: bool,
}

impl Pump {
    /// Between this socket and this core, until `stop`.
    pub fn new(
        socket: DatagramSocket,
        core: Arc<Mutex<HostAggregator>>,
        stop: Arc<AtomicBool>,
        last_round: LastRound,
        counts: Arc<Mutex<Counts>>,
    ) -> Pump {
        Pump { sockets: Sockets::new(socket), core, stop, last_round, counts, start: Instant::now() }
    }

    pub fn run(mut self) {
        let mut buffer = vec![0; buffer_len(MESSAGES)];
        let received = buffer.len();
        let mut arrivals = Vec::new();
        let mut outgoing = Vec::with_capacity(MAX_WORKERS);
        while !self.stop.load(Ordering::Relaxed) {
            self.last_round.note();
            arrivals.clear();
            buffer.truncate(received);
            // At least one packet, or `IDLE`.
            match self.sockets.own().receive(&mut buffer, &mut arrivals, MsgFlags::MSG_WAITFORONE) {
                Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {}
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
            self.aggregate(&mut buffer, &mut arrivals, &mut outgoing);
            self.send(&buffer, &arrivals, &mut outgoing);
            let mut core = lock(&self.core);
            let sent = outgoing.iter().filter(|outgoing| outgoing.is_sent);
            sent.filter_map(|outgoing| outgoing.copy_of).for_each(|job| core.count_sent(job));
            drop(core);
            *lock(&self.counts) =
                self.sockets.iter().map(DatagramSocket::counts).fold(Counts::default(), Add::add);
        }
    }

    /// Packets without values that get their zeros here move to the end of the buffer.
    fn aggregate(&self, buffer: &mut Vec<u8>, arrivals: &mut [Arrival], outgoing: &mut Vec<Outgoing>) {
        let mut core = lock(&self.core);
        // It wraps after 49 days, as slots expect.
        core.set_now(self.start.elapsed().as_millis() as u32);
        for (packet, Arrival { from, dscp_ecn, payload }) in arrivals.iter_mut().enumerate() {
            if let Some(header) = core.with_zeros(*from.ip(), &buffer[payload.clone()]) {
                let at = buffer.len();
                buffer.extend_from_slice(&header.to_bytes());
                buffer.resize(buffer.len() + usize::from(header.elements) * size_of::<u32>(), 0);
                *payload = at..buffer.len();
            }
            let bytes = &mut buffer[payload.clone()];
            let answer = match tos::is_marked(*dscp_ecn) {
                true => core.on_marked_packet(*from.ip(), bytes),
                false => core.on_packet(*from.ip(), bytes),
            };
            let tos = tos::unmarked(*dscp_ecn);
            match answer {
                Answer::None(_) => {}
                Answer::One(_, to, rank) => {
                    let key = self.start.elapsed().as_micros() as u32;
                    let answer = rank.and_then(|rank| Some((Header::fields(bytes, 0)?, rank)));
                    let path = answer.map_or(0, |(answer, rank)| core.path_of_answer(&answer, rank, key));
                    outgoing.push(Outgoing { packet, to, path, tos, copy_of: None, is_sent: false });
                }
                Answer::All(_, job) => {
                    let Some(result) = Header::fields(bytes, 0) else { continue };
                    for rank in 0..core.workers(job).len() {
                        let to = core.workers(job).get(rank).copied().filter(|_| core.keeps_copy(job));
                        let Some(to) = to else { continue };
                        let path = core.path_of_result(&result, rank);
                        outgoing.push(Outgoing { packet, to, path, tos, copy_of: Some(job), is_sent: false });
                    }
                }
            }
        }
    }

    /// Sends the answers, and marks those that left. A datagram that the kernel refuses is skipped: its
    /// worker asks again.
    fn send(&mut self, buffer: &[u8], arrivals: &[Arrival], outgoing: &mut [Outgoing]) {
        // The results for each worker follow one another, and leave as runs.
        outgoing.sort_by_key(|outgoing| (outgoing.to, outgoing.path));
        let (now, mut first) = (Instant::now(), 0);
        while first < outgoing.len() {
            let path = outgoing[first].path;
            let by_path = outgoing[first..].iter().take_while(|outgoing| outgoing.path == path);
            let datagrams = by_path.map(|Outgoing { packet, to, tos, .. }| Datagram {
                to: *to,
                dscp_ecn: *tos,
                payload: &buffer[arrivals[*packet].payload.clone()],
            });
            first += match self.sockets.of(path.into(), now).send(datagrams, MsgFlags::empty()) {
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
}
