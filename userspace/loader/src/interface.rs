//! Facts about a network interface, by netlink and ethtool: index, MTU, queues, features and XDP programs.

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

use crate::{mode::BoundXdpMode, netlink};

#[derive(Clone, Debug, Serialize)]
pub struct Interface {
    pub name: String,
    pub index: u32,
    /// Ethernet address, as `02:00:00:00:00:01`, where it has one.
    pub address: Option<String>,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Whether it was set up (`ip link set up`).
    pub up: bool,
    /// The kind of a virtual device (`veth`, `bridge`); `None` for hardware.
    pub kind: Option<String>,
    pub peer: Option<VethPeer>,
    /// Receive queues in use, or allocated when the driver does not report its channels.
    pub rx_queues: u32,
    /// At most one program in each mode.
    pub xdp: Vec<XdpProgram>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct VethPeer {
    /// Index in the peer's own namespace.
    pub index: u32,
    pub same_namespace: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct XdpProgram {
    pub id: u32,
    pub mode: BoundXdpMode,
}

/// The receive and transmit rings of a NIC, in descriptors.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Rings {
    pub rx: u32,
    pub rx_max: u32,
    pub tx: u32,
    pub tx_max: u32,
}

impl Interface {
    /// # Errors
    /// The kernel's `ENODEV` when there is none of that name.
    pub fn by_name(name: &str) -> io::Result<Self> {
        Self::query(0, Some(name))
    }

    pub fn by_index(index: u32) -> io::Result<Self> {
        Self::query(index, None)
    }

    fn query(index: u32, name: Option<&str>) -> io::Result<Self> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.extend(name.map(|name| LinkAttribute::IfName(name.to_owned())));
        match netlink::request(NETLINK_ROUTE, RouteNetlinkMessage::GetLink(message))? {
            RouteNetlinkMessage::NewLink(link) => Ok(Self::from_message(&link)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the reply to RTM_GETLINK is no link")),
        }
    }

    pub fn is_bond(&self) -> bool {
        self.kind.as_deref() == Some("bond")
    }

    pub fn mac(&self) -> Option<[u8; 6]> {
        let bytes = self.address.as_deref()?.split(':').map(|byte| u8::from_str_radix(byte, 16));
        bytes.collect::<Result<Vec<_>, _>>().ok()?.try_into().ok()
    }

    /// Returns an interface that is up, for tests of what is made of one.
    pub fn named(name: &str) -> Self {
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
            index: link.header.index,
            mtu: 0,
            up: link.header.flags.contains(LinkFlags::Up),
            ..Self::named("")
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
            found.peer = peer.map(|index| VethPeer { index, same_namespace: !elsewhere });
        }
        if let Ok(queues) = channels(&found.name) {
            found.rx_queues = queues;
        }
        found
    }
}

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
            LinkXdp::DrvProgId(id) => found.push(XdpProgram { id: *id, mode: BoundXdpMode::Driver }),
            LinkXdp::SkbProgId(id) => found.push(XdpProgram { id: *id, mode: BoundXdpMode::Generic }),
            LinkXdp::HwProgId(id) => found.push(XdpProgram { id: *id, mode: BoundXdpMode::Hardware }),
            _ => {}
        }
    }
    // A single program is reported with its mode apart.
    let mode = match attached {
        XdpAttached::Driver => Some(BoundXdpMode::Driver),
        XdpAttached::SocketBuffer => Some(BoundXdpMode::Generic),
        XdpAttached::Hardware => Some(BoundXdpMode::Hardware),
        _ => None,
    };
    if let (true, Some(id), Some(mode)) = (found.is_empty(), only, mode) {
        found.push(XdpProgram { id, mode });
    }
    found
}

fn ethtool(message: EthtoolMessage) -> io::Result<Vec<EthtoolAttr>> {
    let family = netlink::generic_family(EthtoolMessage::family_name())?;
    let mut message = GenlMessage::from_payload(message);
    message.set_resolved_family_id(family);
    message.finalize();
    Ok(netlink::request(NETLINK_GENERIC, message)?.payload.nlas)
}

/// Returns the receive queues in use (`ethtool -l`): dedicated and combined ones.
fn channels(interface: &str) -> io::Result<u32> {
    let reply = ethtool(EthtoolMessage::new_channel_get(Some(interface)))?;
    let queues = reply
        .iter()
        .map(|attribute| match attribute {
            EthtoolAttr::Channel(EthtoolChannelAttr::RxCount(n) | EthtoolChannelAttr::CombinedCount(n)) => *n,
            _ => 0,
        })
        .sum();
    if queues == 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the driver reports no receive queue"));
    }
    Ok(queues)
}

/// Returns the sizes of the rings (`ethtool -g`).
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

/// Returns the offloads that are on (`ethtool -k`), by the kernel's names: `rx-gro`,
/// `tx-checksum-ip-generic`.
pub fn features(interface: &str) -> io::Result<Vec<String>> {
    Ok(names(&ethtool(EthtoolMessage::new_feature_get(Some(interface)))?, active))
}

fn active(attribute: &EthtoolFeatureAttr) -> Option<&Vec<EthtoolFeatureBit>> {
    match attribute {
        EthtoolFeatureAttr::Active(bits) => Some(bits),
        _ => None,
    }
}

/// The state of a NIC's filters for received packets (`ntuple-filters` of `ethtool -k`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filters {
    On,
    /// Off; `ethtool -K IFACE ntuple on` enables them.
    Off,
    /// The driver has no such feature. Some take rules all the same.
    NoSwitch,
}

pub fn filters(interface: &str) -> io::Result<Filters> {
    let reply = ethtool(EthtoolMessage::new_feature_get(Some(interface)))?;
    let switchable = names(&reply, |attribute| match attribute {
        EthtoolFeatureAttr::Hw(bits) => Some(bits),
        _ => None,
    });
    let has = |names: &[String]| names.iter().any(|name| name == "rx-ntuple-filter");
    Ok(match (has(&names(&reply, active)), has(&switchable)) {
        (true, _) => Filters::On,
        (false, true) => Filters::Off,
        (false, false) => Filters::NoSwitch,
    })
}

/// Returns the names of the bits set in one of a reply's sets.
fn names(
    reply: &[EthtoolAttr],
    set: impl Fn(&EthtoolFeatureAttr) -> Option<&Vec<EthtoolFeatureBit>>,
) -> Vec<String> {
    let bits = reply.iter().filter_map(|attribute| match attribute {
        EthtoolAttr::Feature(attribute) => set(attribute),
        _ => None,
    });
    bits.flatten().filter(|bit| bit.value).map(|bit| bit.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_address_has_six_bytes() {
        let with =
            |address: &str| Interface { address: Some(address.to_owned()), ..Interface::named("eth0") };
        assert_eq!(with("02:00:00:00:00:ff").mac(), Some([2, 0, 0, 0, 0, 255]));
        assert_eq!(with("02:00:00:00").mac(), None);
        assert_eq!(Interface::named("eth0").mac(), None);
    }
}
