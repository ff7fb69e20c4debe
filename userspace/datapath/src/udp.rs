//! Packets over an ordinary UDP socket. It needs no privilege; the kernel copies payloads.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::ops::Add as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::MsgFlags;
use sumac_host::JobId;
use sumac_udp::{Arrival, Counts, Datagram, DatagramSocket, buffer_len};
use sumac_wire::MAX_ELEMENTS;
use sumac_wire::admit::payload_len;

use super::frame_io::{Build, FrameIo, IoReport, Outgoing, Received, Transmitted};
use super::groups::{Groups, ResultGroup};

/// Datagrams that are staged before they are sent.
const BATCH: usize = 128;
/// Messages of runs of datagrams that are received at once.
const MESSAGES: usize = 16;
/// Bytes of the longest packet; a longer datagram is refused for its length.
const CAPACITY: usize = payload_len(MAX_ELEMENTS as u16);
const BIND_ATTEMPTS: usize = 64;

/// A non-blocking UDP socket with room for a batch of datagrams each way.
#[derive(Debug)]
pub struct UdpFrameIo {
    socket: DatagramSocket,
    /// The sockets of all paths but the first, which only send: each has a source port of its own.
    paths: Vec<DatagramSocket>,
    groups: Groups,
    local: SocketAddrV4,
    /// The number of sockets that a job's shards are spread over.
    shards: u16,
    incoming: Vec<u8>,
    /// The datagrams in `incoming`.
    arrivals: Vec<Arrival>,
    outgoing: Vec<u8>,
    /// The datagrams in `outgoing`, from its start.
    staged: Vec<Outgoing>,
    /// The number of `staged` datagrams that the kernel has taken.
    taken: usize,
    /// Whether the last packet found no room.
    is_full: bool,
    /// Without those that the sockets count.
    counters: IoReport,
}

