//! Checks of offloads that change packets before or after the program, and of a veth's NAPI on both ends.

use sumac_loader::{BoundXdpMode, Interface, interface};

use super::check::Check;

pub fn examine(interface: &Interface) -> Vec<Check> {
    let features = match interface::features(&interface.name) {
        Ok(features) => features,
        Err(error) => {
            let found = format!("the active offloads are unknown ({error})");
            return vec![Check::warn(found, format!("ethtool -k {}", interface.name)).named("offloads")];
        }
    };
    let mut checks = vec![
        checksums(interface, &features).named("checksums"),
        merging(&interface.name, &features).named("merging"),
    ];
    if interface.kind.as_deref() == Some("veth") {
        checks.push(napi(&interface.name, has_napi(interface, &features)).named("napi"));
        checks.push(peer(interface).named("peer"));
    }
    checks
}

fn is_on(features: &[String], prefix: &str) -> bool {
    features.iter().any(|feature| feature.starts_with(prefix))
}

/// On a veth the part of a checksum that the kernel leaves to the NIC is missing: the peer's program receives
/// half of it.
fn checksums(interface: &Interface, features: &[String]) -> Check {
    let name = &interface.name;
    if interface.kind.is_some() && is_on(features, "tx-checksum-ip") {
        return Check::warn(
            "transmit checksum offload on a virtual interface: packets of ordinary sockets (the UDP backend) \
            reach the peer's program with a partial checksum and are refused",
            format!("ethtool -K {name} tx off"),
        );
    }
    Check::ok("packets leave with complete checksums")
}

/// A packet that the NIC merged of several is no valid packet of Sumac's.
fn merging(name: &str, features: &[String]) -> Check {
    let on: Vec<_> = ["rx-lro", "rx-gro-hw"].into_iter().filter(|feature| is_on(features, feature)).collect();
    if on.is_empty() {
        return Check::ok("the NIC delivers packets unmerged");
    }
    Check::warn(
        format!("{} on: the NIC merges packets, and many drivers then take no XDP program", on.join(" and ")),
        format!("ethtool -K {name} lro off rx-gro-hw off"),
    )
}

/// A veth polls its receive ring only with a program in its driver, or with GRO.
fn has_napi(interface: &Interface, features: &[String]) -> bool {
    interface.xdp.iter().any(|program| program.mode == BoundXdpMode::Driver)
        || features.iter().any(|feature| feature == "rx-gro")
}

fn napi(name: &str, polls: bool) -> Check {
    if polls {
        return Check::ok("the veth polls its receive ring");
    }
    Check::warn(
        format!(
            "{name} has neither a program in driver mode nor GRO: frames that a peer's program redirects to \
            it are lost uncounted"
        ),
        format!("sumac attach {name} --mode copy, or: ethtool -K {name} gro on"),
    )
}

/// Checks the NAPI of the other end, where it is visible.
fn peer(interface: &Interface) -> Check {
    let Some(peer) = interface.peer.filter(|peer| peer.same_namespace) else {
        return Check::ok("the veth's other end is in another namespace; run doctor there too");
    };
    let other = Interface::by_index(peer.index)
        .and_then(|other| interface::features(&other.name).map(|features| (other, features)));
    match other {
        Ok((other, features)) if !has_napi(&other, &features) => Check::warn(
            format!(
                "{} has neither a program in driver mode nor GRO: frames redirected to it are lost",
                other.name
            ),
            format!("attach the aggregator's program to it, or: ethtool -K {} gro on", other.name),
        ),
        Ok((other, _)) if !other.up => {
            Check::fail(format!("{} is down", other.name), format!("ip link set dev {} up", other.name))
        }
        Ok((other, _)) => Check::ok(format!("{} polls its receive ring", other.name)),
        Err(error) => {
            Check::warn(format!("the veth's other end is unreadable ({error})"), "run doctor there")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::check::Severity, *};

    #[test]
    fn offloads_are_judged_by_name() {
        let on = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let veth = Interface { kind: Some("veth".to_owned()), ..Interface::named("v0") };
        let nic = Interface { kind: None, ..veth.clone() };
        let bound = sumac_loader::interface::XdpProgram { id: 1, mode: BoundXdpMode::Driver };
        let programmed = Interface { xdp: vec![bound], ..veth.clone() };
        assert_eq!(checksums(&veth, &on(&["tx-checksum-ip-generic"])).level, Severity::Warn);
        assert_eq!(checksums(&veth, &on(&["rx-checksum"])).level, Severity::Ok);
        assert_eq!(checksums(&nic, &on(&["tx-checksum-ip-generic"])).level, Severity::Ok);
        assert_eq!(merging("v0", &on(&["rx-lro"])).level, Severity::Warn);
        assert_eq!(merging("v0", &on(&["rx-gro"])).level, Severity::Ok);
        assert!(!has_napi(&veth, &on(&["rx-gro-list"])));
        assert!(has_napi(&veth, &on(&["rx-gro"])));
        assert!(has_napi(&programmed, &[]));
        assert_eq!(napi("v0", false).level, Severity::Warn);
        assert_eq!(peer(&veth).level, Severity::Ok, "a peer that is not visible");
    }
}
