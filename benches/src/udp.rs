//! Two UDP sockets on loopback, and a window of datagrams from one to the other.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};

use nix::sys::socket::MsgFlags;
use sumac_udp::{Arrival, Datagram, DatagramSocket, buffer_len};

/// Messages that are received at once, as the daemon does.
const MESSAGES: usize = 8;

pub struct Sockets {
    sender: DatagramSocket,
    receiver: DatagramSocket,
    to: SocketAddrV4,
    payload: Vec<u8>,
    buffer: Vec<u8>,
    arrivals: Vec<Arrival>,
}

fn bind() -> (DatagramSocket, SocketAddrV4) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port on loopback");
    let Ok(SocketAddr::V4(local)) = socket.local_addr() else { panic!("no IPv4") };
    (DatagramSocket::new(socket).expect("a kernel that reports DSCP and ECN"), local)
}

impl Sockets {
    /// Sockets for datagrams of so many bytes.
    pub fn new(bytes: usize) -> Sockets {
        let ((sender, _), (receiver, to)) = (bind(), bind());
        let (payload, buffer) = (vec![0; bytes], vec![0; buffer_len(MESSAGES)]);
        Sockets { sender, receiver, to, payload, buffer, arrivals: Vec::new() }
    }

    /// Sends a window of datagrams in one go, and receives them.
    pub fn window(&mut self, datagrams: usize) {
        self.counted_send(datagrams);
        self.counted_receive(datagrams);
    }

    #[inline(never)]
    fn counted_send(&mut self, count: usize) {
        let datagram = Datagram { to: self.to, dscp_ecn: 0, payload: &self.payload };
        let mut sent = 0;
        while sent < count {
            let rest = std::iter::repeat_n(datagram, count - sent);
            sent += self.sender.send(rest, MsgFlags::empty()).expect("a socket on loopback");
        }
    }

    #[inline(never)]
    fn counted_receive(&mut self, count: usize) {
        self.arrivals.clear();
        while self.arrivals.len() < count {
            let Sockets { receiver, buffer, arrivals, .. } = self;
            receiver.receive(buffer, arrivals, MsgFlags::MSG_WAITFORONE).expect("a socket on loopback");
        }
    }
}
