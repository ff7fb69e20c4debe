//! Resolves an IPv4 address to an interface and a MAC address by the kernel's routes and neighbours.
//!
//! The daemon with AF_XDP and the eBPF aggregator send frames past the kernel's IP layer, and need these
//! beforehand. A look-up needs no privilege. Answers are for the calling thread's network namespace.

use std::{
    io,
    net::{Ipv4Addr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
};
use netlink_sys::protocols::NETLINK_ROUTE;
use sumac_loader::netlink::{command, request};
use thiserror::Error;

/// ARP asks three times, a second apart.
const ARP_TIMEOUT: Duration = Duration::from_millis(3200);
/// Between two looks at the table of neighbours.
const LOOK: Duration = Duration::from_millis(20);
/// Between two datagrams that make the kernel ask.
const POKE: Duration = Duration::from_secs(1);
/// The longest wait for a link that a driver has reset.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(5);
/// The discard service: nobody answers.
const DISCARD_PORT: u16 = 9;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub ifindex: u32,
    pub ifname: String,
    /// Its MAC address; zeros when it has none.
    pub own_mac: [u8; 6],
    /// The peer itself, or its router.
    pub next_hop: Ipv4Addr,
    /// The MAC address of the next hop; zeros where none is needed.
    pub mac: [u8; 6],
    /// The interface below, where this one is a VLAN's.
    pub vlan_of: Option<u32>,
    pub src_ip: Ipv4Addr,
}

#[derive(Debug, Error)]
pub enum ResolveError {
    #[error("cannot ask the kernel for {what} (netlink): {source}")]
    Netlink { what: &'static str, source: io::Error },
    #[error("no route to {ip} ({source}); check `ip route get {ip}`")]
    NoRoute { ip: Ipv4Addr, source: io::Error },
    #[error("{ip} is this host's own address: no frame leaves through an interface for it")]
    Own { ip: Ipv4Addr },
    #[error(
        "{next_hop} on {ifname} does not answer ARP (the way to {ip}); is it up, and is the cable the right \
        one?"
    )]
    NoAnswer {
        ip: Ipv4Addr,
        /// The address that should answer: itself or a router's.
        next_hop: Ipv4Addr,
        ifname: String,
    },
}

/// Finds the way to `ip`, asking by ARP when nobody has yet. Blocks, for up to three seconds then.
pub fn resolve(ip: Ipv4Addr) -> Result<Neighbour, ResolveError> {
    let route = route(ip)?;
    let Link { ifname, own_mac, vlan_of, .. } = link(route.ifindex)?;
    let next_hop = route.gateway.unwrap_or(ip);
    let start = Instant::now();
    let mut poked: Option<Instant> = None;
    loop {
        if let Some(mac) = neighbour(route.ifindex, next_hop)? {
            let Route { ifindex, src_ip, .. } = route;
            return Ok(Neighbour { ifindex, ifname, own_mac, next_hop, mac, vlan_of, src_ip });
        }
        if start.elapsed() >= ARP_TIMEOUT {
            return Err(ResolveError::NoAnswer { ip, next_hop, ifname });
        }
        if poked.is_none_or(|poked| poked.elapsed() >= POKE) {
            poked = Some(Instant::now());
            // Its only purpose is the ARP request; a refusal shows in the table of neighbours.
            let _ = poke(ip);
        }
        thread::sleep(LOOK);
    }
}

/// Returns the interface that packets to `ip` leave through.
pub fn outlet(ip: Ipv4Addr) -> Result<String, ResolveError> {
    Ok(link(route(ip)?.ifindex)?.ifname)
}

/// Asks the next hop towards `ip` by ARP whatever the kernel knows of it, and returns whether it answers;
/// `None` where no ARP is used for it. Blocks, for up to eight seconds when the link is down and up to three
/// when nobody answers. Needs CAP_NET_ADMIN.
pub fn answers(ip: Ipv4Addr) -> Result<Option<bool>, ResolveError> {
    let route = route(ip)?;
    let next_hop = route.gateway.unwrap_or(ip);
    let failed = |source| ResolveError::Netlink { what: "a neighbour", source };
    let start = Instant::now();
    while !link(route.ifindex)?.has_carrier && start.elapsed() < CARRIER_TIMEOUT {
        thread::sleep(LOOK);
    }
    match entry(route.ifindex, next_hop)? {
        Some(NeighbourEntry { state: NeighbourState::Noarp | NeighbourState::Permanent, .. }) => {
            return Ok(None);
        }
        Some(NeighbourEntry { state, mac: Some(_) }) if is_valid(state) => {}
        // The kernel has no address to ask: it asks all, as for any packet.
        _ => {
            return match resolve(ip) {
                Ok(_) => Ok(Some(true)),
                Err(ResolveError::NoAnswer { .. }) => Ok(Some(false)),
                Err(error) => Err(error),
            };
        }
    }
    let mut probe = of(route.ifindex, next_hop);
    probe.header.state = NeighbourState::Probe;
    command(NETLINK_ROUTE, RouteNetlinkMessage::NewNeighbour(probe)).map_err(failed)?;
    let start = Instant::now();
    loop {
        match entry(route.ifindex, next_hop)?.map(|entry| entry.state) {
            Some(NeighbourState::Reachable) => return Ok(Some(true)),
            Some(NeighbourState::Probe) if start.elapsed() < ARP_TIMEOUT => thread::sleep(LOOK),
            _ => return Ok(Some(false)),
        }
    }
}

