//! A leaf-spine fabric between the workers and the aggregator: routers that choose the spine by a hash of
//! addresses and ports (ECMP).
//!
//! Hosts know nothing of it. Each has the aggregator in its subnet, and the leaf answers for it (proxy ARP).
//!
//! The workers' leaf may be a switch instead. The spines are then next hops on the workers' segment and
//! answer for the aggregator; the daemons choose among them.

use std::net::Ipv4Addr;

use anyhow::Result;

use crate::namespace::{self, Link, Namespace};
use crate::spec::{FAR_LEAF, LabSpec, NearLeaf};

/// The leaves' interfaces at a spine, the workers' first.
const DOWNLINKS: [&str; 2] = ["leaf0", "leaf1"];

/// Sources are not checked, since they come back by either spine.
const ROUTER: &str = "net.ipv4.ip_forward=1\nnet.ipv4.fib_multipath_hash_policy=1\n\
                      net.ipv4.conf.all.rp_filter=0\nnet.ipv4.conf.default.rp_filter=0\n\
                      net.ipv4.conf.all.send_redirects=0\nnet.ipv4.conf.default.send_redirects=0\n\
                      net.ipv4.conf.default.proxy_arp=1\n";

/// The bridge of a leaf that is a switch.
const BRIDGE: &str = "segment";

/// The routers of a lab.
#[derive(Clone, Debug)]
pub(crate) struct Fabric {
    near_leaf: NearLeaf,
    /// The workers' leaf, and the aggregator's.
    leaves: [Namespace; 2],
    spines: Vec<Namespace>,
}

impl Fabric {
    pub(crate) fn of(spec: &LabSpec) -> Option<Fabric> {
        let named = |suffix: String| Namespace::named(format!("{}-{suffix}", spec.name));
        let leaves = [0, 1].map(|leaf| named(format!("leaf{leaf}")));
        let spines: Vec<_> = (0..spec.spines).map(|spine| named(format!("spine{spine}"))).collect();
        (!spines.is_empty()).then_some(Fabric { near_leaf: spec.near_leaf, leaves, spines })
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Namespace> {
        self.leaves.iter().chain(&self.spines)
    }

    pub(crate) fn leaf(&self, leaf: usize) -> &Namespace {
        &self.leaves[leaf]
    }

    pub(crate) fn spines(&self) -> &[Namespace] {
        &self.spines
    }

    /// The addresses of a leaf and a spine on the link between them.
    fn ends(leaf: usize, spine: usize) -> [Ipv4Addr; 2] {
        [1, 2].map(|end| Ipv4Addr::new(10, 78, (2 * spine + leaf) as u8, end))
    }

    /// The leaf that is a switch.
    fn switch(&self) -> Option<&Namespace> {
        (self.near_leaf != NearLeaf::Router).then_some(&self.leaves[0])
    }

    /// The spines' addresses as next hops of the workers.
    pub(crate) fn next_hops(&self) -> Vec<Ipv4Addr> {
        let spines = (0..self.spines.len()).filter(|_| self.switch().is_some());
        spines.map(|number| Fabric::ends(0, number)[1]).collect()
    }

    /// Joins every leaf to every spine.
    pub(crate) fn build(&self, link: Link) -> Result<()> {
        self.all().try_for_each(|router| router.sysctl(ROUTER))?;
        if let Some(switch) = self.switch() {
            switch.bridge_like_a_wire()?;
            let bridge = format!(
                "link add name {BRIDGE} mtu {} type bridge mcast_snooping 0 stp_state 0 forward_delay 0",
                link.mtu
            );
            switch.ip(&[bridge, format!("link set dev {BRIDGE} up")])?;
        }
        for (number, spine) in self.spines.iter().enumerate() {
            let up = format!("spine{number}");
            for (leaf, host) in self.leaves.iter().enumerate() {
                namespace::veth((host, &up), (spine, DOWNLINKS[leaf]), link)?;
                let [here, there] = Fabric::ends(leaf, number);
                spine.ip(&[format!("addr add {there}/24 dev {}", DOWNLINKS[leaf])])?;
                match self.switch().filter(|_| leaf == 0) {
                    None => host.ip(&[format!("addr add {here}/24 dev {up}")])?,
                    Some(switch) => self.plug_in_spine(switch, number)?,
                }
            }
        }
        Ok(())
    }

    /// Makes a spine a neighbour of the workers.
    fn plug_in_spine(&self, switch: &Namespace, number: usize) -> Result<()> {
        let (spine, port, downlink) = (&self.spines[number], format!("spine{number}"), DOWNLINKS[0]);
        switch.ip(&[format!("link set dev {port} master {BRIDGE}")])?;
        spine.sysctl(&format!("net.ipv4.neigh.{downlink}.proxy_delay=0\n"))
    }

    /// Connects a worker's port of the switch, and makes the spines its neighbours.
    pub(crate) fn plug_in_worker(&self, worker: &Namespace, interface: &str, port: &str) -> Result<()> {
        let Some(switch) = self.switch() else { return Ok(()) };
        switch.ip(&[format!("link set dev {port} master {BRIDGE}")])?;
        let route = |spine| format!("route add {spine}/32 dev {interface}");
        worker.ip(&self.next_hops().into_iter().map(route).collect::<Vec<_>>())
    }

    /// Routes to an address on this interface of a leaf.
    pub(crate) fn route(&self, leaf: usize, interface: &str, own: Ipv4Addr) -> Result<()> {
        let far = 1 - leaf;
        let is_router = |leaf| leaf == FAR_LEAF || self.switch().is_none();
        let hop = |spine| format!("nexthop via {}", Fabric::ends(far, spine)[1]);
        let hops: Vec<String> = (0..self.spines.len()).map(hop).collect();
        if is_router(leaf) {
            // A leaf's answers to ARP are not delayed.
            self.leaves[leaf].sysctl(&format!("net.ipv4.neigh.{interface}.proxy_delay=0\n"))?;
            self.leaves[leaf].ip(&[format!("route add {own}/32 dev {interface}")])?;
        }
        if is_router(far) {
            self.leaves[far].ip(&[format!("route add {own}/32 {}", hops.join(" "))])?;
        }
        for (number, spine) in self.spines.iter().enumerate() {
            let by = match is_router(leaf) {
                true => format!("via {}", Fabric::ends(leaf, number)[0]),
                false => format!("dev {}", DOWNLINKS[leaf]),
            };
            spine.ip(&[format!("route add {own}/32 {by}")])?;
        }
        Ok(())
    }
}
