//! The far ends of the model's ports: packet sockets on veths, in the thread's network namespace.

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    process::Command,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
    },
};

/// Ports of the model, each a veth, by their numbers.
pub struct Ports {
    sockets: Vec<(u32, OwnedFd)>,
}

impl Ports {
    /// Makes veths, of which the model takes the ends that [`Ports::interface`] names.
    pub fn new(numbers: impl Iterator<Item = u32>) -> Ports {
        // The kernel would send frames of its own.
        for of in ["all", "default"] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6"), "1").unwrap();
        }
        ip("link set lo up");
        let open = |number| {
            let (near, far) = (Ports::interface(number), format!("far{number}"));
            ip(&format!("link add {near} type veth peer name {far}"));
            ip(&format!("link set {near} up"));
            ip(&format!("link set {far} up"));
            (number, packet_socket(&far))
        };
        Ports { sockets: numbers.map(open).collect() }
    }

    /// Returns the name of the model's end of a port.
    pub fn interface(number: u32) -> String {
        format!("near{number}")
    }

    pub fn send(&self, number: u32, frame: &[u8]) {
        let (_, socket) = self.sockets.iter().find(|(of, _)| *of == number).expect("a port of the model");
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(error) = send(socket.as_raw_fd(), frame, MsgFlags::empty()) {
            assert!(error == Errno::ENOBUFS && Instant::now() < deadline, "{} bytes: {error}", frame.len());
        }
    }

    /// Returns frames that have left, with their ports; none if nothing leaves for so long.
    pub fn receive(&self, within: Duration) -> Vec<(u32, Vec<u8>)> {
        let mut polled: Vec<PollFd<'_>> =
            self.sockets.iter().map(|(_, socket)| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
        poll(&mut polled, PollTimeout::try_from(within).unwrap()).unwrap();
        let ready = self.sockets.iter().zip(&polled).filter(|(_, polled)| polled.any() == Some(true));
        ready
            .flat_map(|((number, socket), _)| drain(socket).into_iter().map(|frame| (*number, frame)))
            .collect()
    }
}

fn drain(socket: &OwnedFd) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut frame = [0; 2048];
    loop {
        match recv(socket.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT) {
            Ok(len) => frames.push(frame[..len].to_vec()),
            Err(Errno::EAGAIN) => return frames,
            Err(error) => panic!("receiving a frame: {error}"),
        }
    }
}

fn packet_socket(interface: &str) -> OwnedFd {
    let mut addresses = getifaddrs().unwrap().filter(|address| address.interface_name == interface);
    let link: LinkAddr = addresses.find_map(|address| address.address?.as_link_addr().copied()).unwrap();
    let protocol = SockProtocol::EthAll;
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).unwrap();
    bind(socket.as_raw_fd(), &link).unwrap();
    socket
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).output().expect("ip of iproute2");
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}
