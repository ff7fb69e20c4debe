//! Offloads that change packets before or after the program sees them, and what a veth's peer needs.

use super::Check;
use crate::{
    interface::{self, Interface},
    mode::BoundMode,
};

pub fn examine(interface: &Interface) -> Vec<Check> {
    let features = match interface::features(&interface.name) {
        Ok(features) => features,
        Err(error) => {
            let found = format!("cannot tell what is on ({error})");
            return vec![Check::warn("offloads", found, format!("ethtool -k {}", interface.name))];
        }
    };
    let mut checks = vec![checksums(interface, &features), merging(&interface.name, &features)];
    if interface.kind.as_deref() == Some("veth") {
        checks.push(napi(&interface.name, has_napi(interface, &features)));
        checks.push(peer(interface));
    }
    checks
}

fn is_on(features: &[String], prefix: &str) -> bool {
    features.iter().any(|feature| feature.starts_with(prefix))
}

/// On a veth nobody fills in what the kernel leaves for the NIC to compute: the peer's program sees half a checksum.
fn checksums(interface: &Interface, features: &[String]) -> Check {
    const NAME: &str = "checksums";
    let name = &interface.name;
    if interface.kind.is_some() && is_on(features, "tx-checksum-ip") {
        return Check::warn(
            NAME,
            "transmit checksum offload on a virtual interface: what ordinary sockets send (the UDP backend) reaches the peer's program with a partial checksum and is refused",
            format!("ethtool -K {name} tx off"),
        );
    }
    Check::ok(NAME, "packets leave with complete checksums")
}

/// Packets that the NIC merged are no packets of Sumac's any more.
fn merging(name: &str, features: &[String]) -> Check {
    const NAME: &str = "merging";
    let on: Vec<_> = ["rx-lro", "rx-gro-hw"].into_iter().filter(|feature| is_on(features, feature)).collect();
    if on.is_empty() {
        return Check::ok(NAME, "the NIC hands over packets as they came");
    }
    Check::warn(
        NAME,
        format!("{} on: the NIC merges packets, and many drivers then take no XDP program", on.join(" and ")),
        format!("ethtool -K {name} lro off rx-gro-hw off"),
    )
}

/// A veth polls its receive ring only with a program in its driver, or with GRO.
fn has_napi(interface: &Interface, features: &[String]) -> bool {
    interface.xdp.iter().any(|program| program.mode == BoundMode::Driver)
        || features.iter().any(|feature| feature == "rx-gro")
}

fn napi(name: &str, polls: bool) -> Check {
    const NAME: &str = "napi";
    if polls {
        return Check::ok(NAME, "the veth polls its receive ring");
    }
    Check::warn(
        NAME,
        format!(
            "{name} has neither a program in driver mode nor GRO: what a peer's program redirects to it vanishes without a counter"
        ),
        format!("sumac attach {name} --mode copy, or: ethtool -K {name} gro on"),
    )
}

/// The same for the other end, where it can be seen.
fn peer(interface: &Interface) -> Check {
    const NAME: &str = "peer";
    let Some(peer) = interface.peer.filter(|peer| peer.same_namespace) else {
        return Check::ok(NAME, "the veth's other end is in another namespace; run doctor there too");
    };
    let other = Interface::by_index(peer.index)
        .and_then(|other| interface::features(&other.name).map(|features| (other, features)));
    match other {
        Ok((other, features)) if !has_napi(&other, &features) => Check::warn(
            NAME,
            format!(
                "{} has neither a program in driver mode nor GRO: what is redirected to it vanishes",
                other.name
            ),
            format!("attach the aggregator's program to it, or: ethtool -K {} gro on", other.name),
        ),
        Ok((other, _)) if !other.up => {
            Check::fail(NAME, format!("{} is down", other.name), format!("ip link set dev {} up", other.name))
        }
        Ok((other, _)) => Check::ok(NAME, format!("{} polls its receive ring", other.name)),
        Err(error) => {
            Check::warn(NAME, format!("cannot look at the veth's other end ({error})"), "run doctor there")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    #[test]
    fn offloads_are_judged_by_name() {
        let on = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let veth = Interface { kind: Some("veth".to_owned()), ..Interface::named("v0") };
        let nic = Interface { kind: None, ..veth.clone() };
        let bound = crate::interface::XdpProgram { id: 1, mode: BoundMode::Driver };
        let programmed = Interface { xdp: vec![bound], ..veth.clone() };
        assert_eq!(checksums(&veth, &on(&["tx-checksum-ip-generic"])).level, Level::Warn);
        assert_eq!(checksums(&veth, &on(&["rx-checksum"])).level, Level::Ok);
        assert_eq!(checksums(&nic, &on(&["tx-checksum-ip-generic"])).level, Level::Ok);
        assert_eq!(merging("v0", &on(&["rx-lro"])).level, Level::Warn);
        assert_eq!(merging("v0", &on(&["rx-gro"])).level, Level::Ok);
        assert!(!has_napi(&veth, &on(&["rx-gro-list"])));
        assert!(has_napi(&veth, &on(&["rx-gro"])));
        assert!(has_napi(&programmed, &[]));
        assert_eq!(napi("v0", false).level, Level::Warn);
        assert_eq!(peer(&veth).level, Level::Ok, "a peer that cannot be seen");
    }
}
