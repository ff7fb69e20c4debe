//! Whether each shard's packets come to its queue, and which thread takes them from there.

use std::fs;

use sumac_wire::DEFAULT_BASE_PORT;

use super::Check;
use crate::{
    attached::Attached,
    interface::{self, Filters, Interface},
    pins::PinDir,
    steer::report::{By, Steering, look},
};

/// Looks at the rules for the shards of the attached program, or for one shard when none is attached.
pub fn examine(interface: &Interface, attached: Option<&Attached>, pins: Option<&PinDir>) -> Vec<Check> {
    let told = match (attached, pins) {
        (Some(attached), _) => Some(attached.steering()),
        (None, Some(pins)) => {
            let all: Vec<u32> = (0..interface.rx_queues).collect();
            Some(look(interface, (DEFAULT_BASE_PORT, 1), &all, &pins.rules()))
        }
        (None, None) => None,
    };
    let filters = interface::filters(&interface.name).unwrap_or(Filters::NoSwitch);
    let judged = told.map(|told| steering(&interface.name, &told, filters, attached.is_some()));
    judged.into_iter().chain([threads(interface, threaded(interface))]).collect()
}

fn steering(name: &str, told: &Steering, filters: Filters, is_attached: bool) -> Check {
    const NAME: &str = "steering";
    if told.is_whole() {
        return Check::ok(NAME, told.to_string());
    }
    let mend = match (told.by, filters) {
        (_, Filters::Off) => format!("ethtool -K {name} ntuple on, then: sumac attach {name}"),
        (By::SendersCpu, _) => {
            "pin the daemon's threads (`cpus`), and keep NAPI out of threads of its own on both ends"
                .to_owned()
        }
        _ if told.no_rules.is_none() && !is_attached => {
            let found = format!("{told}; its driver takes rules, and `sumac attach {name}` puts them in");
            return Check::ok(NAME, found);
        }
        _ if told.no_rules.is_none() => {
            format!("sumac attach {name} --steer ntuple, with its --shards, which says what is in the way")
        }
        _ => format!("one queue has nothing to steer: ethtool -L {name} combined 1"),
    };
    let why = told.no_rules.as_ref().map_or(String::new(), |why| format!(" ({why})"));
    Check::warn(NAME, format!("{}{why}", told.for_worker()), mend)
}

/// What the interface's switch for threaded NAPI says; none when it cannot be told.
///
/// The kernel shows the interfaces in sysfs of the namespace that it was mounted in: under `nsenter --net` another one
/// may have the name there, but not the number and the address.
fn threaded(interface: &Interface) -> Option<String> {
    let read = |file: &str| fs::read_to_string(format!("/sys/class/net/{}/{file}", interface.name)).ok();
    let is_it = read("ifindex")?.trim() == interface.index.to_string()
        && read("address")?.trim() == interface.address.as_deref()?;
    let value = if is_it { read("threaded")? } else { return None };
    Some(value.trim().to_owned())
}

fn threads(interface: &Interface, threaded: Option<String>) -> Check {
    const NAME: &str = "threads";
    let Interface { name, rx_queues, .. } = interface;
    let file = format!("/sys/class/net/{name}/threaded");
    let is_veth = interface.kind.as_deref() == Some("veth");
    match threaded.as_deref() {
        None => Check::ok(
            NAME,
            format!("cannot tell where NAPI runs: {file} is not there, or /sys is another namespace's"),
        ),
        Some("0") => Check::ok(
            NAME,
            format!(
                "NAPI runs where {}; threads of its own let the scheduler move it to a free core: echo 1 > {file}",
                if is_veth { "the sender does" } else { "the interrupt came" }
            ),
        ),
        Some(_) if is_veth && *rx_queues > 1 => Check::warn(
            NAME,
            "NAPI runs in threads of its own, on any CPU: frames that a program redirects leave their shard's queue",
            format!("echo 0 > {file}"),
        ),
        Some(_) => Check::ok(
            NAME,
            format!(
                "NAPI runs in threads of its own (napi/{name}-*), which need a free core; back: echo 0 > {file}"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    fn veth(rx_queues: u32) -> Interface {
        Interface { kind: Some("veth".to_owned()), rx_queues, ..Interface::named("v0") }
    }

    fn told(by: By, no_rules: Option<&str>) -> Steering {
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
    fn what_could_steer_is_said() {
        let none = Some("its driver has none");
        let table = [
            ("one queue", told(By::OneQueue, None), Filters::NoSwitch, true, Level::Ok, ""),
            ("rules", told(By::Rules, None), Filters::On, true, Level::Ok, ""),
            ("not attached", told(By::Hash, None), Filters::On, false, Level::Ok, ""),
            ("attached without", told(By::Hash, None), Filters::On, true, Level::Warn, "--steer ntuple"),
            ("switched off", told(By::Hash, none), Filters::Off, false, Level::Warn, "ntuple on"),
            ("a veth", told(By::SendersCpu, none), Filters::NoSwitch, true, Level::Warn, "`cpus`"),
            ("no rules", told(By::Driver, none), Filters::NoSwitch, true, Level::Warn, "combined 1"),
        ];
        for (what, told, filters, is_attached, level, mend) in table {
            let check = steering("eth9", &told, filters, is_attached);
            assert_eq!((check.level, check.mend.is_some()), (level, level != Level::Ok), "{what}: {check:?}");
            assert!(check.mend.as_deref().unwrap_or_default().contains(mend), "{what}: {check:?}");
        }
    }

    #[test]
    fn threads_harm_a_veth_of_several_queues_only() {
        let judge = |interface, threaded: Option<&str>| threads(interface, threaded.map(str::to_owned));
        let nic = Interface { kind: None, ..veth(4) };
        for (what, check, level) in [
            ("unknown", judge(&veth(2), None), Level::Ok),
            ("in the sender's call", judge(&veth(2), Some("0")), Level::Ok),
            ("one queue", judge(&veth(1), Some("1")), Level::Ok),
            ("two queues", judge(&veth(2), Some("1")), Level::Warn),
            ("busy polled", judge(&veth(2), Some("2")), Level::Warn),
            ("a NIC", judge(&nic, Some("1")), Level::Ok),
        ] {
            assert_eq!(check.level, level, "{what}: {check:?}");
            assert!(format!("{check:?}").contains("/sys/class/net/v0/threaded"), "{what}: {check:?}");
        }
    }
}
