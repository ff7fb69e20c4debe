//! Which interface is plugged into which: the two topologies, with and without cables.
//!
//! ```text
//! per-port                                      one-arm
//!
//! w0 net0 --[c0]-- port0 +-----+                w0 net0 --[c0]-- w0 +----------+
//! w1 net0 --[c1]-- port1 | agg |                w1 net0 --[c1]-- w1 | switch   | agg -- port0 agg
//! w2 net0 --[c2]-- port2 +-----+                w2 net0 --[c2]-- w2 +----------+
//! ```
//!
//! Where a lab has no cables, `[c]` is a straight veth.

use crate::cable::{Cable, FAR, NEAR};
use crate::command::CommandError;
use crate::namespace::{self, Namespace};
use crate::spec::{LabSpec, Topology};

/// A worker's interface.
pub(crate) const WORKER_PORT: &str = "net0";

/// The namespaces of a lab, by role.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    pub(crate) workers: Vec<Namespace>,
    pub(crate) aggregator: Namespace,
    pub(crate) cables: Vec<Cable>,
    pub(crate) switch: Option<Namespace>,
}

impl Hosts {
    /// The namespaces that this lab has, not created yet.
    pub(crate) fn of(spec: &LabSpec) -> Hosts {
        let named = |suffix: String| Namespace::named(format!("{}-{suffix}", spec.name));
        let cables = if spec.has_cables() { spec.workers } else { 0 };
        Hosts {
            workers: (0..spec.workers).map(|rank| named(format!("w{rank}"))).collect(),
            aggregator: named("agg".into()),
            cables: (0..cables).map(|rank| Cable::of(named(format!("c{rank}")))).collect(),
            switch: (spec.topology == Topology::OneArm).then(|| named("switch".into())),
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Namespace> {
        let cables = self.cables.iter().map(Cable::namespace);
        self.workers.iter().chain([&self.aggregator]).chain(cables).chain(&self.switch)
    }

    /// Creates namespaces, interfaces, addresses and routes.
    pub(crate) fn build(&self, spec: &LabSpec) -> Result<(), CommandError> {
        for host in self.all() {
            host.create()?;
        }
        // What other libraries send from worker to worker is routed here, as by the switch that Sumac's slots live in.
        self.aggregator.sysctl("net.ipv4.ip_forward=1\n")?;
        if let Some(switch) = &self.switch {
            self.build_switch(switch, spec)?;
        }
        for rank in 0..spec.workers {
            self.plug_in(rank, spec)?;
        }
        Ok(())
    }

    fn build_switch(&self, switch: &Namespace, spec: &LabSpec) -> Result<(), CommandError> {
        switch.bridge_like_a_wire()?;
        let mtu = spec.mtu;
        switch.ip(&[
            // Without snooping multicast goes to all ports, as on a switch that nobody has configured.
            format!(
                "link add name fabric mtu {mtu} type bridge mcast_snooping 0 stp_state 0 forward_delay 0"
            ),
            "link set dev fabric up".into(),
        ])?;
        namespace::veth((&self.aggregator, "port0"), (switch, "agg"), mtu, 0)?;
        switch.ip(&["link set dev agg master fabric".into()])?;
        self.aggregator.ip(&[format!("addr add {}/24 dev port0", spec.aggregator_ip(0))])
    }

    fn plug_in(&self, rank: u16, spec: &LabSpec) -> Result<(), CommandError> {
        // A cable's frames stay on one CPU, the cables spread over all.
        let cpu = usize::from(rank);
        let worker = &self.workers[usize::from(rank)];
        let (far_host, far_port) = match &self.switch {
            None => (&self.aggregator, format!("port{rank}")),
            Some(switch) => (switch, format!("w{rank}")),
        };
        match self.cables.get(usize::from(rank)) {
            None => namespace::veth((worker, WORKER_PORT), (far_host, &far_port), spec.mtu, cpu)?,
            Some(cable) => {
                namespace::veth((worker, WORKER_PORT), (cable.namespace(), NEAR), spec.mtu, cpu)?;
                namespace::veth((cable.namespace(), FAR), (far_host, &far_port), spec.mtu, cpu)?;
                cable.build(spec, cpu)?;
            }
        }
        let gateway = spec.aggregator_ip(rank);
        match &self.switch {
            None => self.aggregator.ip(&[format!("addr add {gateway}/24 dev {far_port}")])?,
            Some(switch) => switch.ip(&[format!("link set dev {far_port} master fabric")])?,
        }
        worker.ip(&[
            format!("addr add {}/24 dev {WORKER_PORT}", spec.worker_ip(rank)),
            format!("route add default via {gateway}"),
        ])
    }
}
