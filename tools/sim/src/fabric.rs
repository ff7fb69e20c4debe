//! A leaf-spine network: racks of hosts below leaves, and links from each leaf to each spine.

use crate::{address::NodeId, link::LinkSpec, network::LinkId, world::World};

#[derive(Clone, Copy, Debug)]
pub struct FabricSpec {
    pub racks: usize,
    pub hosts_per_rack: usize,
    pub spines: usize,
    /// Parallel links between a leaf and a spine.
    pub links_per_spine: usize,
    /// From a host to its leaf.
    pub host: LinkSpec,
    /// From a switch's port.
    pub port: LinkSpec,
}

/// The nodes and links of a leaf-spine network.
#[derive(Clone, Debug, Default)]
pub struct Fabric {
    /// Rack by rack.
    pub hosts: Vec<NodeId>,
    /// By host, the direction to its leaf. The one to the host is the next.
    pub cables: Vec<LinkId>,
    /// Directions from leaves to spines. Those back are the next ones.
    pub uplinks: Vec<LinkId>,
}

impl FabricSpec {
    /// Adds the network to a world.
    pub fn build(&self, world: &mut World) -> Fabric {
        let mut fabric = Fabric::default();
        let spines: Vec<NodeId> = (0..self.spines).map(|_| world.add_node()).collect();
        for _ in 0..self.racks {
            let leaf = world.add_node();
            for spine in &spines {
                for _ in 0..self.links_per_spine {
                    fabric.uplinks.push(world.network.connect(leaf, *spine, self.port, self.port));
                }
            }
            for _ in 0..self.hosts_per_rack {
                let host = world.add_node();
                fabric.hosts.push(host);
                fabric.cables.push(world.network.connect(host, leaf, self.host, self.port));
            }
        }
        fabric
    }
}
