//! The setup of the XDP and the UDP backend.

use std::net::{Ipv4Addr, SocketAddr};

use sumac_control::neighbour;
use sumac_hostprog::{AttachOptions, Attached, OpenError, Queues, attach};
use sumac_wire::DEFAULT_PATHS;

use super::Local;
use super::admission::AdmittedJobs;
use crate::config::Config;
use crate::datapath::{FrameIo, Route, UdpFrameIo, XdpConfig, XdpFrameIo};

#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("cannot bind a UDP socket to {address}: {source}; is `address` one of this host's?")]
    Udp { address: Ipv4Addr, source: std::io::Error },
    #[error("cannot use XDP: {0}")]
    Xdp(String),
    #[error("cannot start the data path's thread: {0}")]
    Thread(std::io::Error),
}

/// A backend that is set up: this host's address, the program (XDP), and a queue or socket for each thread of the data path.
pub(crate) type Setup = (Local, Option<AdmittedJobs>, Vec<Box<dyn FrameIo>>);

pub(super) fn udp(config: &Config) -> Result<Setup, BackendError> {
    let ip = config.address.unwrap_or(Ipv4Addr::UNSPECIFIED);
    let with_paths = |io: UdpFrameIo| io.with_paths(config.paths.unwrap_or(1));
    let ios = UdpFrameIo::bind_shards(ip, config.shards)
        .and_then(|ios| ios.into_iter().map(with_paths).collect::<std::io::Result<Vec<_>>>())
        .map_err(|source| BackendError::Udp { address: ip, source })?;
    let port = ios.first().map_or(0, |io| io.local().port());
    tracing::info!(%ip, port, shards = config.shards, "packets move over UDP sockets");
    let ios = ios.into_iter().map(|io| Box::new(io) as Box<dyn FrameIo>).collect();
    Ok((Local { ip, port, mac: [0; 6] }, None, ios))
}

/// `control`: the control plane, whose route is the data plane's unless the configuration says more.
pub(super) fn xdp(config: &Config, control: Option<SocketAddr>) -> Result<Setup, BackendError> {
    let failed = |error: &dyn std::fmt::Display| BackendError::Xdp(error.to_string());
    let route = match control {
        Some(SocketAddr::V4(endpoint)) => neighbour::resolve(*endpoint.ip()).map_err(|error| failed(&error)),
        _ => Err(BackendError::Xdp(
            "the configuration names no control plane (`aggregator`) with an IPv4 address".into(),
        )),
    };
    let (ifname, ip) = match (&config.interface, config.address) {
        (Some(ifname), Some(ip)) => (ifname.clone(), ip),
        (ifname, ip) => {
            let route = route?;
            (ifname.clone().unwrap_or(route.ifname), ip.unwrap_or(route.src_ip))
        }
    };
    // The NIC's flow rules steer the first shard to the first queue.
    let mut queues = config.queues.clone();
    queues.iter_mut().for_each(|queues| queues.sort_unstable());
    let mut program = open_or_attach(config, queues.as_deref(), &ifname)?;
    program.claim().map_err(|error| failed(&error))?;
    let paths = config.paths.unwrap_or(DEFAULT_PATHS);
    // Next hops are resolved at the beginning of each job.
    let routes = config.routes.iter().map(|route| Route { mac: None, vlan: route.vlan }).collect();
    let io_config = XdpConfig { queues, paths, routes, ..XdpConfig::new(ip) };
    let ios = XdpFrameIo::open(&io_config, &mut program).map_err(|error| failed(&error))?;
    // Removes the jobs of a dead daemon: no other has claimed the program.
    program.clear_jobs().map_err(|error| failed(&error))?;
    // Programs are opened by number with CAP_SYS_ADMIN, which the daemon does not keep.
    let log = match program.log() {
        Ok(log) => Some(log),
        Err(error) => {
            tracing::warn!(%error, "the host program's messages will be missing here; see `sumac events`");
            None
        }
    };
    let local = Local { ip, port: program.ports().0, mac: ios.first().map_or([0; 6], XdpFrameIo::mac) };
    tracing::info!(ifname, program = ?program.mode(), "packets move over AF_XDP");
    let ios = ios.into_iter().map(|io| Box::new(io) as Box<dyn FrameIo>).collect();
    Ok((local, Some(AdmittedJobs::new(program, log)), ios))
}

/// Opens the program that is attached to the interface, or attaches it.
fn open_or_attach(config: &Config, queues: Option<&[u32]>, ifname: &str) -> Result<Attached, BackendError> {
    match Attached::open(ifname, &config.pin_root) {
        Ok(program) => {
            let differences = [
                (
                    "in another mode, which is kept",
                    program.requested_mode().to_string(),
                    config.mode.to_string(),
                ),
                (
                    "for other queues: rules in the NIC lead to those",
                    format!("{:?}", program.queues()),
                    format!("{:?}", queues.unwrap_or(&program.queues())),
                ),
                (
                    "for other ports (the first, and shards), which are kept: for those of the configuration stop the \
                     daemon and run `sumac detach` on the interface",
                    format!("{:?}", program.ports()),
                    format!("{:?}", (config.base_port, config.shards)),
                ),
            ];
            for (difference, attached, configured) in differences {
                if attached != configured {
                    tracing::warn!(ifname, attached, configured, "the program was attached {difference}");
                }
            }
            return Ok(program);
        }
        Err(OpenError::NotAttached { .. } | OpenError::Detached { .. }) => {}
        Err(error) => return Err(BackendError::Xdp(error.to_string())),
    }
    let options = AttachOptions {
        mode: config.mode,
        steer: config.steer,
        queues: queues.map_or(Queues::All, |queues| Queues::Only(queues.to_vec())),
        base_port: config.base_port,
        shards: config.shards,
        pin_root: config.pin_root.clone(),
        ..AttachOptions::new(ifname)
    };
    attach(&options).map_err(|error| BackendError::Xdp(error.to_string()))
}
