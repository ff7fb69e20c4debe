//! What the kernel says about a network interface: its number, size, queues and XDP programs.

use std::io;

use ethtool::{
    EthtoolAttr, EthtoolChannelAttr, EthtoolFeatureAttr, EthtoolFeatureBit, EthtoolMessage, EthtoolRingAttr,
};
use netlink_packet_generic::{GenlFamily, GenlMessage};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp, XdpAttached},
};
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use serde::Serialize;

use crate::{mode::BoundMode, netlink};

/// An interface as the calling thread's network namespace knows it.
#[derive(Clone, Debug, Serialize)]
pub struct Interface {
    /// Name, for example `eth0`.
    pub name: String,
    /// Index in this network namespace.
    pub index: u32,
    /// Ethernet address, as `02:00:00:00:00:01`, where it has one.
    pub address: Option<String>,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Whether the interface was set up (`ip link set up`).
    pub up: bool,
    /// Kind of a virtual device (`veth`, `bridge`), none for hardware.
    pub kind: Option<String>,
    /// The other end of a veth, by its index in its own namespace.
    pub peer: Option<Peer>,
    /// Receive queues in use; the count that was allocated when the driver does not tell.
    pub rx_queues: u32,
    /// XDP programs on it, one for each place that has one.
    pub xdp: Vec<XdpProgram>,
}

/// The other end of a veth.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Peer {
    /// Index in the namespace where the peer is.
    pub index: u32,
    /// Whether the peer is in this network namespace.
    pub same_namespace: bool,
}

/// A program found on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct XdpProgram {
    /// The kernel's number of the program.
    pub id: u32,
    /// Where it runs.
    pub mode: BoundMode,
}

/// Receive and transmit ring of a NIC, in descriptors.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Rings {
    /// Receive descriptors now.
    pub rx: u32,
    /// Receive descriptors at most.
    pub rx_max: u32,
    /// Transmit descriptors now.
    pub tx: u32,
    /// Transmit descriptors at most.
    pub tx_max: u32,
}

impl Interface {
    /// Looks an interface up by name in the calling thread's network namespace.
    ///
    /// # Errors
    /// `NotFound` or the kernel's `ENODEV` when there is none of that name.
    pub fn by_name(name: &str) -> io::Result<Self> {
        Self::query(0, Some(name))
    }

    /// Looks an interface up by index.
    ///
    /// # Errors
    /// The kernel's `ENODEV` when there is none with that index.
    pub fn by_index(index: u32) -> io::Result<Self> {
        Self::query(index, None)
    }

    fn query(index: u32, name: Option<&str>) -> io::Result<Self> {
        let mut question = LinkMessage::default();
        question.header.index = index;
        question.attributes.extend(name.map(|name| LinkAttribute::IfName(name.to_owned())));
        match netlink::request(NETLINK_ROUTE, RouteNetlinkMessage::GetLink(question))? {
            RouteNetlinkMessage::NewLink(link) => Ok(Self::from_message(&link)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "RTM_GETLINK was not answered with a link")),
        }
    }

    /// An interface that is up, of which a test says the rest.
    #[cfg(test)]
    pub(crate) fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            index: 7,
            address: None,
            mtu: 1500,
            up: true,
            kind: None,
            peer: None,
            rx_queues: 1,
            xdp: Vec::new(),
        }
    }

    fn from_message(link: &LinkMessage) -> Self {
        let mut found = Self {
            name: String::new(),
            index: link.header.index,
            address: None,
            mtu: 0,
            up: link.header.flags.contains(LinkFlags::Up),
            kind: None,
            peer: None,
            rx_queues: 1,
            xdp: Vec::new(),
        };
        let (mut peer, mut elsewhere) = (None, false);
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => found.name.clone_from(name),
                LinkAttribute::Address(bytes) => found.address = Some(colons(bytes)),
                LinkAttribute::Mtu(mtu) => found.mtu = *mtu,
                LinkAttribute::NumRxQueues(queues) => found.rx_queues = *queues,
                LinkAttribute::Link(index) => peer = Some(*index),
                LinkAttribute::LinkNetNsId(_) => elsewhere = true,
                LinkAttribute::LinkInfo(infos) => found.kind = kind(infos),
                LinkAttribute::Xdp(attributes) => found.xdp = programs(attributes),
                _ => {}
            }
        }
        if found.kind.as_deref() == Some("veth") {
            found.peer = peer.map(|index| Peer { index, same_namespace: !elsewhere });
        }
        if let Ok(queues) = channels(&found.name) {
            found.rx_queues = queues;
        }
        found
    }
}