fn poke(ip: Ipv4Addr) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((ip, DISCARD_PORT))?;
    socket.send(&[]).map(|_| ())
}

struct Route {
    ifindex: u32,
    gateway: Option<Ipv4Addr>,
    src_ip: Ipv4Addr,
}

struct Link {
    ifname: String,
    own_mac: [u8; 6],
    vlan_of: Option<u32>,
    has_carrier: bool,
}

fn ask(question: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
    request(NETLINK_ROUTE, question)
}

fn route(ip: Ipv4Addr) -> Result<Route, ResolveError> {
    let mut question = RouteMessage::default();
    question.header.address_family = AddressFamily::Inet;
    question.header.destination_prefix_length = 32;
    question.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(ip)));
    let no_route = |source| ResolveError::NoRoute { ip, source };
    let RouteNetlinkMessage::NewRoute(answer) =
        ask(RouteNetlinkMessage::GetRoute(question)).map_err(no_route)?
    else {
        return Err(no_route(unexpected()));
    };
    if answer.header.kind == RouteType::Local {
        return Err(ResolveError::Own { ip });
    }
    let (mut ifindex, mut gateway, mut src_ip) = (None, None, None);
    for attribute in answer.attributes {
        match attribute {
            RouteAttribute::Oif(index) => ifindex = Some(index),
            RouteAttribute::Gateway(RouteAddress::Inet(ip)) => gateway = Some(ip),
            RouteAttribute::PrefSource(RouteAddress::Inet(ip)) => src_ip = Some(ip),
            _ => {}
        }
    }
    match (ifindex, src_ip) {
        (Some(ifindex), Some(src_ip)) => Ok(Route { ifindex, gateway, src_ip }),
        _ => Err(no_route(unexpected())),
    }
}

fn link(ifindex: u32) -> Result<Link, ResolveError> {
    let failed = |source| ResolveError::Netlink { what: "an interface", source };
    let mut question = LinkMessage::default();
    question.header.index = ifindex;
    let RouteNetlinkMessage::NewLink(answer) = ask(RouteNetlinkMessage::GetLink(question)).map_err(failed)?
    else {
        return Err(failed(unexpected()));
    };
    let has_carrier = answer.header.flags.contains(LinkFlags::LowerUp);
    let mut link = Link { ifname: String::new(), own_mac: [0; 6], vlan_of: None, has_carrier };
    let (mut below, mut is_vlan) = (None, false);
    for attribute in answer.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.ifname = name,
            LinkAttribute::Address(address) => link.own_mac = address.try_into().unwrap_or([0; 6]),
            LinkAttribute::Link(index) => below = Some(index),
            LinkAttribute::LinkInfo(info) => is_vlan = info.contains(&LinkInfo::Kind(InfoKind::Vlan)),
            _ => {}
        }
    }
    link.vlan_of = below.filter(|_| is_vlan);
    Ok(link)
}

fn neighbour(ifindex: u32, ip: Ipv4Addr) -> Result<Option<[u8; 6]>, ResolveError> {
    Ok(match entry(ifindex, ip)? {
        Some(NeighbourEntry { state: NeighbourState::Noarp, mac }) => Some(mac.unwrap_or([0; 6])),
        Some(NeighbourEntry { state, mac }) if is_valid(state) => mac,
        _ => None,
    })
}

/// Whether the kernel sends to the address that it has in this state.
fn is_valid(state: NeighbourState) -> bool {
    matches!(
        state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
    )
}

fn of(ifindex: u32, ip: Ipv4Addr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = ifindex;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)));
    message
}

struct NeighbourEntry {
    state: NeighbourState,
    mac: Option<[u8; 6]>,
}

/// Returns the kernel's entry of a neighbour.
fn entry(ifindex: u32, ip: Ipv4Addr) -> Result<Option<NeighbourEntry>, ResolveError> {
    let failed = |source| ResolveError::Netlink { what: "a neighbour", source };
    let answer = match ask(RouteNetlinkMessage::GetNeighbour(of(ifindex, ip))) {
        Ok(RouteNetlinkMessage::NewNeighbour(answer)) => answer,
        Ok(_) => return Err(failed(unexpected())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mac = answer.attributes.into_iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(mac) => mac.try_into().ok(),
        _ => None,
    });
    Ok(Some(NeighbourEntry { state: answer.header.state, mac }))
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer is not to the question")
}
