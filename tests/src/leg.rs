//! The way between a living aggregator and a parameter host, cut and mended. Workers still reach both.

use std::net::Ipv4Addr;

use sumac_lab::Topology;
use sumac_lab::deployment::{Backend, Deployment};
use sumac_lab::namespace::Namespace;
use sumac_wire::DEFAULT_BASE_PORT;

/// The frames of jobs between the aggregator and the lab's first parameter host. Calls go on: a control plane
/// may well be somewhere else.
#[derive(Debug)]
pub struct Leg {
    at: Namespace,
    rules: String,
}

impl Leg {
    /// The leg of this lab. Over XDP its hosts must be on a switch, which then tells apart who sends to the
    /// parameter host; over UDP the aggregator's own frames pass other hooks of the kernel than those that it
    /// forwards.
    pub fn of(sumac: &Deployment<'_>) -> Leg {
        let (lab, spec) = (sumac.lab(), sumac.lab().spec());
        match sumac.options().backend {
            Backend::Udp => Leg { at: lab.aggregator().clone(), rules: of_a_process(spec.host_ip(0)) },
            Backend::Xdp | Backend::Mixed => {
                assert_eq!(spec.topology, Topology::OneArm, "who sends what is seen at a switch only");
                let host = lab.parameter_hosts()[0].mac(lab.worker_interface()).unwrap();
                let aggregator = lab.aggregator().mac(&spec.aggregator_ports()[0]).unwrap();
                let at = Namespace::named(format!("{}-switch", spec.name));
                Leg { at, rules: at_a_switch(aggregator, host) }
            }
        }
    }

    /// Loses all of them from now on.
    pub fn cut(&self) {
        self.at.nft(&self.rules).unwrap();
    }

    /// Loses none any more.
    pub fn mend(&self) {
        let family = if self.rules.starts_with("table inet") { "inet" } else { "netdev" };
        self.at.nft(&format!("delete table {family} leg\n")).unwrap();
    }
}

/// Of what an aggregator's process sends and receives itself.
fn of_a_process(host: Ipv4Addr) -> String {
    let chain = |hook, end| {
        format!(
            " chain {hook} {{\n  type filter hook {hook} priority 0\n  ip {end} {host} udp dport \
            {DEFAULT_BASE_PORT} drop\n }}\n"
        )
    };
    format!("table inet leg {{\n{}{}}}\n", chain("output", "daddr"), chain("input", "saddr"))
}

/// Of what comes into a switch from the aggregator for the parameter host, and the other way round.
fn at_a_switch(aggregator: [u8; 6], host: [u8; 6]) -> String {
    let chain = |port: &str, to: [u8; 6]| {
        let to = to.map(|byte| format!("{byte:02x}")).join(":");
        format!(
            " chain {port} {{\n  type filter hook ingress device \"{port}\" priority 0\n  \
             ether daddr {to} udp dport {DEFAULT_BASE_PORT} drop\n }}\n"
        )
    };
    format!("table netdev leg {{\n{}{}}}\n", chain("agg", host), chain("ph0", aggregator))
}
