//! Checks of the queue on which each shard's packets arrive, and of the thread that polls it.

use std::fs;

use sumac_loader::{
    Interface,
    interface::{self, Filters},
};
use sumac_netutil::steer::{
    records::RuleRecords,
    report::{self, QueueChoice, Steering},
};
use sumac_wire::DEFAULT_BASE_PORT;

use super::check::Check;
use crate::{attached::Attached, pins::HostPins};

/// Checks the rules for the shards of the attached program, or for one shard when none is attached.
pub fn examine(interface: &Interface, attached: Option<&Attached>, pins: Option<&HostPins>) -> Vec<Check> {
    let present = match (attached, pins) {
        (Some(attached), _) => Some(attached.steering()),
        (None, Some(pins)) => {
            let all: Vec<u32> = (0..interface.rx_queues).collect();
            let records = RuleRecords::of_interface(pins.directory.path());
            Some(report::examine(interface, (DEFAULT_BASE_PORT, 1), &all, &records))
        }
        (None, None) => None,
    };
    let filters = interface::filters(&interface.name).unwrap_or(Filters::NoSwitch);
    let steering =
        |present| steering(&interface.name, &present, filters, attached.is_some()).named("steering");
    let threads = threads(interface, threaded(interface)).named("threads");
    present.map(steering).into_iter().chain([threads]).collect()
}

fn steering(name: &str, present: &Steering, filters: Filters, is_attached: bool) -> Check {
    if present.is_whole() {
        return Check::ok(present.to_string());
    }
    // One queue is what every driver has. Whether it takes rules for UDP ports shows when one is inserted:
    // igb lists its rules, and refuses those.
    let single = format!("a single queue needs no steering: ethtool -L {name} combined 1");
    let remedy = match (present.by, filters) {
        (QueueChoice::SendersCpu, _) => {
            "pin the daemon's threads (`cpus`), and keep NAPI out of threads of its own on both ends"
                .to_owned()
        }
        (_, Filters::Off) => format!(
            "{single}; or, if its driver takes rules for UDP ports (igb does not): ethtool -K {name} ntuple \
            on, then: sumac attach {name}"
        ),
        _ if present.no_rules.is_none() && !is_attached => {
            let found = format!(
                "{present}; `sumac attach {name}` inserts rules if its driver takes them for UDP ports, and \
                else reports it; {single}"
            );
            return Check::ok(found);
        }
        _ if present.no_rules.is_none() => format!(
            "{single}; or sumac attach {name} --steer ntuple, with its --shards, for the reason of the \
            refusal"
        ),
        _ => single,
    };
    let reason = present.no_rules.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
    Check::warn(format!("{}{reason}", present.for_worker()), remedy)
}

/// Returns the interface's setting for threaded NAPI; `None` when it is unknown.
///
/// sysfs has the interfaces of the namespace that it was mounted in: under `nsenter --net` another interface
/// may have the name there, but not the index and the address.
fn threaded(interface: &Interface) -> Option<String> {
    let read = |file: &str| fs::read_to_string(format!("/sys/class/net/{}/{file}", interface.name)).ok();
    let is_it = read("ifindex")?.trim() == interface.index.to_string()
        && read("address")?.trim() == interface.address.as_deref()?;
    let value = if is_it { read("threaded")? } else { return None };
    Some(value.trim().to_owned())
}

