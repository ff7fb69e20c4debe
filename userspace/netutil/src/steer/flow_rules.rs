//! Receive flow classification rules (`ethtool -N`) that map a UDP destination port to a receive queue.
//!
//! The kernel takes these rules by `ioctl(SIOCETHTOOL)` only; ethtool's netlink family has no request for
//! them. The structures are those of `linux/ethtool.h` (`ethtool_rxnfc`, `ethtool_rx_flow_spec`), in host
//! byte order. The match values are in network order.

use std::{ffi::CString, io, os::fd::AsRawFd as _, os::unix::net::UnixDatagram};

use nix::libc;
use serde::Serialize;

const GET_HASH: u32 = 0x29;
const COUNT_RULES: u32 = 0x2e;
const GET_RULE: u32 = 0x2f;
const LIST_RULES: u32 = 0x30;
const DELETE_RULE: u32 = 0x31;
const INSERT_RULE: u32 = 0x32;

const UDP4: u32 = 2;
/// `FLOW_EXT`: the extended fields are valid. Some drivers set it on all rules, with empty masks.
const EXTENDED: u32 = 1 << 31;
/// `RX_CLS_LOC_SPECIAL` in the reply to `ETHTOOL_GRXCLSRLCNT`: the driver chooses the location itself.
const DRIVER_CHOOSES: u64 = 1 << 31;
const ANY_LOCATION: u32 = u32::MAX;
/// Offset of the destination port in `ethtool_tcpip4_spec`.
const PORT: usize = 10;
/// Most rules that are listed: the size of the largest NIC tables.
const LISTED: usize = 8192;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct FlowSpec {
    flow_type: u32,
    value: [u8; 52],
    value_extended: [u8; 20],
    mask: [u8; 52],
    mask_extended: [u8; 20],
    queue: u64,
    location: u32,
}

/// `ethtool_rxnfc` with room for the locations of `N` rules, at least one.
#[repr(C)]
struct RxNfc<const N: usize> {
    command: u32,
    flow_type: u32,
    data: u64,
    spec: FlowSpec,
    count: u32,
    locations: [u32; N],
}

/// `ifreq` with a data pointer. The kernel reads all of its 40 bytes (32 with 4-byte pointers).
#[repr(C)]
struct IfRequest {
    name: [libc::c_char; libc::IFNAMSIZ],
    data: *mut libc::c_void,
    unused: [usize; 2],
}

/// A rule that directs IPv4 packets with this UDP destination port to this queue, whatever their other
/// fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PortRule {
    /// The rule's location in the NIC's table, which identifies it.
    pub location: u32,
    pub port: u16,
    pub queue: u32,
}

/// The fields of the receive hash, by their `RXH_*` bit.
const HASHED: [(u64, &str); 8] = [
    (1 << 1, "destination MAC"),
    (1 << 2, "VLAN"),
    (1 << 3, "protocol"),
    (1 << 4, "source address"),
    (1 << 5, "destination address"),
    (1 << 6, "source port"),
    (1 << 7, "destination port"),
    (1 << 8, "GTP tunnel"),
];

/// The rules of one interface. Changing them needs `CAP_NET_ADMIN`, reading them does not.
#[derive(Debug)]
pub struct FlowRules {
    device: Device,
    name: [libc::c_char; libc::IFNAMSIZ],
}

#[derive(Debug)]
enum Device {
    /// The kernel's driver, by an `ioctl` on any socket.
    Socket(UnixDatagram),
    #[cfg(test)]
    Fake(Box<tests::FakeDriver>),
}

struct Table {
    /// Number of locations; 0 when the driver does not report it.
    size: u32,
    driver_chooses: bool,
    used: Vec<u32>,
}

impl FlowRules {
    /// Opens the rules of an interface in the calling thread's network namespace. The interface need not
    /// exist yet.
    pub fn open(interface: &str) -> io::Result<FlowRules> {
        let text = CString::new(interface).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let bytes = text.as_bytes_with_nul();
        if bytes.len() > libc::IFNAMSIZ {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut name = [0; libc::IFNAMSIZ];
        for (to, from) in name.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        Ok(FlowRules { device: Device::Socket(UnixDatagram::unbound()?), name })
    }

    /// Returns the fields that the receive hash covers for UDP over IPv4. The hash selects the queue where no
    /// rule does.
    ///
    /// # Errors
    /// `EOPNOTSUPP` when the driver does not report them.
    pub fn udp4_hash(&self) -> io::Result<Vec<&'static str>> {
        let mut request = RxNfc::<1>::new(GET_HASH);
        request.flow_type = UDP4;
        self.ioctl(&mut request)?;
        Ok(HASHED.iter().filter(|(bit, _)| request.data & bit != 0).map(|(_, name)| *name).collect())
    }