impl UdpFrameIo {
    /// Binds a socket for each shard to `ip`, at consecutive ports from `first` on; 0: at free ones. Packets
    /// of a shard come to its port, and leave over so many paths, by a socket for each.
    pub fn bind_shards(ip: Ipv4Addr, first: u16, shards: u16, paths: u16) -> io::Result<Vec<UdpFrameIo>> {
        let attempts = if first == 0 { BIND_ATTEMPTS } else { 1 };
        let mut last = io::Error::from(io::ErrorKind::InvalidInput);
        for _ in 0..attempts {
            match UdpFrameIo::bind_consecutive(ip, first, shards) {
                Ok(ios) => return ios.into_iter().map(|io| io.with_paths(paths)).collect(),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn bind_consecutive(ip: Ipv4Addr, first: u16, shards: u16) -> io::Result<Vec<UdpFrameIo>> {
        let first = UdpFrameIo::bind(ip, first)?;
        let port = first.local.port();
        let others = (1..shards).map(|shard| {
            let port = port.checked_add(shard).ok_or(io::ErrorKind::AddrInUse)?;
            UdpFrameIo::bind(ip, port)
        });
        std::iter::once(Ok(first)).chain(others).map(|io| Ok(UdpFrameIo { shards, ..io? })).collect()
    }

    /// Continues with the sockets of another process, of each shard those of its paths.
    pub fn from_sockets(shards: Vec<Vec<OwnedFd>>) -> io::Result<Vec<UdpFrameIo>> {
        let count = u16::try_from(shards.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let shard = |sockets: Vec<OwnedFd>| {
            let mut sockets = sockets.into_iter().map(UdpSocket::from);
            let first = DatagramSocket::new(sockets.next().ok_or(io::ErrorKind::InvalidInput)?)?;
            let paths =
                sockets.map(|socket| Ok(DatagramSocket::sending(socket)?)).collect::<io::Result<_>>()?;
            Ok(UdpFrameIo { paths, shards: count, ..UdpFrameIo::over(first)? })
        };
        shards.into_iter().map(shard).collect()
    }

    /// Binds a socket to `ip` and `port`; port 0 takes any that is free, see [`UdpFrameIo::local`].
    pub fn bind(ip: Ipv4Addr, port: u16) -> io::Result<UdpFrameIo> {
        UdpFrameIo::over(open(ip, port)?)
    }

    fn over(socket: DatagramSocket) -> io::Result<UdpFrameIo> {
        let local = match socket.get().local_addr()? {
            std::net::SocketAddr::V4(local) => local,
            std::net::SocketAddr::V6(_) => return Err(io::ErrorKind::AddrNotAvailable.into()),
        };
        let counters = IoReport { backend: "udp", local: Some(local), ..IoReport::default() };
        Ok(UdpFrameIo {
            socket,
            local,
            paths: Vec::new(),
            groups: Groups::default(),
            shards: 1,
            incoming: vec![0; buffer_len(MESSAGES)],
            arrivals: Vec::new(),
            outgoing: vec![0; BATCH * CAPACITY],
            staged: Vec::with_capacity(BATCH),
            taken: 0,
            is_full: false,
            counters,
        })
    }

    pub fn local(&self) -> SocketAddrV4 {
        self.local
    }

    fn with_paths(mut self, paths: u16) -> io::Result<UdpFrameIo> {
        self.paths = (1..paths).map(|_| sending(*self.local.ip())).collect::<io::Result<_>>()?;
        Ok(self)
    }

    /// Sends the first staged datagram, and those after it that can go with it. Returns how many the kernel
    /// took.
    fn send_some(&mut self) -> nix::Result<usize> {
        let UdpFrameIo { socket, paths, outgoing, staged, taken, .. } = self;
        let rest = &staged[*taken..];
        let count = paths.len() + 1;
        let path_of = |datagram: &Outgoing| usize::from(datagram.path) % count;
        let Some(path) = rest.first().map(path_of) else { return Ok(0) };
        let socket = path.checked_sub(1).and_then(|path| paths.get_mut(path)).unwrap_or(socket);
        let slots = outgoing.chunks_exact(CAPACITY).skip(*taken);
        let datagrams = slots.zip(rest).take_while(|(_, datagram)| path_of(datagram) == path);
        let datagrams = datagrams.map(|(bytes, datagram)| Datagram {
            to: datagram.to,
            dscp_ecn: datagram.dscp_ecn,
            payload: &bytes[..datagram.len.min(CAPACITY)],
        });
        socket.send(datagrams, MsgFlags::MSG_DONTWAIT)
    }

    /// Drops one datagram that the kernel refuses, and counts it.
    fn refuse(&mut self, error: Errno) {
        let to = self.staged[self.taken].to;
        self.taken += 1;
        self.counters.refused += 1;
        let message = format!("send to {to}: {}", error.desc());
        if self.counters.last_refusal.as_ref() != Some(&message) {
            tracing::warn!(%to, error = error.desc(), "the kernel refuses to send a packet");
            self.counters.last_refusal = Some(message);
        }
    }
}

/// Returns a socket for the packets of a path, at any port.
fn sending(ip: Ipv4Addr) -> io::Result<DatagramSocket> {
    let socket = UdpSocket::bind((ip, 0))?;
    socket.set_nonblocking(true)?;
    Ok(DatagramSocket::sending(socket)?)
}

/// Opens a non-blocking socket.
fn open(ip: Ipv4Addr, port: u16) -> io::Result<DatagramSocket> {
    let socket = UdpSocket::bind((ip, port))?;
    socket.set_nonblocking(true)?;
    Ok(DatagramSocket::new(socket)?)
}

impl FrameIo for UdpFrameIo {
    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn shards(&self) -> u16 {
        self.shards
    }

    fn paths(&self) -> u16 {
        self.paths.len() as u16 + 1
    }

    fn receive(&mut self, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let UdpFrameIo { socket, groups, incoming, arrivals, counters, local, .. } = self;
        let mut received = 0;
        for socket in std::iter::once(socket).chain(groups.sockets_mut()) {
            arrivals.clear();
            match socket.receive(incoming, arrivals, MsgFlags::MSG_DONTWAIT) {
                Ok(_) => {}
                Err(Errno::EAGAIN | Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            }
            for Arrival { from, dscp_ecn, payload } in arrivals.iter() {
                counters.pass(*from, local.port(), *dscp_ecn, &incoming[payload.clone()], each);
            }
            received += arrivals.len();
        }
        Ok(received)
    }

    fn join(&mut self, job: JobId, group: ResultGroup) -> io::Result<()> {
        self.groups.join(job, group, self.socket.get(), self.local)
    }

    fn leave(&mut self, job: JobId) {
        self.groups.leave(job, self.socket.get());
    }

    fn transmit(&mut self, build: Build<'_>) -> io::Result<Transmitted> {
        if self.staged.len() == BATCH {
            self.flush()?;
        }
        if self.staged.len() == BATCH {
            // Until the next wait: another lane may find room before, and this one would wait without end.
            self.is_full = true;
            self.counters.full += 1;
            return Ok(Transmitted::Full);
        }
        let start = self.staged.len() * CAPACITY;
        let packet = build(&mut self.outgoing[start..start + CAPACITY]);
        self.staged.extend(packet);
        Ok(packet.map_or(Transmitted::Nothing, |_| Transmitted::Staged))
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.taken < self.staged.len() {
            match self.send_some() {
                Ok(count) => self.taken += count,
                Err(Errno::EAGAIN | Errno::ENOBUFS) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => self.refuse(error),
            }
        }
        self.staged.clear();
        self.taken = 0;
        Ok(())
    }

    fn interest<'a>(&'a mut self, fds: &mut Vec<(BorrowedFd<'a>, PollFlags)>) -> Option<Instant> {
        let mut interest = PollFlags::POLLIN;
        interest.set(PollFlags::POLLOUT, !self.staged.is_empty());
        fds.push((self.socket.as_fd(), interest));
        fds.extend(self.groups.sockets().map(|socket| (socket.as_fd(), PollFlags::POLLIN)));
        // A packet found no room before the flush, and would now. Once only: its lane may be gone.
        let was_full = std::mem::take(&mut self.is_full);
        (was_full && self.staged.is_empty()).then(Instant::now)
    }

    fn quiesce(&mut self, _deadline: Instant) {
        // The kernel has copied what was sent.
    }

    fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(&self.socket).chain(&self.paths).map(AsFd::as_fd).collect()
    }

    fn report(&self) -> IoReport {
        let sockets = std::iter::once(&self.socket).chain(&self.paths);
        let counts = sockets.map(DatagramSocket::counts).fold(self.groups.counts(), Counts::add);
        IoReport { counts, ..self.counters.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame_io::wait_for;
    use super::*;
    use std::time::Duration;
    use sumac_wire::header::HEADER_LEN;
    use sumac_wire::{Header, Kind};

    /// Returns two sockets, and the second one's address.
    fn pair() -> (UdpFrameIo, UdpFrameIo, SocketAddrV4) {
        let [one, other] = [0; 2].map(|port| UdpFrameIo::bind(Ipv4Addr::LOCALHOST, port).unwrap());
        let to = other.local();
        (one, other, to)
    }

    fn packet(number: usize, to: SocketAddrV4, dscp_ecn: u8) -> impl FnMut(&mut [u8]) -> Option<Outgoing> {
        move |bytes| {
            let header =
                Header { kind: Kind::Result as u8, seq: number as u32, elements: 11, ..Header::default() };
            bytes[..HEADER_LEN].copy_from_slice(&header.to_bytes());
            Some(Outgoing {
                len: HEADER_LEN + 44,
                to,
                mac: [0; 6],
                path: number as u16,
                dscp_ecn,
                checksum: true,
            })
        }
    }

    /// Sends packets with these DSCP and ECN bytes. Returns the numbers of those that arrived, and whether
    /// they were marked.
    fn exchange(
        one: &mut UdpFrameIo,
        other: &mut UdpFrameIo,
        to: SocketAddrV4,
        tos: &[u8],
    ) -> Vec<(usize, bool)> {
        for (number, tos) in tos.iter().enumerate() {
            assert_eq!(one.transmit(&mut packet(number, to, *tos)).unwrap(), Transmitted::Staged);
        }
        one.flush().unwrap();
        let mut arrived = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(5);
        while arrived.len() < tos.len() && Instant::now() < deadline {
            wait_for([&mut *other as &mut dyn FrameIo], Some(deadline), one.socket.as_fd()).unwrap();
            let from = one.local();
            other
                .receive(&mut |received| {
                    assert_eq!((received.from, received.elements.len()), (from, 44));
                    arrived.push((received.header.seq as usize, received.is_marked));
                })
                .unwrap();
        }
        arrived
    }

    #[test]
    fn datagrams_arrive_in_order_with_their_sender() {
        let (mut one, mut other, to) = pair();
        // More than a batch, and several priorities within one.
        let tos: Vec<u8> = (0..200u8).map(|number| number / 10 % 3 * 32).collect();
        let arrived = exchange(&mut one, &mut other, to, &tos);
        assert_eq!(arrived, (0..200).map(|number| (number, false)).collect::<Vec<_>>());
        assert_eq!((one.report().counts.sent, other.report().counts.received), (200, 200));
        assert!(one.report().counts.batches_sent < 100, "{:?}", one.report());
    }

    #[test]
    fn each_path_has_a_source_port() {
        let (one, mut other, to) = pair();
        let mut one = one.with_paths(4).unwrap();
        assert_eq!(one.paths(), 4);
        for number in 0..100 {
            assert_eq!(one.transmit(&mut packet(number, to, 0)).unwrap(), Transmitted::Staged);
        }
        one.flush().unwrap();
        let mut ports = std::collections::BTreeMap::<u16, Vec<u32>>::new();
        let deadline = Instant::now() + Duration::from_secs(5);
        while ports.values().map(Vec::len).sum::<usize>() < 100 && Instant::now() < deadline {
            wait_for([&mut other as &mut dyn FrameIo], Some(deadline), one.socket.as_fd()).unwrap();
            other
                .receive(&mut |received| {
                    ports.entry(received.from.port()).or_default().push(received.header.seq % 4);
                })
                .unwrap();
        }
        assert_eq!(ports.len(), 4, "{ports:?}");
        assert!(
            ports.values().all(|seqs| seqs.len() == 25 && seqs.iter().all(|seq| *seq == seqs[0])),
            "{ports:?}"
        );
        assert!(ports.contains_key(&one.local().port()), "the first path's is the one that others answer to");
    }

    #[test]
    fn ecn_marks_are_received() {
        let (mut one, mut other, to) = pair();
        // Not capable, capable in both ways, marked; the same with a priority.
        let arrived = exchange(&mut one, &mut other, to, &[0, 1, 2, 3, 0xa0, 0xa1, 0xa2, 0xa3]);
        let marked: Vec<usize> =
            arrived.iter().filter(|(_, marked)| *marked).map(|(number, _)| *number).collect();
        assert_eq!((arrived.len(), marked), (8, vec![3, 7]));
    }

    #[test]
    fn shards_have_consecutive_ports() {
        let ios = UdpFrameIo::bind_shards(Ipv4Addr::LOCALHOST, 0, 4, 1).unwrap();
        let first = ios[0].local().port();
        let expected: Vec<_> = (first..first + 4).collect();
        assert_eq!(ios.iter().map(|io| io.local().port()).collect::<Vec<_>>(), expected);
        assert!(ios.iter().all(|io| io.shards() == 4));
    }

    #[test]
    fn idle_receive_and_transmit_succeed() {
        let (mut one, _other, _) = pair();
        assert_eq!(one.receive(&mut |_| unreachable!()).unwrap(), 0);
        assert_eq!(one.transmit(&mut |_| None).unwrap(), Transmitted::Nothing);
        one.flush().unwrap();
        assert_eq!(one.report().counts.sent, 0);
    }

    #[test]
    fn no_sleep_after_a_packet_found_no_room_before_the_flush() {
        let (mut one, _other, to) = pair();
        let idle = UdpFrameIo::bind(Ipv4Addr::LOCALHOST, 0).unwrap();
        one.staged.extend((0..BATCH).filter_map(|number| packet(number, to, 0)(&mut [0; CAPACITY])));
        one.is_full = true;
        one.flush().unwrap();
        assert_eq!(one.transmit(&mut |_| None).unwrap(), Transmitted::Nothing, "another lane finds room");
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(!wait_for([&mut one as &mut dyn FrameIo], Some(deadline), idle.socket.as_fd()).unwrap());
        assert!(Instant::now() < deadline, "it slept");
        assert!(!one.is_full);
    }

    #[test]
    fn a_refused_packet_is_counted_and_delays_no_other() {
        let (mut one, mut other, to) = pair();
        let unreachable = SocketAddrV4::new(Ipv4Addr::BROADCAST, to.port());
        one.transmit(&mut packet(1, unreachable, 0)).unwrap();
        one.transmit(&mut packet(0, to, 0)).unwrap();
        one.flush().unwrap();
        let report = one.report();
        assert_eq!((report.refused, report.counts.sent), (1, 1), "{report:?}");
        assert!(report.last_refusal.is_some_and(|why| why.contains("255.255.255.255")));
        let late = Instant::now() + Duration::from_secs(5);
        wait_for([&mut other as &mut dyn FrameIo], Some(late), one.socket.as_fd()).unwrap();
        assert_eq!(other.receive(&mut |_| ()).unwrap(), 1);
    }
}
