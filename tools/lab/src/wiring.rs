//! The wiring of interfaces: the topologies, with and without cables.
//!
//! ```text
//! per-port                                      one-arm
//!
//! w0 net0 --[c0]-- port0 +-----+                w0 net0 --[c0]-- w0 +----------+
//! w1 net0 --[c1]-- port1 | agg |                w1 net0 --[c1]-- w1 | switch   | agg -- port0 agg
//! w2 net0 --[c2]-- port2 +-----+                w2 net0 --[c2]-- w2 +----------+
//!
//! two racks
//!
//! w0 net0 --[c0]-- port0 +-------+
//! w1 net0 --[c1]-- port1 | rack0 | up --[u0]-- port0 +-----+
//!                        +-------+                   | agg |
//! w2 net0 --[c2]-- port0 +-------+ up --[u1]-- port1 +-----+
//! w3 net0 --[c3]-- port1 | rack1 |                   |     |
//!                        +-------+                   |     |
//! w4 net0 --[c4]----------------------------- port2 +-----+     a worker beside the root
//!
//! three levels: every two racks below an aggregator in the middle
//!
//! rack0 up --[u0]-- port0 +---------+
//! rack1 up --[u1]-- port1 | middle0 | up --[u4]-- port0 +-----+
//!                         +---------+                   | agg |
//! rack2 up --[u2]-- port0 +---------+ up --[u5]-- port1 +-----+
//! rack3 up --[u3]-- port1 | middle1 |
//!                         +---------+
//!
//! a fabric of two spines ([`crate::fabric`])
//!
//! w0 net0 --[c0]-- w0 +-------+ spine0 ------- leaf0 +-------+ a0 -- port0 +-----+
//! w1 net0 --[c1]-- w1 | leaf0 | spine1 ------- leaf0 | leaf1 | a1 -- port1 | agg |
//!                     +-------+                      +-------+             +-----+
//!                                  w2 net0 --[c2]-- w2                             a far worker
//!
//! the same, with a switch as the workers' leaf
//!
//! w0 net0 --[c0]-- w0 +--------+ spine0 ------- leaf0 +-------+ a0 -- port0 +-----+
//! w1 net0 --[c1]-- w1 | switch | spine1 ------- leaf0 | leaf1 | a1 -- port1 | agg |
//!                     +--------+                      +-------+             +-----+
//!
//! loopback: all programs in this process's own namespace
//!
//! a parameter host
//!
//! ph0 net0 --[h0]-- host0 agg                   ph0 net0 --[h0]-- ph0 switch
//! ```
//!
//! Where a lab has no cables, `[c]`, `[u]` and `[h]` are straight veths. Aggregators forward IP: what workers
//! and parameter hosts send each other without help takes the same ports and cables.

use std::net::Ipv4Addr;

use anyhow::Result;

use crate::cable::{Cable, FAR, NEAR};
use crate::fabric::Fabric;
use crate::namespace::{self, Link, Namespace};
use crate::spec::{FAR_LEAF, LabSpec, Topology};

/// The interface of a worker, and of a parameter host.
pub(crate) const WORKER_PORT: &str = "net0";

/// A rack's interface towards the root.
pub(crate) const UPLINK: &str = "up";

/// A place where frames are captured: a cable's end, or a switch's port.
#[derive(Clone, Debug)]
pub(crate) struct Tap<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) interface: String,
    /// The host at this end, and its interface where it has several.
    pub(crate) name: String,
}

/// The namespaces of a lab, by role.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    pub(crate) workers: Vec<Namespace>,
    /// The only aggregator, or the root.
    pub(crate) aggregator: Namespace,
    /// With three levels the aggregators in the middle stand behind the racks.
    pub(crate) racks: Vec<Namespace>,
    pub(crate) parameter: Vec<Namespace>,
    /// The workers' by rank, then the racks', then the parameter hosts'.
    pub(crate) cables: Vec<Cable>,
    pub(crate) switch: Option<Namespace>,
    pub(crate) fabric: Option<Fabric>,
}

