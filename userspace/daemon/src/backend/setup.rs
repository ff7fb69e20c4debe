//! The setup of the XDP and the UDP backend.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use sumac_datapath::{FrameIo, Route, UdpFrameIo, XdpConfig, XdpFrameIo};
use sumac_hostprog::{AttachError, AttachOptions, Attached, HostMode, OpenError, Queues, attach};
use sumac_loader::Interface;
use sumac_netutil::neighbour::{self, Neighbour, ResolveError};
use sumac_wire::DEFAULT_PATHS;

use super::admission::AdmittedJobs;
use super::arrival;
use super::local::Local;
use crate::config::{BackendChoice, Config};
use crate::path;

#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error(
        "cannot bind a UDP socket to {address}: {source}; is `address` one of this host's, and `base_port` \
        free?"
    )]
    Udp { address: Ipv4Addr, source: std::io::Error },
    #[error("cannot use XDP: {0}")]
    Xdp(String),
    /// It may come while the daemon runs: an interface, an address, a route, a neighbour, the end of another
    /// daemon.
    #[error("cannot use XDP yet: {0}")]
    NotYet(String),
    #[error("cannot start the data path's thread: {0}")]
    Thread(std::io::Error),
}

/// The jobs that the host program has when a daemon opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FormerJobs {
    Removed,
    /// They go on in this daemon.
    Kept,
}

/// A backend that is set up: this host's address, the program (XDP), and a queue or socket for each thread of
/// the data path.
pub(crate) type Setup = (Local, Option<AdmittedJobs>, Vec<Box<dyn FrameIo>>);

pub(super) fn udp(config: &Config) -> Result<Setup, BackendError> {
    udp_at(config, config.address.unwrap_or(Ipv4Addr::UNSPECIFIED), config.base_port.unwrap_or(0))
}

/// As [`udp`] where XDP is missing. An address that this host does not have yet is none. The ports are any
/// free ones: those of the configuration are the host program's, which may come.
pub(super) fn udp_instead(config: &Config) -> Result<Setup, BackendError> {
    let address = config.address.filter(|ip| path::interface_of(*ip).is_some());
    udp_at(config, address.unwrap_or(Ipv4Addr::UNSPECIFIED), 0)
}

fn udp_at(config: &Config, ip: Ipv4Addr, first: u16) -> Result<Setup, BackendError> {
    over_udp(config, ip, UdpFrameIo::bind_shards(ip, first, config.shards, config.paths.unwrap_or(1)))
}

/// Continues with the sockets of another daemon, of each shard those of its paths.
pub(super) fn udp_of(config: &Config, sockets: Vec<Vec<OwnedFd>>) -> Result<Setup, BackendError> {
    let ip = config.address.unwrap_or(Ipv4Addr::UNSPECIFIED);
    over_udp(config, ip, UdpFrameIo::from_sockets(sockets))
}

/// Opens the UDP sockets that jobs may use in place of AF_XDP with `auto`: at the ports of the program, which
/// passes to the kernel what is for them. Without them AF_XDP is used.
pub(super) fn udp_beside(config: &Config, (local, admitted, ios): &Setup) -> Vec<UdpFrameIo> {
    let Some(admitted) = admitted.as_ref().filter(|_| config.backend == BackendChoice::Auto) else {
        return Vec::new();
    };
    let (first, shards) = admitted.program.ports();
    let opened = if usize::from(shards) > ios.len() {
        // A lane's thread has one socket.
        Err(std::io::Error::other("fewer queues than shards"))
    } else {
        UdpFrameIo::bind_shards(local.ip, first, shards, config.paths.unwrap_or(1))
    };
    match opened {
        Ok(sockets) => {
            tracing::info!(ip = %local.ip, first, shards, "UDP sockets beside AF_XDP: jobs measure both");
            sockets
        }
        Err(error) => {
            tracing::warn!(ip = %local.ip, first, shards, %error,
                "no UDP sockets beside AF_XDP: jobs do not measure which is faster");
            Vec::new()
        }
    }
}

fn over_udp(
    config: &Config,
    ip: Ipv4Addr,
    ios: std::io::Result<Vec<UdpFrameIo>>,
) -> Result<Setup, BackendError> {
    let ios = ios.map_err(|source| BackendError::Udp { address: ip, source })?;
    let port = ios.first().map_or(0, |io| io.local().port());
    tracing::info!(%ip, port, shards = config.shards, "packets move over UDP sockets");
    let ios = ios.into_iter().map(|io| Box::new(io) as Box<dyn FrameIo>).collect();
    Ok((Local { ip, port, mac: [0; 6] }, None, ios))
}

