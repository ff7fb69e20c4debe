//! The receive rules of a NIC: which queue the packets of a UDP port go to.
//!
//! The kernel takes rules by `ioctl(SIOCETHTOOL)` only; its netlink family has no request for them. The structures
//! are those of `linux/ethtool.h` (`ethtool_rxnfc`, `ethtool_rx_flow_spec`), in host byte order but for what is
//! matched, which is as in the packet.

use std::{ffi::CString, io, os::fd::AsRawFd as _, os::unix::net::UnixDatagram};

use serde::Serialize;

const GET_HASH: u32 = 0x29;
const COUNT_RULES: u32 = 0x2e;
const GET_RULE: u32 = 0x2f;
const LIST_RULES: u32 = 0x30;
const DELETE_RULE: u32 = 0x31;
const INSERT_RULE: u32 = 0x32;

/// `UDP_V4_FLOW`.
const UDP4: u32 = 2;
/// `FLOW_EXT`: the extended fields count. Some drivers set it on all rules, with masks that are empty.
const EXTENDED: u32 = 1 << 31;
/// `RX_CLS_LOC_SPECIAL` in the answer to a count: the driver finds places by itself.
const FINDS_PLACES: u64 = 1 << 31;
/// `RX_CLS_LOC_ANY`.
const ANY_PLACE: u32 = u32::MAX;
/// Offset of the destination port in `ethtool_tcpip4_spec`.
const PORT: usize = 10;
/// Most rules that are listed: as many as the largest tables of NICs hold.
const LISTED: usize = 8192;

/// `ethtool_rx_flow_spec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Spec {
    flow_type: u32,
    value: [u8; 52],
    value_extended: [u8; 20],
    mask: [u8; 52],
    mask_extended: [u8; 20],
    queue: u64,
    location: u32,
}

/// `ethtool_rxnfc` with room for the places of `N` rules, at least one.
#[repr(C)]
struct Question<const N: usize> {
    command: u32,
    flow_type: u32,
    data: u64,
    spec: Spec,
    count: u32,
    locations: [u32; N],
}

/// `ifreq` with a pointer in it; the kernel reads all of its 40 bytes (32 where pointers have four).
#[repr(C)]
struct Request {
    name: [libc::c_char; libc::IFNAMSIZ],
    data: *mut libc::c_void,
    unused: [usize; 2],
}

/// A rule: IPv4 packets to this UDP port, whatever else is in them, go to this queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PortRule {
    /// Its place in the NIC's table, which is its name there.
    pub location: u32,
    /// UDP destination port.
    pub port: u16,
    /// Receive queue.
    pub queue: u32,
}

/// What the NIC's hash is made of.
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

/// The rules of one interface. Reading them takes no privilege, changing them `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Flows {
    kernel: Kernel,
    name: [libc::c_char; libc::IFNAMSIZ],
}

/// Who answers.
#[derive(Debug)]
enum Kernel {
    /// The kernel, through any socket.
    Real(UnixDatagram),
    #[cfg(test)]
    Played(Box<tests::Driver>),
}

/// What is in the NIC's table.
struct Table {
    /// How many places it has; 0 when the driver does not tell.
    size: u32,
    finds_places: bool,
    taken: Vec<u32>,
}