fn threads(interface: &Interface, threaded: Option<String>) -> Check {
    let Interface { name, rx_queues, .. } = interface;
    let file = format!("/sys/class/net/{name}/threaded");
    let is_veth = interface.kind.as_deref() == Some("veth");
    match threaded.as_deref() {
        None => Check::ok(format!(
            "NAPI's threads are unknown: {file} is missing, or /sys is another namespace's"
        )),
        Some("0") => Check::ok(format!(
            "NAPI runs where {}; threads of its own let the scheduler move it to a free core: echo 1 > \
            {file}",
            if is_veth { "the sender does" } else { "the interrupt arrived" }
        )),
        Some(_) if is_veth && *rx_queues > 1 => Check::warn(
            "NAPI runs in threads of its own, on any CPU: frames that a program redirects leave their \
            shard's queue",
            format!("echo 0 > {file}"),
        ),
        Some(_) => Check::ok(format!(
            "NAPI runs in threads of its own (napi/{name}-*), which need a free core; back: echo 0 > {file}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::check::Severity, *};

    fn veth(rx_queues: u32) -> Interface {
        Interface { kind: Some("veth".to_owned()), rx_queues, ..Interface::named("v0") }
    }

    fn present(by: QueueChoice, no_rules: Option<&str>) -> Steering {
        Steering {
            by,
            queues: 4,
            rules: Vec::new(),
            without_rule: vec![48700],
            udp4_hash: None,
            no_rules: no_rules.map(str::to_owned),
        }
    }

    #[test]
    fn the_remedy_fits_the_mechanism() {
        let none = Some("its driver has none");
        let table = [
            ("one queue", present(QueueChoice::OneQueue, None), Filters::NoSwitch, true, Severity::Ok, ""),
            ("rules", present(QueueChoice::Rules, None), Filters::On, true, Severity::Ok, ""),
            ("not attached", present(QueueChoice::Hash, None), Filters::On, false, Severity::Ok, ""),
            (
                "attached without",
                present(QueueChoice::Hash, None),
                Filters::On,
                true,
                Severity::Warn,
                "--steer ntuple",
            ),
            (
                "switched off",
                present(QueueChoice::Hash, none),
                Filters::Off,
                false,
                Severity::Warn,
                "ntuple on",
            ),
            // A driver may have the switch, and refuse rules for UDP ports.
            (
                "switched off, with a remedy for every driver",
                present(QueueChoice::Hash, None),
                Filters::Off,
                true,
                Severity::Warn,
                "ethtool -L eth9 combined 1",
            ),
            (
                "refused",
                present(QueueChoice::Hash, None),
                Filters::On,
                true,
                Severity::Warn,
                "ethtool -L eth9 combined 1",
            ),
            (
                "a veth",
                present(QueueChoice::SendersCpu, none),
                Filters::NoSwitch,
                true,
                Severity::Warn,
                "`cpus`",
            ),
            (
                "no rules",
                present(QueueChoice::Driver, none),
                Filters::NoSwitch,
                true,
                Severity::Warn,
                "combined 1",
            ),
        ];
        for (name, present, filters, is_attached, level, remedy) in table {
            let check = steering("eth9", &present, filters, is_attached);
            assert_eq!(
                (check.level, check.remedy.is_some()),
                (level, level != Severity::Ok),
                "{name}: {check:?}"
            );
            assert!(check.remedy.as_deref().unwrap_or_default().contains(remedy), "{name}: {check:?}");
        }
    }

    #[test]
    fn threads_harm_a_veth_of_several_queues_only() {
        let judge = |interface, threaded: Option<&str>| threads(interface, threaded.map(str::to_owned));
        let nic = Interface { kind: None, ..veth(4) };
        for (name, check, level) in [
            ("unknown", judge(&veth(2), None), Severity::Ok),
            ("in the sender's call", judge(&veth(2), Some("0")), Severity::Ok),
            ("one queue", judge(&veth(1), Some("1")), Severity::Ok),
            ("two queues", judge(&veth(2), Some("1")), Severity::Warn),
            ("busy polled", judge(&veth(2), Some("2")), Severity::Warn),
            ("a NIC", judge(&nic, Some("1")), Severity::Ok),
        ] {
            assert_eq!(check.level, level, "{name}: {check:?}");
            assert!(format!("{check:?}").contains("/sys/class/net/v0/threaded"), "{name}: {check:?}");
        }
    }
}
