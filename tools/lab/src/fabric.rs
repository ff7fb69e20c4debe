//! A leaf-spine fabric between the workers and the aggregator: routers that choose the spine by a hash of addresses and ports
//! (ECMP).
//!
//! Hosts know nothing of it. Each has the aggregator in its subnet, and the leaf answers for it (proxy ARP).

use std::net::Ipv4Addr;

use anyhow::Result;

use crate::namespace::{self, Link, Namespace};
use crate::spec::LabSpec;

/// The aggregator's leaf.
pub(crate) const FAR_LEAF: usize = 1;

/// The leaves' interfaces at a spine, the workers' first.
const DOWNLINKS: [&str; 2] = ["leaf0", "leaf1"];

/// Sources are not checked, since they come back by either spine.
const ROUTER: &str = "net.ipv4.ip_forward=1\nnet.ipv4.fib_multipath_hash_policy=1\n\
                      net.ipv4.conf.all.rp_filter=0\nnet.ipv4.conf.default.rp_filter=0\n\
                      net.ipv4.conf.all.send_redirects=0\nnet.ipv4.conf.default.send_redirects=0\n\
                      net.ipv4.conf.default.proxy_arp=1\n";

/// The routers of a lab.
#[derive(Clone, Debug)]
pub(crate) struct Fabric {
    /// The workers' leaf, and the aggregator's.
    leaves: [Namespace; 2],
    spines: Vec<Namespace>,
}

impl Fabric {
    pub(crate) fn of(spec: &LabSpec) -> Option<Fabric> {
        let named = |suffix: String| Namespace::named(format!("{}-{suffix}", spec.name));
        let leaves = [0, 1].map(|leaf| named(format!("leaf{leaf}")));
        let spines: Vec<_> = (0..spec.spines).map(|spine| named(format!("spine{spine}"))).collect();
        (!spines.is_empty()).then_some(Fabric { leaves, spines })
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

    /// Joins every leaf to every spine.
    pub(crate) fn build(&self, link: Link) -> Result<()> {
        self.all().try_for_each(|router| router.sysctl(ROUTER))?;
        for (number, spine) in self.spines.iter().enumerate() {
            let up = format!("spine{number}");
            for (leaf, host) in self.leaves.iter().enumerate() {
                namespace::veth((host, &up), (spine, DOWNLINKS[leaf]), link)?;
                let [here, there] = Fabric::ends(leaf, number);
                host.ip(&[format!("addr add {here}/24 dev {up}")])?;
                spine.ip(&[format!("addr add {there}/24 dev {}", DOWNLINKS[leaf])])?;
            }
        }
        Ok(())
    }

    /// Routes to an address on this interface of a leaf.
    pub(crate) fn route(&self, leaf: usize, interface: &str, own: Ipv4Addr) -> Result<()> {
        let far = 1 - leaf;
        let hop = |spine| format!("nexthop via {}", Fabric::ends(far, spine)[1]);
        let hops: Vec<String> = (0..self.spines.len()).map(hop).collect();
        // A leaf's answers to ARP are not delayed.
        self.leaves[leaf].sysctl(&format!("net.ipv4.neigh.{interface}.proxy_delay=0\n"))?;
        self.leaves[leaf].ip(&[format!("route add {own}/32 dev {interface}")])?;
        self.leaves[far].ip(&[format!("route add {own}/32 {}", hops.join(" "))])?;
        for (number, spine) in self.spines.iter().enumerate() {
            spine.ip(&[format!("route add {own}/32 via {}", Fabric::ends(leaf, number)[0])])?;
        }
        Ok(())
    }
}
