//! Checks of one interface: state, program, MTU, queues and rings.

use nix::errno::Errno;
use sumac_loader::{
    BoundXdpMode, Interface, Variant, interface, preflight,
    program::{self, ProgramOwner},
};
use sumac_wire::{
    MAX_ELEMENTS, admit,
    frame::{IPV4_LEN, UDP_LEN},
    header::{ELEMENT_LEN, HEADER_LEN},
};

use super::{
    check::{Check, Subject},
    irq, offloads, steering,
};
use crate::{
    attached::{Attached, OpenError},
    pins::HostPins,
};

/// The oldest kernel with AF_XDP sockets for frames in several buffers.
const JUMBO_KERNEL: (u32, u32) = (6, 6);
/// Receive descriptors for a window of a few hundred packets.
const ENOUGH_DESCRIPTORS: u32 = 512;

pub fn examine(name: &str, subject: &Subject) -> Vec<Check> {
    let interface = match Interface::by_name(name) {
        Ok(interface) => interface,
        Err(error) => {
            let found = format!("no {name} in this network namespace ({error})");
            let remedy = "see `ip link`; `nsenter --net=` enters another namespace";
            return vec![Check::fail(found, remedy).named("interface")];
        }
    };
    let attached = Attached::open(name, &subject.pin_root);
    let mut checks = vec![
        state(&interface).named("interface"),
        program(&interface, &attached).named("program"),
        mtu(&interface, subject.elements).named("mtu"),
        queues(&interface, attached.as_ref().ok()).named("queues"),
        rings(&interface).named("rings"),
    ];
    checks.extend(offloads::examine(&interface));
    checks.push(irq::examine(&interface).named("interrupts"));
    let pins = HostPins::here(&subject.pin_root, name).ok();
    checks.extend(steering::examine(&interface, attached.as_ref().ok(), pins.as_ref()));
    checks
}

fn state(interface: &Interface) -> Check {
    let Interface { name, index, rx_queues, .. } = interface;
    if interface.is_bond() {
        return Check::warn(
            format!(
                "{name} is a bond: a socket of AF_XDP that is bound to it receives none of its ports' frames"
            ),
            "the daemon uses UDP there with `backend` \"auto\" or \"udp\"",
        );
    }
    if interface.up {
        let kind = interface.kind.as_deref().unwrap_or("hardware");
        return Check::ok(format!("{name} is up: index {index}, {kind}, {rx_queues} receive queue(s)"));
    }
    Check::fail(
        format!("{name} is down: sockets cannot be bound to it"),
        format!("ip link set dev {name} up"),
    )
}

fn program(interface: &Interface, attached: &Result<Attached, OpenError>) -> Check {
    let name = &interface.name;
    let again = format!("sumac attach {name}");
    match attached {
        Ok(attached) if attached.fell_back() => Check::warn(
            "attached, but in generic mode: the driver refused it",
            format!("correct the findings below, then {again}"),
        ),
        Ok(attached) => Check::ok(format!("attached in {} mode", attached.mode())),
        Err(OpenError::NotAttached { .. }) => match interface.xdp.first() {
            Some(found) => occupied(name, found.id, found.mode, program::owner(found.id)),
            None => Check::warn("not attached: the daemon would use UDP", again),
        },
        Err(OpenError::Detached { path, .. }) => {
            Check::fail(format!("stale pins at {}: their program is not on {name}", path.display()), again)
        }
        Err(error @ OpenError::System { .. }) => Check::fail(error.to_string(), "run it as root"),
        Err(error) => Check::fail(error.to_string(), again),
    }
}

/// Returns the finding of a program that has no pins here.
fn occupied(name: &str, id: u32, mode: BoundXdpMode, owner: ProgramOwner) -> Check {
    let whose = match owner {
        ProgramOwner::Aggregator => "Sumac's aggregator, which is no worker's host program",
        ProgramOwner::Host => "Sumac's host program, pinned elsewhere",
        ProgramOwner::Foreign => "not Sumac's",
    };
    Check::fail(format!("XDP program {id} ({mode}) is on {name}: {whose}"), owner.advice(name))
}

fn mtu(interface: &Interface, elements: u16) -> Check {
    let (name, mtu) = (&interface.name, interface.mtu);
    let needed = (IPV4_LEN + UDP_LEN + admit::payload_len(elements)) as u32;
    if mtu < needed {
        let room = (mtu as usize).saturating_sub(IPV4_LEN + UDP_LEN + HEADER_LEN) / ELEMENT_LEN;
        return Check::fail(
            format!("{mtu}: a chunk of {elements} elements takes {needed}"),
            format!(
                "use chunks of at most {} elements, or: ip link set dev {name} mtu {needed}",
                room.min(MAX_ELEMENTS)
            ),
        );
    }
    let release = preflight::kernel_release();
    if Variant::for_mtu(mtu) == Variant::Jumbo
        && preflight::kernel_version(&release).is_some_and(|version| version < JUMBO_KERNEL)
    {
        return Check::fail(
            format!(
                "{mtu}: frames come in several buffers, which AF_XDP of Linux {release} does not support"
            ),
            format!("ip link set dev {name} mtu {}, or Linux 6.6", Variant::ONE_BUFFER_MTU),
        );
    }
    Check::ok(format!("{mtu}: chunks of {elements} elements fit ({needed} bytes)"))
}

