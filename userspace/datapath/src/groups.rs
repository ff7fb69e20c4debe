//! The multicast groups that results of jobs come by, where several workers are behind one port of the
//! aggregator: their sockets, for packets over UDP.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::ops::Add as _;
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt::ReuseAddr,
};
use sumac_host::JobId;
use sumac_udp::{Counts, DatagramSocket, source_for};

/// A job's group, and the aggregator that sends to it.
#[derive(Clone, Copy, Debug)]
pub struct ResultGroup {
    pub address: Ipv4Addr,
    pub aggregator: SocketAddrV4,
}

/// The groups that the jobs of one UDP socket have joined. Control planes number their jobs independently,
/// so jobs of two can have the same group.
#[derive(Debug, Default)]
pub(super) struct Groups {
    joined: Vec<Joined>,
    /// Of the sockets of groups that were left.
    former: Counts,
}

#[derive(Debug)]
struct Joined {
    address: Ipv4Addr,
    jobs: Vec<JobId>,
    /// Receives its packets, unless the job's own socket, which is of all addresses, does.
    socket: Option<DatagramSocket>,
    interface: Ipv4Addr,
}

impl Groups {
    /// Joins a job's group for the socket `own`, at `local`.
    pub(super) fn join(
        &mut self,
        job: JobId,
        group: ResultGroup,
        own: &UdpSocket,
        local: SocketAddrV4,
    ) -> io::Result<()> {
        let (address, is_of_all) = (group.address, local.ip().is_unspecified());
        let interface = if is_of_all { source_for(group.aggregator)? } else { *local.ip() };
        let is_same = |joined: &&mut Joined| joined.address == address && joined.interface == interface;
        if let Some(joined) = self.joined.iter_mut().find(is_same) {
            joined.jobs.push(job);
            return Ok(());
        }
        let to = SocketAddrV4::new(address, local.port());
        let socket = if is_of_all { None } else { Some(open(to)?) };
        let member = socket.as_ref().map_or(own, DatagramSocket::get);
        match member.join_multicast_v4(&address, &interface) {
            // A socket that another process has handed over is a member already.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && socket.is_none() => {}
            joined => joined?,
        }
        self.joined.push(Joined { address, jobs: vec![job], socket, interface });
        Ok(())
    }

    /// Leaves the group that a job has joined, unless another job has it too.
    pub(super) fn leave(&mut self, job: JobId, own: &UdpSocket) {
        self.joined.iter_mut().for_each(|joined| joined.jobs.retain(|other| *other != job));
        for joined in self.joined.extract_if(.., |joined| joined.jobs.is_empty()) {
            match joined.socket {
                Some(socket) => self.former = self.former + socket.counts(),
                // The interface may be gone, and its memberships with it.
                None => _ = own.leave_multicast_v4(&joined.address, &joined.interface),
            }
        }
    }

    /// Returns the packets of all sockets of groups so far.
    pub(super) fn counts(&self) -> Counts {
        self.sockets().map(DatagramSocket::counts).fold(self.former, Counts::add)
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &DatagramSocket> {
        self.joined.iter().filter_map(|joined| joined.socket.as_ref())
    }

    pub(super) fn sockets_mut(&mut self) -> impl Iterator<Item = &mut DatagramSocket> {
        self.joined.iter_mut().filter_map(|joined| joined.socket.as_mut())
    }
}

/// Opens a non-blocking socket for what is sent to a group. Other processes may have one too: another daemon
/// of the host, and for a moment the one that this one replaces.
fn open(group: SocketAddrV4) -> io::Result<DatagramSocket> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let opened = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    setsockopt(&opened, ReuseAddr, &true)?;
    bind(opened.as_raw_fd(), &SockaddrIn::from(group))?;
    Ok(DatagramSocket::new(UdpSocket::from(opened))?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use super::super::frame_io::{FrameIo, wait_for};
    use super::super::udp::UdpFrameIo;
    use super::*;

    const LATEST: Duration = Duration::from_secs(5);

    /// Sends a datagram to a group and then one to the socket itself. Returns how many came to the socket;
    /// all are malformed.
    fn received(io: &mut UdpFrameIo, group: Ipv4Addr, expected: u64) -> u64 {
        let before = io.report().malformed;
        // The source address chooses the interface.
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for to in [group, Ipv4Addr::LOCALHOST] {
            sender.send_to(&[1], (to, io.local().port())).unwrap();
        }
        let deadline = Instant::now() + LATEST;
        while io.report().malformed < before + expected && Instant::now() < deadline {
            wait_for([&mut *io as &mut dyn FrameIo], Some(deadline), sender.as_fd()).unwrap();
            io.receive(&mut |_| unreachable!()).unwrap();
        }
        io.receive(&mut |_| unreachable!()).unwrap();
        io.report().malformed - before
    }

    #[test]
    fn a_socket_is_in_a_group_until_the_last_job_leaves() {
        for ip in [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
            // Unique to this process: the groups of a network namespace are shared.
            let address = Ipv4Addr::from(0xef4d_0000 | std::process::id() & 0xffff);
            let mut io = UdpFrameIo::bind(ip, 0).unwrap();
            let aggregator = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
            let group = ResultGroup { address, aggregator };
            assert_eq!(received(&mut io, address, 1), 1, "{ip}: not yet");
            io.join(1, group).unwrap();
            io.join(2, group).unwrap();
            assert_eq!(received(&mut io, address, 2), 2, "{ip}");
            io.leave(1);
            assert_eq!(received(&mut io, address, 2), 2, "{ip}: another job has it");
            io.leave(2);
            assert_eq!(received(&mut io, address, 1), 1, "{ip}: none has it");
        }
    }

    #[test]
    fn two_processes_of_a_host_can_be_in_a_group() {
        let address = Ipv4Addr::from(0xef4e_0000 | std::process::id() & 0xffff);
        let group = ResultGroup { address, aggregator: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1) };
        let mut one = UdpFrameIo::bind(Ipv4Addr::LOCALHOST, 0).unwrap();
        let port = one.local().port();
        let mut other = UdpFrameIo::bind(Ipv4Addr::new(127, 0, 0, 2), port).unwrap();
        one.join(1, group).unwrap();
        other.join(1, group).unwrap();
        assert_eq!(received(&mut one, address, 2), 2);
        assert!(one.join(2, ResultGroup { address: Ipv4Addr::LOCALHOST, ..group }).is_err(), "no group");
    }
}
