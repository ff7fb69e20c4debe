//! UDP sockets that hand runs of datagrams to the kernel as one message each, and take runs from it:
//! segmentation offload in both directions (UDP_SEGMENT and UDP_GRO of udp(7)).
//!
//! A message costs the stack about as much as a datagram, whether it holds one or forty. It is cut into
//! datagrams by the device, or just before it; over veths and loopback it stays whole.
//!
//! The DSCP and ECN byte goes with each message. quinn-udp sends ECN only, and so would overwrite the class.
#![forbid(unsafe_code)]

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    ops::Range,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use nix::{
    cmsg_space,
    errno::Errno,
    sys::socket::{
        ControlMessage, ControlMessageOwned, GetSockOpt, MsgFlags, MultiHeaders, SetSockOpt, SockaddrIn,
        getsockopt, recvmmsg, sendmsg, setsockopt, sockopt,
    },
};
use serde::Serialize;

/// The most datagrams of a message: UDP_MAX_SEGMENTS of Linux before 6.9.
const MOST_SEGMENTS: usize = 64;
/// The most bytes of a message: what IPv4 and UDP headers leave of 65,535.
const MOST_BYTES: usize = 65_507;
/// Bytes for a received message.
const MESSAGE: usize = 1 << 16;
/// Bytes that are asked for of the kernel's buffer each way: some thousand packets.
const SOCKET_BUFFER: usize = 8 << 20;

/// A datagram to send.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    pub to: SocketAddrV4,
    pub dscp_ecn: u8,
    pub payload: &'a [u8],
}

/// A datagram that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub from: SocketAddrV4,
    pub dscp_ecn: u8,
    /// Its payload in the buffer.
    pub payload: Range<usize>,
}

/// The datagrams of a socket, and the messages that they were in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub received: u64,
    pub sent: u64,
    pub batches_received: u64,
    pub batches_sent: u64,
}

impl std::ops::Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            received: self.received + other.received,
            sent: self.sent + other.sent,
            batches_received: self.batches_received + other.batches_received,
            batches_sent: self.batches_sent + other.batches_sent,
        }
    }
}

/// A UDP socket. Its datagrams' payloads are the caller's.
#[derive(Debug)]
pub struct DatagramSocket {
    socket: UdpSocket,
    /// Whether the kernel takes runs: until it has refused one.
    has_segmentation: bool,
    unread_bytes: usize,
    counts: Counts,
}

impl DatagramSocket {
    /// Takes over a socket, enlarges its buffers, and has it report DSCP and ECN and take and pass on runs. A
    /// kernel without UDP_SEGMENT or UDP_GRO has single datagrams.
    ///
    /// # Errors
    /// When the kernel does not report DSCP and ECN.
    pub fn new(socket: UdpSocket) -> nix::Result<DatagramSocket> {
        setsockopt(&socket, sockopt::IpRecvTos, &true)?;
        if let Err(error) = setsockopt(&socket, sockopt::UdpGroSegment, &true) {
            tracing::warn!(error = error.desc(), "the kernel has no UDP_GRO: datagrams arrive one by one");
        }
        let received = enlarge(&socket, "net.core.rmem_max", sockopt::RcvBufForce, sockopt::RcvBuf);
        enlarge(&socket, "net.core.wmem_max", sockopt::SndBufForce, sockopt::SndBuf);
        // The kernel grants twice what is asked for, and needs the half for what is around packets.
        let unread_bytes = received / 2;
        Ok(DatagramSocket {
            has_segmentation: has_segmentation(&socket),
            socket,
            unread_bytes,
            counts: Counts::default(),
        })
    }