    /// Returns the rules that match the UDP destination port alone.
    ///
    /// # Errors
    /// `EOPNOTSUPP` when the driver supports no rules, `ENODEV` when there is no such interface.
    pub(super) fn rules(&self) -> io::Result<Vec<PortRule>> {
        let mut found = Vec::new();
        for location in self.table()?.used {
            let mut request = RxNfc::<1>::new(GET_RULE);
            request.spec.location = location;
            match self.ioctl(&mut request) {
                Ok(()) => found.extend(request.spec.port_rule()),
                // Removed since it was listed.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Adds a rule and returns it with its location. Existing rules keep precedence where the table is
    /// ordered.
    ///
    /// # Errors
    /// The driver's error; `ENOSPC` when its table is full.
    pub(super) fn insert(&self, port: u16, queue: u32) -> io::Result<PortRule> {
        let table = self.table()?;
        let mut request = RxNfc::<1>::new(INSERT_RULE);
        request.spec = FlowSpec::to_queue(port, queue);
        request.spec.location = match table.driver_chooses {
            true => ANY_LOCATION,
            false => table.last_free().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))?,
        };
        self.ioctl(&mut request)?;
        Ok(PortRule { location: request.spec.location, port, queue })
    }

    /// Removes the rule at a location, whatever it matches.
    pub(super) fn delete(&self, location: u32) -> io::Result<()> {
        let mut request = RxNfc::<1>::new(DELETE_RULE);
        request.spec.location = location;
        self.ioctl(&mut request)
    }

    fn table(&self) -> io::Result<Table> {
        let mut request = RxNfc::<1>::new(COUNT_RULES);
        self.ioctl(&mut request)?;
        let driver_chooses = request.data & DRIVER_CHOOSES != 0;
        let mut list = Box::new(RxNfc::<LISTED>::new(LIST_RULES));
        // The exact count: some drivers fail when there is room for more rules than they have.
        list.count = request.count;
        self.ioctl(&mut list)?;
        let used = list.locations.iter().take(list.count as usize).copied().collect();
        let size = u32::try_from(list.data & !DRIVER_CHOOSES).unwrap_or(0);
        Ok(Table { size, driver_chooses, used })
    }

    fn ioctl<const N: usize>(&self, request: &mut RxNfc<N>) -> io::Result<()> {
        if request.command == LIST_RULES && request.count as usize > N {
            return Err(io::Error::other(format!("{} rules exceed the {N} that can be read", request.count)));
        }
        let fd = match &self.device {
            Device::Socket(socket) => socket.as_raw_fd(),
            #[cfg(test)]
            Device::Fake(driver) => return driver.handle(request),
        };
        let mut ifreq = IfRequest { name: self.name, data: (&raw mut *request).cast(), unused: [0; 2] };
        // SAFETY: `ifreq` has the kernel's size and points to a request that has at least the kernel's size
        // for its command (`N` is not 0), with room for the locations of `count` rules. Both hold integers
        // only and live until the call returns.
        #[expect(unsafe_code, reason = "no safe crate wraps SIOCETHTOOL's classification rules")]
        let result = unsafe { libc::ioctl(fd, libc::SIOCETHTOOL as libc::Ioctl, &raw mut ifreq) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Table {
    /// Returns the last free location, so that the rules of others keep precedence.
    fn last_free(&self) -> Option<u32> {
        (0..self.size).rev().find(|location| !self.used.contains(location))
    }
}

impl<const N: usize> RxNfc<N> {
    fn new(command: u32) -> RxNfc<N> {
        const { assert!(N > 0) };
        RxNfc { command, flow_type: 0, data: 0, spec: FlowSpec::EMPTY, count: 0, locations: [0; N] }
    }
}

impl FlowSpec {
    const EMPTY: FlowSpec = FlowSpec {
        flow_type: 0,
        value: [0; 52],
        value_extended: [0; 20],
        mask: [0; 52],
        mask_extended: [0; 20],
        queue: 0,
        location: 0,
    };

    fn to_queue(port: u16, queue: u32) -> FlowSpec {
        let mut spec = FlowSpec { flow_type: UDP4, queue: queue.into(), ..FlowSpec::EMPTY };
        spec.value[PORT..PORT + 2].copy_from_slice(&port.to_be_bytes());
        spec.mask[PORT..PORT + 2].fill(0xff);
        spec
    }

    /// Returns the rule if it matches the UDP destination port alone and directs to a queue of this
    /// interface.
    fn port_rule(&self) -> Option<PortRule> {
        let port = u16::from_be_bytes([self.value[PORT], self.value[PORT + 1]]);
        let by_port = FlowSpec::to_queue(port, 0);
        // The upper 32 bits are a virtual function's number; the actions drop and wake set all of them.
        let queue = u32::try_from(self.queue).ok()?;
        let is_like = self.flow_type & !EXTENDED == UDP4
            && self.mask == by_port.mask
            && self.mask_extended == by_port.mask_extended;
        is_like.then_some(PortRule { location: self.location, port, queue })
    }
}

#[cfg(test)]
pub(super) mod tests;
