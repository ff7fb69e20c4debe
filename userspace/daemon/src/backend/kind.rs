//! The setup of the XDP and the UDP backend.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sumac_control::neighbour::{self, ResolveError};
use sumac_hostprog::{AttachOptions, Attached, OpenError, Queues, attach};
use sumac_loader::log::{Follower, ProgramLog};

use super::Local;
use super::admission::AdmittedJobs;
use crate::config::Config;
use crate::datapath::{FrameIo, Peer, UdpFrameIo, XdpConfig, XdpFrameIo};

/// Reasons that the backend cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("cannot bind a UDP socket to {address}: {source}; is `address` one of this host's?")]
    Udp { address: Ipv4Addr, source: std::io::Error },
    #[error("cannot use XDP: {0}")]
    Xdp(String),
    #[error("cannot start the data path's thread: {0}")]
    Thread(std::io::Error),
}

/// The state of a backend besides its data path.
pub(super) enum BackendKind {
    Udp {
        ip: Ipv4Addr,
        port: u16,
    },
    Xdp {
        admitted: Box<Mutex<AdmittedJobs>>,
        local: Local,
        groups: Groups,
        /// Logs the program's messages until it is dropped.
        _messages: Option<Follower>,
    },
}

/// The memberships of the multicast groups of jobs' results, by job. The frames arrive through AF_XDP; the NIC's filter and
/// the switches require the membership.
#[derive(Debug, Default)]
pub(super) struct Groups(Mutex<HashMap<u16, UdpSocket>>);

impl Groups {
    fn lock(&self) -> MutexGuard<'_, HashMap<u16, UdpSocket>> {
        // Every statement leaves the map whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins a job's group on the interface with the address `ip`.
    pub(super) fn join(&self, job: u16, group: Ipv4Addr, ip: Ipv4Addr) -> std::io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.join_multicast_v4(&group, &ip)?;
        self.lock().insert(job, socket);
        Ok(())
    }

    pub(super) fn leave(&self, job: u16) {
        self.lock().remove(&job);
    }
}

impl BackendKind {
    /// Returns `xdp` or `udp`.
    pub(super) fn name(&self) -> &'static str {
        match self {
            BackendKind::Udp { .. } => "udp",
            BackendKind::Xdp { .. } => "xdp",
        }
    }

    /// Returns this host's address in the data plane.
    pub(super) fn local(&self) -> Local {
        match self {
            BackendKind::Udp { ip, port } => Local { ip: *ip, port: *port, mac: [0; 6] },
            BackendKind::Xdp { local, .. } => *local,
        }
    }

    /// Resolves the addresses of a peer. It may wait for ARP.
    pub(super) fn peer(&self, ip: Ipv4Addr, base_port: u16, checksum: bool) -> Result<Peer, ResolveError> {
        let mac = match self {
            BackendKind::Udp { .. } => [0; 6],
            // Packets to this host itself are not sent.
            BackendKind::Xdp { local, .. } if local.ip == ip => local.mac,
            BackendKind::Xdp { .. } => neighbour::resolve(ip)?.mac,
        };
        Ok(Peer { ip, base_port, mac, checksum })
    }
}

/// A queue or socket for each thread of the data path.
pub(super) type FrameIos = Vec<Box<dyn FrameIo>>;

pub(super) fn udp(config: &Config) -> Result<(BackendKind, FrameIos), BackendError> {
    let ip = config.address.unwrap_or(Ipv4Addr::UNSPECIFIED);
    let ios = UdpFrameIo::bind_shards(ip, config.shards)
        .map_err(|source| BackendError::Udp { address: ip, source })?;
    let port = ios.first().map_or(0, |io| io.local().port());
    tracing::info!(%ip, port, shards = config.shards, "packets move over UDP sockets");
    Ok((BackendKind::Udp { ip, port }, ios.into_iter().map(|io| Box::new(io) as Box<dyn FrameIo>).collect()))
}

pub(super) fn xdp(config: &Config) -> Result<(BackendKind, FrameIos), BackendError> {
    let failed = |error: &dyn std::fmt::Display| BackendError::Xdp(error.to_string());
    let route = match config.control() {
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
    let queues = config.queues.clone().map(|mut queues| {
        queues.sort_unstable();
        queues
    });
    let mut program = open_or_attach(config, queues.as_deref(), &ifname)?;
    let io_config = XdpConfig { queues, ..XdpConfig::new(ip) };
    let ios = XdpFrameIo::open(&io_config, &mut program).map_err(|error| failed(&error))?;
    // Removes the jobs of a dead daemon. Only after the sockets are open, which shows that no other daemon serves the
    // interface.
    program.clear_jobs().map_err(|error| failed(&error))?;
    let messages = match program.log().and_then(ProgramLog::follow) {
        Ok(messages) => Some(messages),
        Err(error) => {
            tracing::warn!(%error, "the host program's messages will be missing here; see `sumac events`");
            None
        }
    };
    let local = Local { ip, port: program.ports().0, mac: ios.first().map_or([0; 6], XdpFrameIo::mac) };
    tracing::info!(ifname, program = ?program.mode(), "packets move over AF_XDP");
    let admitted = Box::new(Mutex::new(AdmittedJobs::new(program)));
    let ios = ios.into_iter().map(|io| Box::new(io) as Box<dyn FrameIo>).collect();
    Ok((BackendKind::Xdp { admitted, local, groups: Groups::default(), _messages: messages }, ios))
}

/// Opens the program that is attached to the interface, or attaches it.
fn open_or_attach(config: &Config, queues: Option<&[u32]>, ifname: &str) -> Result<Attached, BackendError> {
    match Attached::open(ifname, &config.pin_root) {
        Ok(program) => {
            if program.requested_mode() != config.mode {
                tracing::warn!(
                    ifname,
                    attached = %program.requested_mode(),
                    configured = %config.mode,
                    "the program on the interface was attached in another mode, which is kept"
                );
            }
            if queues.is_some_and(|queues| queues != program.queues()) {
                tracing::warn!(
                    ifname,
                    attached = ?program.queues(),
                    configured = ?queues,
                    "the program on the interface was attached for other queues: rules in the NIC lead to those"
                );
            }
            let configured = (config.base_port, config.shards);
            if program.ports() != configured {
                tracing::warn!(
                    ifname,
                    attached = ?program.ports(),
                    ?configured,
                    "the program on the interface was attached for other ports (the first, and shards), which are kept: \
                     for those of the configuration stop the daemon and run `sumac detach` on the interface"
                );
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether this network namespace has joined a group on any interface.
    fn has_joined(group: Ipv4Addr) -> bool {
        let little_endian = format!("{:08X}", u32::from_le_bytes(group.octets()));
        std::fs::read_to_string("/proc/self/net/igmp").is_ok_and(|table| table.contains(&little_endian))
    }

    #[test]
    fn a_job_is_in_its_group_until_it_leaves() {
        // Unique to this process: the groups of a namespace are shared.
        let group = Ipv4Addr::from(0xef4d_0000 | std::process::id() & 0xffff);
        let groups = Groups::default();
        groups.join(1, group, Ipv4Addr::LOCALHOST).unwrap();
        assert!(has_joined(group));
        groups.leave(1);
        assert!(!has_joined(group));
        assert!(groups.join(1, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST).is_err(), "no group");
    }
}