    /// Takes over a socket that only sends. Nobody reads what arrives there, and the kernel keeps as little
    /// of it as it can.
    ///
    /// # Errors
    /// When the kernel refuses the size of a buffer.
    pub fn sending(socket: UdpSocket) -> nix::Result<DatagramSocket> {
        setsockopt(&socket, sockopt::RcvBuf, &0)?;
        ask(&socket, sockopt::SndBufForce, sockopt::SndBuf)?;
        Ok(DatagramSocket {
            has_segmentation: has_segmentation(&socket),
            socket,
            unread_bytes: 0,
            counts: Counts::default(),
        })
    }

    pub fn get(&self) -> &UdpSocket {
        &self.socket
    }

    /// Returns the bytes of packets that the kernel holds until they are received. More are lost.
    pub fn unread_bytes(&self) -> usize {
        self.unread_bytes
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Sends the first of these datagrams and, in the same message, those after it that can go with it: to
    /// the same address, with the same DSCP and ECN, of the same length, the last one maybe shorter. Returns
    /// how many were sent; none of none.
    ///
    /// # Errors
    /// When the kernel refuses the first datagram: the errors of sendmsg(2).
    pub fn send<'a>(
        &mut self,
        datagrams: impl IntoIterator<Item = Datagram<'a>>,
        flags: MsgFlags,
    ) -> nix::Result<usize> {
        let mut datagrams = datagrams.into_iter();
        let Some(first) = datagrams.next() else { return Ok(0) };
        let mut slices = vec![IoSlice::new(first.payload)];
        if self.has_segmentation {
            extend_run(&mut slices, first, datagrams);
        }
        let address = SockaddrIn::from(first.to);
        let (tos, segment) = (first.dscp_ecn, first.payload.len() as u16);
        let mut messages = vec![ControlMessage::Ipv4Tos(&tos)];
        if slices.len() > 1 {
            messages.push(ControlMessage::UdpGsoSegments(&segment));
        }
        match sendmsg(self.socket.as_raw_fd(), &slices, &messages, flags, Some(&address)) {
            Ok(_) => {
                self.counts.sent += slices.len() as u64;
                self.counts.batches_sent += 1;
                Ok(slices.len())
            }
            // A device that writes no checksums, or a path of a smaller MTU.
            Err(error @ (Errno::EIO | Errno::EINVAL | Errno::EMSGSIZE | Errno::EOPNOTSUPP))
                if slices.len() > 1 =>
            {
                tracing::warn!(to = %first.to, error = error.desc(),
                    "the kernel takes no runs of datagrams; sending one by one");
                self.has_segmentation = false;
                self.send([first], flags)
            }
            Err(error) => Err(error),
        }
    }

