//! The explicit paths of packets: MLT's source routing (section 4.2.1), by next hops and VLANs of the
//! interface.

use std::net::Ipv4Addr;

use sumac_datapath::Route;
use sumac_netutil::neighbour::{Neighbour, ResolveError};

use crate::config::RouteConfig;

#[derive(Debug, thiserror::Error)]
pub(super) enum RouteError {
    #[error("routes: {0}")]
    Resolve(#[from] ResolveError),
    #[error(
        "routes: {via} is no neighbour: the kernel reaches it by {next_hop}. Name the first router of each \
        path"
    )]
    NotNeighbour { via: Ipv4Addr, next_hop: Ipv4Addr },
    #[error(
        "routes: {via} is a neighbour on {ifname}, and packets leave through {interface}; see `ip route get \
        {via}`"
    )]
    Elsewhere { via: Ipv4Addr, ifname: String, interface: String },
}

/// The interface that packets leave through.
pub(super) struct Outlet {
    pub name: String,
    pub index: u32,
}

/// Resolves the configured routes by `look_up`. One whose next hop does not answer is left out while there
/// are others: packets on it would only be lost.
pub(super) fn resolve(
    configured: &[RouteConfig],
    outlet: &Outlet,
    look_up: impl Fn(Ipv4Addr) -> Result<Neighbour, ResolveError>,
) -> Result<Vec<Route>, RouteError> {
    let (mut routes, mut unanswered) = (Vec::new(), None);
    for RouteConfig { via, vlan } in configured.iter().copied() {
        let neighbour = match via.map(&look_up).transpose() {
            Err(error @ ResolveError::NoAnswer { .. }) => {
                log_limited!(warn, %error, "a next hop of `routes` is left out until the next job begins");
                unanswered = Some(error);
                continue;
            }
            neighbour => neighbour?,
        };
        let mac = neighbour.map(|neighbour| next_hop(neighbour, via, outlet)).transpose()?;
        routes.push(Route { mac, vlan });
    }
    match unanswered {
        Some(error) if routes.is_empty() => Err(error.into()),
        _ => Ok(routes),
    }
}

/// Returns the MAC address of a neighbour on the interface, or on a VLAN of it.
fn next_hop(neighbour: Neighbour, via: Option<Ipv4Addr>, outlet: &Outlet) -> Result<[u8; 6], RouteError> {
    let Neighbour { ifindex, ifname, next_hop, mac, vlan_of, .. } = neighbour;
    let via = via.unwrap_or(next_hop);
    if next_hop != via {
        return Err(RouteError::NotNeighbour { via, next_hop });
    }
    if ifindex != outlet.index && vlan_of != Some(outlet.index) {
        return Err(RouteError::Elsewhere { via, ifname, interface: outlet.name.clone() });
    }
    Ok(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ip(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, last)
    }

    /// Interface 3 has neighbours 1 and 2, and its VLAN neighbour 4; 5 is behind 1, 6 elsewhere, and 7 and 8
    /// do not answer.
    fn look_up(via: Ipv4Addr) -> Result<Neighbour, ResolveError> {
        let last = via.octets()[3];
        let (ifindex, ifname, vlan_of) = match last {
            4 => (9, "eth0.7", Some(3)),
            6 => (8, "eth1", None),
            _ => (3, "eth0", None),
        };
        let next_hop = if last == 5 { ip(1) } else { via };
        if [7, 8].contains(&last) {
            return Err(ResolveError::NoAnswer { ip: via, next_hop, ifname: ifname.into() });
        }
        let mac = [2, 0, 0, 0, 0, last];
        let (ifname, own_mac) = (ifname.into(), [0; 6]);
        Ok(Neighbour { ifindex, ifname, own_mac, next_hop, mac, vlan_of, src_ip: ip(9) })
    }

    fn resolved(routes: &[(Option<u8>, Option<u16>)]) -> Result<Vec<Route>, String> {
        let route = |(via, vlan): &(Option<u8>, _)| RouteConfig { via: via.map(ip), vlan: *vlan };
        let configured: Vec<_> = routes.iter().map(route).collect();
        let outlet = Outlet { name: "eth0".into(), index: 3 };
        resolve(&configured, &outlet, look_up).map_err(|error| error.to_string())
    }

    #[test]
    fn next_hops_are_neighbours_of_the_interface() {
        let route = |last: u8, vlan| Route { mac: Some([2, 0, 0, 0, 0, last]), vlan };
        assert_eq!(resolved(&[(Some(1), None), (Some(2), None)]), Ok(vec![route(1, None), route(2, None)]));
        assert_eq!(resolved(&[(Some(4), Some(7))]), Ok(vec![route(4, Some(7))]), "on its VLAN");
        assert_eq!(resolved(&[(None, Some(7))]), Ok(vec![Route { mac: None, vlan: Some(7) }]));
        assert_eq!(resolved(&[(Some(7), None), (Some(2), None)]), Ok(vec![route(2, None)]), "one is down");
        for (last, why) in [(5, "by 10.0.0.1"), (6, "on eth1"), (8, "does not answer ARP")] {
            let error = resolved(&[(Some(last), None)]).unwrap_err();
            assert!(error.contains(why) && error.contains(&ip(last).to_string()), "{error}");
        }
    }
}