/// One end of a link: a host and the interface in it.
type End<'a> = (&'a Namespace, &'a str);

impl Hosts {
    /// The namespaces that this lab has, not created yet.
    pub(crate) fn of(spec: &LabSpec) -> Hosts {
        let is_own = spec.topology == Topology::Loopback;
        let named = |suffix: String| {
            let name = format!("{}-{suffix}", spec.name);
            if is_own { Namespace::own(name) } else { Namespace::named(name) }
        };
        let cables = (0..spec.workers).map(|rank| format!("c{rank}"));
        let cables = cables.chain((0..spec.all_racks()).map(|rack| format!("u{rack}")));
        let cables = cables.chain((0..spec.parameter_hosts).map(|host| format!("h{host}")));
        Hosts {
            workers: (0..spec.workers).map(|rank| named(format!("w{rank}"))).collect(),
            aggregator: named("agg".into()),
            racks: (0..spec.racks)
                .map(|rack| named(format!("rack{rack}")))
                .chain((0..spec.middles()).map(|middle| named(format!("middle{middle}"))))
                .collect(),
            parameter: (0..spec.parameter_hosts).map(|host| named(format!("ph{host}"))).collect(),
            cables: cables.filter(|_| spec.has_cables()).map(|name| Cable::of(named(name), spec)).collect(),
            switch: (spec.topology == Topology::OneArm).then(|| named("switch".into())),
            fabric: Fabric::of(spec),
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Namespace> {
        let cables = self.cables.iter().map(Cable::namespace);
        let hosts = self.workers.iter().chain([&self.aggregator]).chain(&self.racks).chain(&self.parameter);
        let routers = self.fabric.iter().flat_map(Fabric::all);
        hosts.chain(cables).chain(&self.switch).chain(routers)
    }

    /// Creates namespaces, interfaces, addresses and routes.
    pub(crate) fn build(&self, spec: &LabSpec) -> Result<()> {
        if spec.topology == Topology::Loopback {
            return Ok(());
        }
        for host in self.all() {
            host.create()?;
        }
        // What other libraries send from worker to worker is routed here, as by the switch that Sumac's slots
        // live in.
        for router in self.racks.iter().chain([&self.aggregator]) {
            router.sysctl("net.ipv4.ip_forward=1\n")?;
        }
        if spec.ecn_threshold_kb.is_some() {
            // Where cables mark, TCP is to mind the marks as Sumac does: whoever minds a full queue alone
            // takes all.
            for host in self.workers.iter().chain(&self.parameter) {
                host.sysctl("net.ipv4.tcp_ecn=1\n")?;
            }
        }
        if let Some(switch) = &self.switch {
            self.build_switch(switch, spec)?;
        }
        if let Some(fabric) = &self.fabric {
            fabric.build(link(spec, 0))?;
        }
        for rack in 0..spec.all_racks() {
            self.plug_in_rack(rack, spec)?;
        }
        for rank in 0..spec.workers {
            self.plug_in_worker(rank, spec)?;
        }
        for host in 0..spec.parameter_hosts {
            self.plug_in_parameter_host(host, spec)?;
        }
        Ok(())
    }

    fn build_switch(&self, switch: &Namespace, spec: &LabSpec) -> Result<()> {
        switch.bridge_like_a_wire()?;
        let mtu = spec.mtu;
        switch.ip(&[
            // Without snooping multicast goes to all ports, as on a switch that nobody has configured.
            format!(
                "link add name fabric mtu {mtu} type bridge mcast_snooping 0 stp_state 0 forward_delay 0"
            ),
            "link set dev fabric up".into(),
        ])?;
        namespace::veth((&self.aggregator, "port0"), (switch, "agg"), link(spec, 0))?;
        switch.ip(&["link set dev agg master fabric".into()])?;
        self.aggregator.ip(&[format!("addr add {}/24 dev port0", spec.aggregator_ip(0))])
    }

    fn plug_in_rack(&self, rack: u16, spec: &LabSpec) -> Result<()> {
        let number = usize::from(rack);
        let (host, port) = (&self.racks[number], spec.parent_port(rack));
        let parent = self.parent_of(rack, spec);
        let cable = self.cables.get(usize::from(spec.workers) + number);
        join((host, UPLINK), (parent, &port), cable, spec, link(spec, number))?;
        let (up, root) = (spec.uplink_ip(rack), spec.root_ip(rack));
        parent.ip(&[format!("addr add {root}/24 dev {port}")])?;
        host.ip(&[format!("addr add {up}/24 dev {UPLINK}"), format!("route add default via {root}")])?;
        let workers = (0..spec.workers).filter(|rank| spec.is_below(*rank, rack));
        let routes = workers.map(|rank| format!("route add {}/32 via {up}", spec.worker_ip(rank)));
        parent.ip(&routes.collect::<Vec<_>>())
    }

    /// The aggregator above a rack: the root, or one in the middle.
    fn parent_of(&self, rack: u16, spec: &LabSpec) -> &Namespace {
        spec.middle_of(rack)
            .and_then(|middle| self.racks.get(usize::from(middle)))
            .unwrap_or(&self.aggregator)
    }

    pub(crate) fn plug_in_worker(&self, rank: u16, spec: &LabSpec) -> Result<()> {
        let number = usize::from(rank);
        let leaf = Leaf {
            host: &self.workers[number],
            name: format!("w{rank}"),
            address: spec.worker_ip(rank),
            gateway: spec.aggregator_ip(rank),
            aggregator: self.aggregator_of(rank, spec),
            port: spec.port_of(rank),
        };
        let (cable, link) = (self.cables.get(number), link(spec, number));
        match &self.fabric {
            None => self.plug_in(&leaf, cable, spec, link),
            Some(fabric) => {
                let (near, port) = (spec.leaf_of(rank), format!("a{rank}"));
                join((leaf.host, WORKER_PORT), (fabric.leaf(near), &leaf.name), cable, spec, link)?;
                namespace::veth((fabric.leaf(FAR_LEAF), &port), (leaf.aggregator, &leaf.port), link)?;
                fabric.route(near, &leaf.name, leaf.address)?;
                fabric.route(FAR_LEAF, &port, leaf.gateway)?;
                leaf.address(spec)?;
                if near == FAR_LEAF {
                    Ok(())
                } else {
                    fabric.plug_in_worker(leaf.host, WORKER_PORT, &leaf.name)
                }
            }
        }
    }

    fn plug_in_parameter_host(&self, host: u16, spec: &LabSpec) -> Result<()> {
        let number = usize::from(host);
        let leaf = Leaf {
            host: &self.parameter[number],
            name: format!("ph{host}"),
            address: spec.host_ip(host),
            gateway: spec.host_gateway(host),
            aggregator: &self.aggregator,
            port: spec.host_port(host),
        };
        let cable = self.cables.get(usize::from(spec.workers + spec.all_racks()) + number);
        self.plug_in(&leaf, cable, spec, link(spec, number))
    }

    fn plug_in(&self, leaf: &Leaf<'_>, cable: Option<&Cable>, spec: &LabSpec, link: Link) -> Result<()> {
        let Leaf { host, name, aggregator, port, .. } = leaf;
        let near = (*host, WORKER_PORT);
        match &self.switch {
            None => join(near, (aggregator, port), cable, spec, link)?,
            Some(switch) => {
                join(near, (switch, name), cable, spec, link)?;
                switch.ip(&[format!("link set dev {name} master fabric")])?;
            }
        }
        leaf.address(spec)
    }

    /// Both ends of every cable, and the aggregator's port of a switch.
    pub(crate) fn taps(&self, spec: &LabSpec) -> Vec<Tap<'_>> {
        let agg = self.aggregator.name();
        let on_switch = |port: String| self.switch.as_ref().map(|switch| format!("{}-{port}", switch.name()));
        let workers = (0..spec.workers).map(|rank| {
            let far = self
                .fabric
                .as_ref()
                .map(|fabric| format!("{}-w{rank}", fabric.leaf(spec.leaf_of(rank)).name()));
            let far = far.or_else(|| on_switch(format!("w{rank}")));
            let port = || format!("{}-{}", self.aggregator_of(rank, spec).name(), spec.port_of(rank));
            (self.workers[usize::from(rank)].name().to_owned(), far.unwrap_or_else(port))
        });
        let racks = (0..).zip(&self.racks);
        let racks = racks.map(|(rack, host)| {
            let far = format!("{}-{}", self.parent_of(rack, spec).name(), spec.parent_port(rack));
            (format!("{}-{UPLINK}", host.name()), far)
        });
        let hosts = (0..).zip(&self.parameter).map(|(host, place)| {
            let port = || format!("{agg}-{}", spec.host_port(host));
            (place.name().to_owned(), on_switch(format!("ph{host}")).unwrap_or_else(port))
        });
        let tap = |namespace, interface: &str, name| Tap { namespace, interface: interface.to_owned(), name };
        let names = workers.chain(racks).chain(hosts);
        let ends = self.cables.iter().map(Cable::namespace).zip(names);
        let ends = ends.flat_map(|(cable, (near, far))| [tap(cable, NEAR, near), tap(cable, FAR, far)]);
        let switch = self.switch.iter().map(|switch| tap(switch, "agg", format!("{agg}-port0")));
        ends.chain(switch).collect()
    }

    /// The aggregator that a worker hangs on: its rack's, or the only one.
    pub(crate) fn aggregator_of(&self, rank: u16, spec: &LabSpec) -> &Namespace {
        spec.rack_of(rank).and_then(|rack| self.racks.get(usize::from(rack))).unwrap_or(&self.aggregator)
    }
}

/// A host with one interface: a worker or a parameter host.
struct Leaf<'a> {
    host: &'a Namespace,
    /// Of its port on a switch.
    name: String,
    address: Ipv4Addr,
    gateway: Ipv4Addr,
    aggregator: &'a Namespace,
    /// The aggregator's, where there is no switch.
    port: String,
}

