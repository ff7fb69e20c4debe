//! The CPUs that handle the interface's interrupts.

use std::{collections::BTreeSet, fs};

use sumac_loader::Interface;

use super::check::Check;

pub fn examine(interface: &Interface) -> Check {
    let Ok(table) = fs::read_to_string("/proc/interrupts") else {
        return Check::warn("could not read /proc/interrupts", "mount /proc");
    };
    let affinity = |irq: u32| {
        let read = |file: &str| fs::read_to_string(format!("/proc/irq/{irq}/{file}")).ok();
        read("effective_affinity_list").or_else(|| read("smp_affinity_list")).unwrap_or_default()
    };
    judge(&interface.name, &interrupts(&table, &interface.name), affinity)
}

/// Returns the numbers of the interrupts named after the interface: `eth1`, `eth1-rx-0`, `eth1-TxRx-3`.
fn interrupts(table: &str, interface: &str) -> Vec<u32> {
    let of_interface = |name: &str| {
        name.strip_prefix(interface).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', ':', '@']))
    };
    table
        .lines()
        .filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let named = rest.split([' ', ',']).any(of_interface);
            named.then(|| number.trim().parse().ok()).flatten()
        })
        .collect()
}

fn judge(interface: &str, irqs: &[u32], affinity: impl Fn(u32) -> String) -> Check {
    if irqs.is_empty() {
        return Check::ok("none of its own (a virtual interface, or named by the driver alone)");
    }
    let cpus: BTreeSet<String> = irqs.iter().map(|irq| affinity(*irq).trim().to_owned()).collect();
    let shown: Vec<_> = cpus.iter().map(String::as_str).collect();
    let shown = shown.join(" ");
    if irqs.len() > 1 && cpus.len() == 1 && !shown.contains([',', '-']) {
        return Check::warn(
            format!("all {} on CPU {shown}: one core receives every packet", irqs.len()),
            format!(
                "spread them: echo CPU > /proc/irq/N/smp_affinity_list for N in {irqs:?}, or start \
                irqbalance for {interface}"
            ),
        );
    }
    Check::ok(format!("{} on CPUs {shown}", irqs.len()))
}

#[cfg(test)]
mod tests {
    use super::{super::check::Severity, *};

    const TABLE: &str = "            CPU0       CPU1
  1:          9          0   IO-APIC   1-edge      i8042
 24:       1000          0   PCI-MSI 49152-edge      eth1
 25:        100         20   PCI-MSI 49153-edge      eth1-TxRx-0
 26:        100         20   PCI-MSI 49154-edge      eth10-TxRx-0
 27:        100         20   PCI-MSI 49155-edge      other, eth1-TxRx-1
NMI:          0          0   Non-maskable interrupts
";

    #[test]
    fn interrupts_are_found_by_name() {
        assert_eq!(interrupts(TABLE, "eth1"), [24, 25, 27]);
        assert_eq!(interrupts(TABLE, "eth10"), [26]);
        assert!(interrupts(TABLE, "veth0").is_empty());
    }

    #[test]
    fn all_on_one_cpu_is_a_warning() {
        assert_eq!(judge("eth1", &[1, 2], |_| "0\n".to_owned()).level, Severity::Warn);
        assert_eq!(judge("eth1", &[1, 2], |irq| irq.to_string()).level, Severity::Ok);
        assert_eq!(judge("eth1", &[1, 2], |_| "0-1".to_owned()).level, Severity::Ok);
        assert_eq!(judge("eth1", &[1], |_| "0".to_owned()).level, Severity::Ok);
        assert_eq!(judge("v0", &[], |_| String::new()).level, Severity::Ok);
    }
}