/// Returns the interface and the address of the data plane, which the host has. `control`: the control plane,
/// whose route they are of unless the configuration states more. It may wait for ARP.
pub(super) fn data_path(config: &Config, control: &[SocketAddr]) -> Result<(String, Ipv4Addr), BackendError> {
    let (ifname, ip) = match (&config.interface, config.address) {
        (Some(ifname), Some(ip)) => (ifname.clone(), ip),
        (ifname, ip) => {
            let route = route_to(control)?;
            (ifname.clone().unwrap_or(route.ifname), ip.unwrap_or(route.src_ip))
        }
    };
    match Interface::by_name(&ifname) {
        Ok(interface) if !interface.up => {
            return Err(BackendError::NotYet(format!(
                "interface {ifname} is down; `ip link set {ifname} up`"
            )));
        }
        // Also where an earlier release has attached its program to one.
        Ok(interface) if interface.is_bond() => {
            return Err(BackendError::Xdp(AttachError::Bond { interface: ifname }.to_string()));
        }
        Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => {
            return Err(BackendError::NotYet(format!("this host has no interface {ifname}")));
        }
        // Whoever opens the interface reports another error.
        Ok(_) | Err(_) => {}
    }
    if path::interface_of(ip).is_none() {
        return Err(BackendError::NotYet(format!("{ip} is no address of this host; see `ip address`")));
    }
    Ok((ifname, ip))
}

/// Returns the way to the first address that has one.
fn route_to(control: &[SocketAddr]) -> Result<Neighbour, BackendError> {
    let mut first = None;
    for address in control {
        let SocketAddr::V4(address) = address else { continue };
        match neighbour::resolve(*address.ip()) {
            Ok(route) => return Ok(route),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(match first {
        Some(error @ ResolveError::Own { .. }) => BackendError::Xdp(error.to_string()),
        Some(error) => BackendError::NotYet(error.to_string()),
        None => BackendError::Xdp("the configuration names no control plane (`aggregator`)".into()),
    })
}

/// `control`: as for [`data_path`].
pub(super) fn xdp(
    config: &Config,
    control: &[SocketAddr],
    former: FormerJobs,
) -> Result<Setup, BackendError> {
    let failed = |error: &dyn std::fmt::Display| BackendError::Xdp(error.to_string());
    let (ifname, ip) = data_path(config, control)?;
    let queues = queues(config);
    let mut program = open_or_attach(config, queues.as_deref(), &ifname)?;
    program.claim().map_err(|error| BackendError::NotYet(error.to_string()))?;
    let paths = config.paths.unwrap_or(DEFAULT_PATHS);
    // Next hops are resolved at the beginning of each job.
    let routes = config.routes.iter().map(|route| Route { mac: None, vlan: route.vlan }).collect();
    let mut io_config = XdpConfig { queues, paths, routes, ..XdpConfig::new(ip) };
    let ios = arrival::open_and_verify(
        (program.requested_mode() == HostMode::ZeroCopy).then_some(BackendError::Xdp as fn(String) -> _),
        |copy_reason| {
            io_config.copy_reason = copy_reason;
            XdpFrameIo::open(&io_config, &mut program).map_err(|error| failed(&error))
        },
        |ios| ios.iter().any(XdpFrameIo::is_zero_copy),
        || arrival::answers(&ifname, control),
    )?;
    if former == FormerJobs::Removed {
        // Those of a dead daemon: no other has claimed the program.
        program.clear_jobs().map_err(|error| failed(&error))?;
    }
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
                    "for other ports (the first, and shards), which are kept: for those of the configuration \
                    stop the daemon and run `sumac detach` on the interface",
                    format!("{:?}", program.ports()),
                    format!("{:?}", (config.program_port(), config.shards)),
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
    attach_configured(config, ifname)
}

/// Attaches the program to the interface of the data plane, in place of a former one. `control`: as for
/// [`data_path`].
pub(crate) fn attach_program(config: &Config, control: &[SocketAddr]) -> Result<Attached, BackendError> {
    attach_configured(config, &data_path(config, control)?.0)
}

fn attach_configured(config: &Config, ifname: &str) -> Result<Attached, BackendError> {
    let options = AttachOptions {
        mode: config.mode,
        steer: config.steer,
        queues: queues(config).map_or(Queues::All, Queues::Only),
        base_port: config.program_port(),
        shards: config.shards,
        pin_root: config.pin_root.clone(),
        ..AttachOptions::new(ifname)
    };
    attach(&options).map_err(|error| BackendError::Xdp(error.to_string()))
}

/// The configured queues in order: the NIC's flow rules steer the first shard to the first queue.
fn queues(config: &Config) -> Option<Vec<u32>> {
    let mut queues = config.queues.clone();
    queues.iter_mut().for_each(|queues| queues.sort_unstable());
    queues
}