fn queues(interface: &Interface, attached: Option<&Attached>) -> Check {
    let name = &interface.name;
    let Some(attached) = attached else {
        return Check::ok(format!("{} receive queue(s); nothing counted yet", interface.rx_queues));
    };
    let counters = match attached.queue_counters() {
        Ok(counters) => counters,
        Err(error) => return Check::fail(error.to_string(), "run as root"),
    };
    let selected = attached.queues();
    let unselected: Vec<_> = counters
        .iter()
        .filter(|(queue, counters)| counters.no_socket > 0 && !selected.contains(queue))
        .map(|(queue, counters)| format!("{} on queue {queue}", counters.no_socket))
        .collect();
    if !unselected.is_empty() {
        return Check::warn(
            format!("packets arrived on queues that were not selected: {}", unselected.join(", ")),
            format!("sumac attach {name} --queues all, or --steer ntuple"),
        );
    }
    let without: u64 = counters.iter().map(|(_, counters)| counters.no_socket).sum();
    let steered: u64 = counters.iter().map(|(_, counters)| counters.steered).sum();
    if without > 0 {
        return Check::warn(
            format!("{without} packet(s) found no socket on their queue, {steered} did"),
            "harmless if the daemon was not running then; else check that it runs, and its sockets in `sumac \
            status`",
        );
    }
    Check::ok(format!("{steered} packet(s) steered, none without a socket"))
}

fn rings(interface: &Interface) -> Check {
    let name = &interface.name;
    match interface::rings(name) {
        Ok(rings) if rings.rx < ENOUGH_DESCRIPTORS && rings.rx < rings.rx_max => Check::warn(
            format!("{} receive descriptors: a full window may overflow them", rings.rx),
            format!("ethtool -G {name} rx {}", rings.rx_max.min(2048)),
        ),
        Ok(rings) => Check::ok(format!("{} receive and {} transmit descriptors", rings.rx, rings.tx)),
        Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => {
            Check::ok("the driver's rings have a fixed size")
        }
        Err(error) => Check::warn(format!("their size is unknown ({error})"), format!("ethtool -g {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::check::Severity, *};

    fn veth(mtu: u32) -> Interface {
        Interface { mtu, ..Interface::named("v0") }
    }

    #[test]
    fn a_chunk_must_fit_the_mtu() {
        let table = [
            ("the default", 1500, 256, Severity::Ok),
            ("the last that fits", 1500, 352, Severity::Ok),
            ("one too many", 1500, 353, Severity::Fail),
            ("360 in 1532", 1532, 360, Severity::Ok),
            ("360 in 1500", 1500, 360, Severity::Fail),
            ("the longest on a veth", 3506, 832, Severity::Ok),
            ("jumbo frames", 9000, 2224, Severity::Ok),
        ];
        for (name, size, elements, level) in table {
            assert_eq!(mtu(&veth(size), elements).level, level, "{name}");
        }
        let remedy = mtu(&veth(1500), 360).remedy.unwrap();
        assert!(remedy.contains("at most 352 elements"), "{remedy}");
    }

    #[test]
    fn the_aggregators_programs_are_never_to_be_removed_by_hand() {
        for owner in [ProgramOwner::Aggregator, ProgramOwner::Host] {
            let check = occupied("eth1", 7, BoundXdpMode::Driver, owner);
            assert!(check.found.contains("Sumac's") && !check.found.contains("not Sumac's"), "{check:?}");
            assert!(!check.remedy.unwrap().contains("xdp off"), "{owner:?}");
        }
    }

    #[test]
    fn a_bond_is_named() {
        let check = state(&Interface { kind: Some("bond".to_owned()), ..veth(1500) });
        assert_eq!(check.level, Severity::Warn);
        assert!(check.found.contains("v0 is a bond"), "{check:?}");
    }

    #[test]
    fn an_interface_that_is_down_or_missing_fails() {
        assert_eq!(state(&veth(1500)).level, Severity::Ok);
        assert_eq!(state(&Interface { up: false, ..veth(1500) }).level, Severity::Fail);
        let subject = Subject { interface: Some("no-such-if".to_owned()), ..Subject::default() };
        let checks = examine("no-such-if", &subject);
        assert_eq!((checks.len(), checks[0].level), (1, Severity::Fail));
    }
}
