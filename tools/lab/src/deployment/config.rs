//! The daemons' configuration files.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Serialize;
use sumac_wire::DEFAULT_BASE_PORT;

use super::Deployment;
use super::options::{Backend, FIRST_VLAN};
use crate::namespace::Namespace;
use crate::spec::Topology;

/// The ports at which Prometheus scrapes, with `--metrics`.
const DAEMON_METRICS_PORT: u16 = 9402;
pub(super) const AGGREGATOR_METRICS_PORT: u16 = 9403;

/// A daemon's configuration, in the keys of `docs/reference/configuration.md`. TOML leaves out what is none.
#[derive(Serialize)]
pub(super) struct DaemonConfig {
    pub(super) socket: PathBuf,
    socket_mode: &'static str,
    backend: &'static str,
    address: Option<Ipv4Addr>,
    base_port: Option<u16>,
    interface: &'static str,
    pin_root: PathBuf,
    aggregator: String,
    secret_file: PathBuf,
    shards: u16,
    paths: Option<u16>,
    cpus: Option<Vec<usize>>,
    slots: Option<u32>,
    elements: Option<u16>,
    scale: Option<f32>,
    checksum: bool,
    buffers_mib: Option<u64>,
    metrics: Option<SocketAddr>,
    routes: Vec<Route>,
    pub(super) parameter_host: Option<ParameterHost>,
}

/// An explicit path.
#[derive(Default, Serialize)]
struct Route {
    via: Option<Ipv4Addr>,
    vlan: Option<u16>,
}

/// The table of a daemon that is a parameter host.
#[derive(Serialize)]
pub(super) struct ParameterHost {
    control: String,
    name: String,
    secret_file: PathBuf,
}

impl Deployment<'_> {
    /// The configuration of a daemon for the jobs of the control plane at this address, whose aggregator has
    /// this place.
    pub(super) fn config(&self, socket: PathBuf, control: Ipv4Addr, place: usize) -> DaemonConfig {
        DaemonConfig {
            socket,
            socket_mode: "0660",
            backend: if self.options.is_auto { "auto" } else { self.options.backend.of_workers() },
            address: self.own_address(),
            // Results may come by a multicast group, to the same port on all workers.
            base_port: (self.options.backend == Backend::Mixed).then_some(DEFAULT_BASE_PORT),
            interface: self.lab.worker_interface(),
            pin_root: self.lab.pin_root(),
            aggregator: format!("{control}:{}", self.control_port),
            secret_file: self.token_file(place),
            shards: self.lab.spec().queues,
            paths: self.options.paths,
            cpus: self.cpus(),
            // Of static jobs: those that dynamic ones share are the aggregator's.
            slots: self.options.slots,
            elements: self.options.chunk,
            scale: self.options.scale,
            checksum: self.options.checksum,
            buffers_mib: self.options.buffers_mib,
            // Over loopback all daemons have one address.
            metrics: (self.options.metrics && self.own_address().is_none())
                .then(|| (Ipv4Addr::UNSPECIFIED, DAEMON_METRICS_PORT).into()),
            routes: self.routes(),
            parameter_host: None,
        }
    }

    /// The spines that are next hops, or the VLANs.
    fn routes(&self) -> Vec<Route> {
        let hops = self.lab.next_hops().into_iter().map(|via| Route { via: Some(via), ..Route::default() });
        let vlans = (FIRST_VLAN..).take(self.options.vlans.into());
        hops.chain(vlans.map(|vlan| Route { vlan: Some(vlan), ..Route::default() })).collect()
    }

    /// The table of a parameter host, which registers with the root's control plane: a worker's own may be
    /// its rack's.
    pub(super) fn parameter_host_config(&self, host: &Namespace, root: Ipv4Addr) -> ParameterHost {
        ParameterHost {
            control: format!("{root}:{}", self.control_port),
            name: host.name().to_owned(),
            secret_file: self.rack_token_file(0),
        }
    }

    /// The address that all programs share over loopback. In a namespace a daemon finds its own.
    pub(super) fn own_address(&self) -> Option<Ipv4Addr> {
        (self.lab.spec().topology == Topology::Loopback).then_some(Ipv4Addr::LOCALHOST)
    }

    /// The CPU of each shard's thread: the one that works on the queue of this number. A single one may run
    /// anywhere.
    fn cpus(&self) -> Option<Vec<usize>> {
        let queues = usize::from(self.lab.spec().queues);
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        (queues > 1).then(|| (0..queues).map(|queue| queue % cpus).collect())
    }
}
