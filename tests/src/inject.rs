//! Raw frames sent from inside a network namespace.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, bind, send, socket};
use sumac_hostprog::Attached;
use sumac_lab::deployment::Deployment;
use sumac_lab::namespace::Namespace;
use sumac_wire::DEFAULT_BASE_PORT;
use sumac_wire::frame::Endpoints;
use sumac_wire::tables::HostJobEntry;

use crate::wait::eventually;

/// Runs something on a thread of its own in another network namespace.
pub fn inside<T: Send>(namespace: &Namespace, body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let file = File::open(namespace.path()).unwrap();
            setns(file, CloneFlags::CLONE_NEWNET).unwrap();
            body()
        });
        thread.join().unwrap()
    })
}

/// A raw socket (AF_PACKET) on an interface. It needs CAP_NET_RAW.
#[derive(Debug)]
pub struct Injector {
    socket: OwnedFd,
}

impl Injector {
    /// A socket on a host's interface.
    pub fn new(host: &Namespace, interface: &str) -> Injector {
        inside(host, || {
            // Protocol 0: it receives nothing.
            let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).unwrap();
            bind(socket.as_raw_fd(), &link(interface)).unwrap();
            Injector { socket }
        })
    }

    /// Sends one frame, however full the queues are.
    pub fn send(&self, frame: &[u8]) {
        eventually("room for a raw frame", || {
            match send(self.socket.as_raw_fd(), frame, MsgFlags::empty()) {
                Ok(_) => Some(()),
                Err(Errno::ENOBUFS) => None,
                Err(error) => panic!("sending a frame of {} bytes: {error}", frame.len()),
            }
        });
    }
}

/// An interface's address as AF_PACKET has it.
fn link(interface: &str) -> LinkAddr {
    let mut addresses = getifaddrs().unwrap().filter(|address| address.interface_name == interface);
    let link = addresses.find_map(|address| address.address?.as_link_addr().copied());
    link.unwrap_or_else(|| panic!("no interface {interface}"))
}

/// Returns the entry of the only job in the host program's map: the token and addresses for forged frames.
pub fn job_at(sumac: &Deployment<'_>, host: &Namespace) -> (u16, HostJobEntry) {
    let lab = sumac.lab();
    let jobs =
        inside(host, || Attached::open(lab.worker_interface(), lab.pin_root()).unwrap().jobs().unwrap());
    assert_eq!(jobs.len(), 1, "jobs at {}", host.name());
    jobs[0]
}

/// The addresses of a frame from a worker to the aggregator.
pub fn to_aggregator(sumac: &Deployment<'_>, rank: u16) -> Endpoints {
    let (lab, spec) = (sumac.lab(), sumac.lab().spec());
    let ports = spec.aggregator_ports();
    let port = &ports[usize::from(rank).min(ports.len() - 1)];
    Endpoints {
        src_mac: lab.worker(rank).mac(lab.worker_interface()).unwrap(),
        dst_mac: lab.aggregator().mac(port).unwrap(),
        src_ip: u32::from(spec.worker_ip(rank)),
        dst_ip: u32::from(spec.aggregator_ip(rank)),
        src_port: 40_000,
        dst_port: DEFAULT_BASE_PORT,
        dscp_ecn: 0,
    }
}

/// The addresses of a frame to a worker that pretends to be from its aggregator.
pub fn to_worker(sumac: &Deployment<'_>, rank: u16) -> Endpoints {
    let there = to_aggregator(sumac, rank);
    Endpoints {
        src_mac: there.dst_mac,
        dst_mac: there.src_mac,
        src_ip: there.dst_ip,
        dst_ip: there.src_ip,
        src_port: DEFAULT_BASE_PORT,
        ..there
    }
}

/// The addresses of a frame from a worker to a parameter host, as it leaves the aggregator on its way there.
pub fn to_parameter_host(sumac: &Deployment<'_>, rank: u16, host: u16) -> Endpoints {
    let (lab, spec) = (sumac.lab(), sumac.lab().spec());
    Endpoints {
        src_mac: lab.aggregator().mac(&spec.host_port(host)).unwrap(),
        dst_mac: lab.parameter_hosts()[usize::from(host)].mac(lab.worker_interface()).unwrap(),
        dst_ip: u32::from(spec.host_ip(host)),
        ..to_aggregator(sumac, rank)
    }
}

/// An address that belongs to nobody in any lab.
pub const STRANGER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