    /// Receives messages into `buffer`, one for each [`buffer_len`]`(1)` bytes of it at most, and lists their
    /// datagrams. Returns the number of messages.
    ///
    /// # Errors
    /// When the kernel has no datagram or refuses to receive: the errors of recvmmsg(2).
    pub fn receive(
        &mut self,
        buffer: &mut [u8],
        arrivals: &mut Vec<Arrival>,
        flags: MsgFlags,
    ) -> nix::Result<usize> {
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            buffer.chunks_exact_mut(MESSAGE).map(|bytes| [IoSliceMut::new(bytes)]).collect();
        let mut headers = MultiHeaders::<SockaddrIn>::preallocate(slices.len(), Some(cmsg_space!(u8, i32)));
        let messages = recvmmsg(self.socket.as_raw_fd(), &mut headers, slices.iter_mut(), flags, None)?;
        let (mut count, before) = (0, arrivals.len());
        for message in messages {
            let start = count * MESSAGE;
            count += 1;
            let Some(from) = message.address else { continue };
            let (mut dscp_ecn, mut segment) = (0, message.bytes);
            for control in message.cmsgs().into_iter().flatten() {
                match control {
                    ControlMessageOwned::Ipv4Tos(tos) => dscp_ecn = tos,
                    ControlMessageOwned::UdpGroSegments(bytes) => {
                        segment = usize::try_from(bytes).unwrap_or(segment);
                    }
                    _ => {}
                }
            }
            let (end, segment) = (start + message.bytes, segment.max(1));
            // An empty datagram is one.
            for at in (start..end.max(start + 1)).step_by(segment) {
                arrivals.push(Arrival { from: from.into(), dscp_ecn, payload: at..end.min(at + segment) });
            }
        }
        self.counts.received += (arrivals.len() - before) as u64;
        self.counts.batches_received += count as u64;
        Ok(count)
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the address of this host that packets to another come from, by the kernel's routes.
///
/// # Errors
/// When there is no route, or the kernel has no socket.
pub fn source_for(to: SocketAddrV4) -> io::Result<Ipv4Addr> {
    let asked = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // Sends nothing; it only selects the route.
    asked.connect(to)?;
    match asked.local_addr()? {
        SocketAddr::V4(local) => Ok(*local.ip()),
        SocketAddr::V6(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
    }
}

/// Returns the bytes that a buffer for so many messages has.
pub const fn buffer_len(messages: usize) -> usize {
    messages * MESSAGE
}

/// Whether the kernel takes runs. Before Linux 4.18 a message's UDP_SEGMENT is ignored, and the run would
/// leave as one datagram.
fn has_segmentation(socket: &UdpSocket) -> bool {
    let segmented = setsockopt(socket, sockopt::UdpGsoSegment, &0);
    if let Err(error) = segmented {
        tracing::warn!(error = error.desc(), "the kernel has no UDP_SEGMENT: datagrams leave one by one");
    }
    segmented.is_ok()
}

/// Asks for a large buffer; the privileged form goes above the system's maximum.
fn ask(
    socket: &UdpSocket,
    force: impl SetSockOpt<Val = usize>,
    buffer: impl SetSockOpt<Val = usize>,
) -> nix::Result<()> {
    setsockopt(socket, force, &SOCKET_BUFFER).or_else(|_| setsockopt(socket, buffer, &SOCKET_BUFFER))
}

/// Asks for a large buffer, with a warning when it is small. Returns its size.
fn enlarge<F, B>(socket: &UdpSocket, limit: &'static str, force: F, buffer: B) -> usize
where
    F: SetSockOpt<Val = usize>,
    B: SetSockOpt<Val = usize> + GetSockOpt<Val = usize> + Copy,
{
    let bytes =
        ask(socket, force, buffer).and_then(|()| getsockopt(socket, buffer)).unwrap_or_else(|error| {
            tracing::warn!(error = error.desc(), "cannot enlarge the socket's buffers");
            0
        });
    if bytes < SOCKET_BUFFER {
        tracing::warn!(
            bytes,
            wanted = SOCKET_BUFFER,
            "small socket buffers lose packets in bursts: raise {limit}, or give CAP_NET_ADMIN"
        );
    }
    bytes
}

/// Adds those of `datagrams` to a run that can go with its first.
fn extend_run<'a>(
    slices: &mut Vec<IoSlice<'a>>,
    first: Datagram<'a>,
    datagrams: impl Iterator<Item = Datagram<'a>>,
) {
    let segment = first.payload.len();
    let most = MOST_SEGMENTS.min(MOST_BYTES / segment.max(1));
    // The kernel refuses empty segments.
    let is_alike = |other: &Datagram<'_>| {
        let is_fit = (1..=segment).contains(&other.payload.len());
        is_fit && other.to == first.to && other.dscp_ecn == first.dscp_ecn
    };
    for other in datagrams.take_while(is_alike) {
        if slices.len() >= most {
            return;
        }
        slices.push(IoSlice::new(other.payload));
        if other.payload.len() < segment {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> (DatagramSocket, SocketAddrV4) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let SocketAddr::V4(local) = socket.local_addr().unwrap() else { panic!("no IPv4") };
        (DatagramSocket::new(socket).unwrap(), local)
    }

    /// Sends payloads of these lengths and DSCP and ECN bytes; returns the number of messages, and what
    /// arrived: lengths, first bytes and DSCP and ECN.
    fn exchange(sender: &mut DatagramSocket, all: &[(usize, u8)]) -> (usize, Vec<(usize, u8, u8)>, usize) {
        let (mut receiver, to) = socket();
        let payloads: Vec<Vec<u8>> = (0u8..).zip(all).map(|(number, (len, _))| vec![number; *len]).collect();
        let datagram = |at: usize| Datagram { to, dscp_ecn: all[at].1, payload: &payloads[at] };
        let (mut sent, mut messages) = (0, 0);
        while sent < all.len() {
            sent += sender.send((sent..all.len()).map(datagram), MsgFlags::empty()).unwrap();
            messages += 1;
        }
        let mut buffer = vec![0; buffer_len(4)];
        let (mut got, mut received) = (Vec::new(), 0);
        while got.len() < all.len() {
            let mut arrivals = Vec::new();
            received += receiver.receive(&mut buffer, &mut arrivals, MsgFlags::MSG_WAITFORONE).unwrap();
            for Arrival { from, dscp_ecn, payload } in arrivals {
                assert_eq!(SocketAddr::V4(from), sender.get().local_addr().unwrap());
                let bytes = &buffer[payload];
                assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                got.push((bytes.len(), bytes.first().copied().unwrap_or_default(), dscp_ecn));
            }
        }
        (messages, got, received)
    }

    #[test]
    fn runs_leave_and_arrive_as_one_message() {
        let (mut sender, _) = socket();
        let all: Vec<(usize, u8)> =
            [vec![(1000, 0); 70], vec![(1000, 0x22); 10], vec![(300, 0x22)], vec![(300, 0x22); 3]].concat();
        let (messages, got, received) = exchange(&mut sender, &all);
        let expected: Vec<_> = (0u8..).zip(&all).map(|(number, (len, tos))| (*len, number, *tos)).collect();
        assert_eq!(got, expected);
        // 64 and 6, then 10 with a shorter one at their end, then three.
        assert_eq!((messages, received), (4, 4));
        let counts = sender.counts();
        assert_eq!((counts.sent, counts.batches_sent), (84, 4));
    }

    /// Refuses UDP_SEGMENT and UDP_GRO to this thread, as a kernel without them does.
    fn without_offload() {
        use seccompiler::{
            SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, SeccompCondition, SeccompFilter,
            SeccompRule,
        };
        let is = |argument, value: i32| SeccompCondition::new(argument, Dword, Eq, value as u64).unwrap();
        let rule = |option| SeccompRule::new(vec![is(1, libc::SOL_UDP), is(2, option)]).unwrap();
        let rules = vec![rule(libc::UDP_SEGMENT), rule(libc::UDP_GRO)];
        let refused = SeccompAction::Errno(libc::ENOPROTOOPT as u32);
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let rules = [(libc::SYS_setsockopt, rules)].into();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
        let program: seccompiler::BpfProgram = filter.try_into().unwrap();
        seccompiler::apply_filter(&program).unwrap();
    }

    #[test]
    fn a_kernel_without_offload_has_single_datagrams() {
        // A thread of its own: its filter ends with it.
        let run = || {
            without_offload();
            let (mut sender, _) = socket();
            let (messages, got, received) = exchange(&mut sender, &[(100, 0); 5]);
            assert_eq!((messages, got.len(), received), (5, 5, 5));
            let counts = Counts { sent: 5, batches_sent: 5, ..Counts::default() };
            assert_eq!(sender.counts(), counts);
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn a_longer_datagram_and_an_empty_one_begin_runs_of_their_own() {
        let (mut sender, _) = socket();
        let (messages, got, _) = exchange(&mut sender, &[(10, 0), (20, 0), (20, 0), (0, 0), (20, 0)]);
        assert_eq!(got.iter().map(|(len, ..)| *len).collect::<Vec<_>>(), [10, 20, 20, 0, 20]);
        assert_eq!(messages, 4);
    }
}