/// An address as sysfs writes it.
fn colons(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

fn kind(infos: &[LinkInfo]) -> Option<String> {
    infos.iter().find_map(|info| match info {
        LinkInfo::Kind(InfoKind::Veth) => Some("veth".to_owned()),
        LinkInfo::Kind(kind) => Some(kind.to_string()),
        _ => None,
    })
}

fn programs(attributes: &[LinkXdp]) -> Vec<XdpProgram> {
    let mut attached = XdpAttached::None;
    let mut only = None;
    let mut found = Vec::new();
    for attribute in attributes {
        match attribute {
            LinkXdp::Attached(mode) => attached = *mode,
            LinkXdp::ProgId(id) => only = Some(*id),
            LinkXdp::DrvProgId(id) => found.push(XdpProgram { id: *id, mode: BoundMode::Driver }),
            LinkXdp::SkbProgId(id) => found.push(XdpProgram { id: *id, mode: BoundMode::Generic }),
            LinkXdp::HwProgId(id) => found.push(XdpProgram { id: *id, mode: BoundMode::Hardware }),
            _ => {}
        }
    }
    // Kernels name the program once when there is only one place that has one.
    let mode = match attached {
        XdpAttached::Driver => Some(BoundMode::Driver),
        XdpAttached::SocketBuffer => Some(BoundMode::Generic),
        XdpAttached::Hardware => Some(BoundMode::Hardware),
        _ => None,
    };
    if let (true, Some(id), Some(mode)) = (found.is_empty(), only, mode) {
        found.push(XdpProgram { id, mode });
    }
    found
}

fn ethtool(message: EthtoolMessage) -> io::Result<Vec<EthtoolAttr>> {
    let family = netlink::generic_family(EthtoolMessage::family_name())?;
    let mut question = GenlMessage::from_payload(message);
    question.set_resolved_family_id(family);
    question.finalize();
    Ok(netlink::request(NETLINK_GENERIC, question)?.payload.nlas)
}

/// Receive queues in use (`ethtool -l`): dedicated and combined ones.
fn channels(interface: &str) -> io::Result<u32> {
    let answer = ethtool(EthtoolMessage::new_channel_get(Some(interface)))?;
    let queues = answer
        .iter()
        .map(|attribute| match attribute {
            EthtoolAttr::Channel(EthtoolChannelAttr::RxCount(n) | EthtoolChannelAttr::CombinedCount(n)) => *n,
            _ => 0,
        })
        .sum();
    if queues == 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the driver names no receive queue"));
    }
    Ok(queues)
}

/// Ring sizes (`ethtool -g`).
///
/// # Errors
/// `EOPNOTSUPP` for drivers without rings, veth among them.
pub fn rings(interface: &str) -> io::Result<Rings> {
    let mut rings = Rings::default();
    for attribute in ethtool(EthtoolMessage::new_ring_get(Some(interface)))? {
        match attribute {
            EthtoolAttr::Ring(EthtoolRingAttr::Rx(n)) => rings.rx = n,
            EthtoolAttr::Ring(EthtoolRingAttr::RxMax(n)) => rings.rx_max = n,
            EthtoolAttr::Ring(EthtoolRingAttr::Tx(n)) => rings.tx = n,
            EthtoolAttr::Ring(EthtoolRingAttr::TxMax(n)) => rings.tx_max = n,
            _ => {}
        }
    }
    Ok(rings)
}

/// Names of the offloads that are on (`ethtool -k`), by the kernel's names: `rx-gro`, `tx-checksum-ip-generic`.
///
/// # Errors
/// As the kernel answers; 5.15 and newer know the request for every device.
pub fn features(interface: &str) -> io::Result<Vec<String>> {
    Ok(names(&ethtool(EthtoolMessage::new_feature_get(Some(interface)))?, active))
}

fn active(attribute: &EthtoolFeatureAttr) -> Option<&Vec<EthtoolFeatureBit>> {
    match attribute {
        EthtoolFeatureAttr::Active(bits) => Some(bits),
        _ => None,
    }
}

/// Whether a NIC filters received packets by rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filters {
    /// It does.
    On,
    /// It could: `ethtool -K IFACE ntuple on`.
    Off,
    /// Its driver knows no such switch. Some take rules all the same.
    NoSwitch,
}

/// Whether an interface's filters are switched on (`ntuple-filters` of `ethtool -k`).
///
/// # Errors
/// As [`features`].
pub fn filters(interface: &str) -> io::Result<Filters> {
    let answer = ethtool(EthtoolMessage::new_feature_get(Some(interface)))?;
    let switchable = names(&answer, |attribute| match attribute {
        EthtoolFeatureAttr::Hw(bits) => Some(bits),
        _ => None,
    });
    let has = |names: &[String]| names.iter().any(|name| name == "rx-ntuple-filter");
    Ok(match (has(&names(&answer, active)), has(&switchable)) {
        (true, _) => Filters::On,
        (false, true) => Filters::Off,
        (false, false) => Filters::NoSwitch,
    })
}

/// The names of the bits that are set in one of the sets of an answer.
fn names(
    answer: &[EthtoolAttr],
    set: impl Fn(&EthtoolFeatureAttr) -> Option<&Vec<EthtoolFeatureBit>>,
) -> Vec<String> {
    let bits = answer.iter().filter_map(|attribute| match attribute {
        EthtoolAttr::Feature(attribute) => set(attribute),
        _ => None,
    });
    bits.flatten().filter(|bit| bit.value).map(|bit| bit.name.clone()).collect()
}