impl Leaf<'_> {
    /// Sets its address and route, and the aggregator's address where it has a port for it.
    fn address(&self, spec: &LabSpec) -> Result<()> {
        let Leaf { host, address, gateway, aggregator, port, .. } = self;
        if spec.topology == Topology::PerPort {
            aggregator.ip(&[format!("addr add {gateway}/24 dev {port}")])?;
        }
        let address = format!("addr add {address}/24 dev {WORKER_PORT}");
        host.ip(&[address, format!("route add default via {gateway}")])
    }
}

/// Returns the properties of one cable's veths. Frames of a queue stay on one CPU: with a single one the
/// cables are spread over all, with several queue 0 is the first CPU's everywhere, as a shard's frames are
/// one CPU's.
fn link(spec: &LabSpec, number: usize) -> Link {
    let LabSpec { mtu, queues, napi, .. } = *spec;
    Link { mtu, queues, napi, cpu: if queues == 1 { number } else { 0 } }
}

/// Joins two interfaces, by a cable where there is one.
fn join(near: End<'_>, far: End<'_>, cable: Option<&Cable>, spec: &LabSpec, link: Link) -> Result<()> {
    match cable {
        None => namespace::veth(near, far, link),
        Some(cable) => {
            namespace::veth(near, (cable.namespace(), NEAR), link)?;
            namespace::veth((cable.namespace(), FAR), far, link)?;
            cable.build(spec, link)
        }
    }
}