impl Flows {
    /// For an interface of the calling thread's network namespace, which need not be there yet.
    ///
    /// # Errors
    /// When no interface can have that name, or there is no socket to be had.
    pub fn open(interface: &str) -> io::Result<Flows> {
        let text = CString::new(interface).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let bytes = text.as_bytes_with_nul();
        if bytes.len() > libc::IFNAMSIZ {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut name = [0; libc::IFNAMSIZ];
        for (to, from) in name.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        Ok(Flows { kernel: Kernel::Real(UnixDatagram::unbound()?), name })
    }

    /// The rules by UDP port alone; rules of other kinds are left out.
    ///
    /// # Errors
    /// `EOPNOTSUPP` when the driver has no rules at all, `ENODEV` when there is no such interface.
    pub fn rules(&self) -> io::Result<Vec<PortRule>> {
        let mut found = Vec::new();
        for location in self.table()?.taken {
            let mut question = Question::<1>::new(GET_RULE);
            question.spec.location = location;
            match self.ask(&mut question) {
                Ok(()) => found.extend(question.spec.port_rule()),
                // Taken away in between.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Adds a rule, and says where it went. It comes behind the rules that are there, where those have an order.
    ///
    /// # Errors
    /// As the driver answers; `ENOSPC` when its table is full.
    pub fn insert(&self, port: u16, queue: u32) -> io::Result<PortRule> {
        let table = self.table()?;
        let mut question = Question::<1>::new(INSERT_RULE);
        question.spec = Spec::to_queue(port, queue);
        question.spec.location = match table.finds_places {
            true => ANY_PLACE,
            false => table.free().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))?,
        };
        self.ask(&mut question)?;
        Ok(PortRule { location: question.spec.location, port, queue })
    }

    /// Removes the rule at a place, whatever it says.
    ///
    /// # Errors
    /// As the driver answers; mostly `ENOENT` when there is none.
    pub fn delete(&self, location: u32) -> io::Result<()> {
        let mut question = Question::<1>::new(DELETE_RULE);
        question.spec.location = location;
        self.ask(&mut question)
    }

    /// What the hash over UDP packets of IPv4 is made of, by which the NIC chooses a queue where no rule does.
    ///
    /// # Errors
    /// `EOPNOTSUPP` when the driver does not tell.
    pub fn udp4_hash(&self) -> io::Result<Vec<&'static str>> {
        let mut question = Question::<1>::new(GET_HASH);
        question.flow_type = UDP4;
        self.ask(&mut question)?;
        Ok(HASHED.iter().filter(|(bit, _)| question.data & bit != 0).map(|(_, name)| *name).collect())
    }

    fn table(&self) -> io::Result<Table> {
        let mut question = Question::<1>::new(COUNT_RULES);
        self.ask(&mut question)?;
        let finds_places = question.data & FINDS_PLACES != 0;
        let mut list = Box::new(Question::<LISTED>::new(LIST_RULES));
        // Exactly as many as there are: some drivers look for as many as there is room for, and fail on the way.
        list.count = question.count;
        self.ask(&mut list)?;
        let taken = list.locations.iter().take(list.count as usize).copied().collect();
        let size = u32::try_from(list.data & !FINDS_PLACES).unwrap_or(0);
        Ok(Table { size, finds_places, taken })
    }

    fn ask<const N: usize>(&self, question: &mut Question<N>) -> io::Result<()> {
        if question.command == LIST_RULES && question.count as usize > N {
            return Err(io::Error::other(format!(
                "{} rules are more than the {N} that are read",
                question.count
            )));
        }
        let fd = match &self.kernel {
            Kernel::Real(socket) => socket.as_raw_fd(),
            #[cfg(test)]
            Kernel::Played(driver) => return driver.answer(question),
        };
        let mut request = Request { name: self.name, data: (&raw mut *question).cast(), unused: [0; 2] };
        // SAFETY: the request has the kernel's size and points to a question that has at least the kernel's size
        // for its command (`N` is not 0), with room for the places of as many rules as it asks for. Both are
        // integers and live until the call returns.
        let result = unsafe { libc::ioctl(fd, libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Table {
    /// The last free place: rules that others put in front of it stay in force.
    fn free(&self) -> Option<u32> {
        (0..self.size).rev().find(|place| !self.taken.contains(place))
    }
}

impl<const N: usize> Question<N> {
    fn new(command: u32) -> Question<N> {
        const { assert!(N > 0) };
        Question { command, flow_type: 0, data: 0, spec: Spec::EMPTY, count: 0, locations: [0; N] }
    }
}

impl Spec {
    const EMPTY: Spec = Spec {
        flow_type: 0,
        value: [0; 52],
        value_extended: [0; 20],
        mask: [0; 52],
        mask_extended: [0; 20],
        queue: 0,
        location: 0,
    };

    fn to_queue(port: u16, queue: u32) -> Spec {
        let mut spec = Spec { flow_type: UDP4, queue: queue.into(), ..Spec::EMPTY };
        spec.value[PORT..PORT + 2].copy_from_slice(&port.to_be_bytes());
        spec.mask[PORT..PORT + 2].fill(0xff);
        spec
    }

    /// What it says, if it is a rule by UDP port and nothing else, to a queue of this interface.
    fn port_rule(&self) -> Option<PortRule> {
        let port = u16::from_be_bytes([self.value[PORT], self.value[PORT + 1]]);
        let by_port = Spec::to_queue(port, 0);
        // The bits above are a virtual function's number; dropping and waking have all of them set.
        let queue = u32::try_from(self.queue).ok()?;
        let is_like = self.flow_type & !EXTENDED == UDP4
            && self.mask == by_port.mask
            && self.mask_extended == by_port.mask_extended;
        is_like.then_some(PortRule { location: self.location, port, queue })
    }
}

#[cfg(test)]
mod tests;
