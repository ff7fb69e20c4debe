//! How this host's packets move: the backend that was chosen, and what a job needs of it.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};
use sumac_api::{Code, Failure};
use sumac_control::{Assignment, JoinSpec, neighbour};
use sumac_hostprog::{
    AttachOptions, Attached, OpenError, Queues, attach,
    log::{Follower, follow},
};
use sumac_transport::{JobError, JobParams};
use sumac_wire::header::{ELEMENT_LEN, HEADER_LEN};
use sumac_wire::tables::{HostJobEntry, job_flag};
use sumac_wire::{CLASSES, MAX_ELEMENTS};

use crate::config::{Backend, Config};
use crate::datapath::{Datapath, DatapathStats, JobPlan, Peer, Port, Sink, UdpPort, XdpConfig, XdpPort};
use crate::stream::Errand;

/// Why no backend could be had.
#[derive(Debug, thiserror::Error)]
pub enum CarrierError {
    /// The UDP socket.
    #[error("cannot bind a UDP socket to {address}: {source}; is `address` one of this host's?")]
    Udp {
        /// The address.
        address: Ipv4Addr,
        /// What the system said.
        source: std::io::Error,
    },
    /// AF_XDP.
    #[error("cannot use XDP: {0}")]
    Xdp(String),
    /// The data path's thread.
    #[error("cannot start the data path's thread: {0}")]
    Thread(std::io::Error),
}

/// This host's end of a job's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) ip: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) mac: [u8; 6],
}

/// What the data path and the host program count.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) jobs: Vec<MeasuredJob>,
    pub(crate) ports: Vec<Value>,
    pub(crate) threads: Vec<Value>,
    pub(crate) frames: Value,
    pub(crate) host_program: Map<String, Value>,
}

/// A job as the data path knows it.
#[derive(Debug)]
pub(crate) struct MeasuredJob {
    pub(crate) job: u16,
    pub(crate) state: String,
    pub(crate) error: String,
    pub(crate) engine: Value,
    pub(crate) lanes: Vec<Value>,
}

/// What is particular to the backend.
enum Way {
    Udp {
        ip: Ipv4Addr,
        port: u16,
    },
    Xdp {
        program: Box<Mutex<Attached>>,
        local: Local,
        groups: Groups,
        /// Held for its drop: it hands the program's messages to the log.
        _messages: Option<Follower>,
    },
}

/// The memberships of multicast groups that jobs' results are sent to, by job. The frames come through AF_XDP; it is
/// the NIC's filter and the switches on the way that would not let them through to a host that has not joined.
#[derive(Debug, Default)]
struct Groups(Mutex<HashMap<u16, UdpSocket>>);

impl Groups {
    fn lock(&self) -> MutexGuard<'_, HashMap<u16, UdpSocket>> {
        // Every statement leaves the map whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins a job's group on the interface with the address `ip`, until [`Groups::leave`].
    fn join(&self, job: u16, group: Ipv4Addr, ip: Ipv4Addr) -> std::io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.join_multicast_v4(&group, &ip)?;
        self.lock().insert(job, socket);
        Ok(())
    }

    fn leave(&self, job: u16) {
        self.lock().remove(&job);
    }
}

/// The chosen backend with its data path.
pub(crate) struct Carrier {
    way: Way,
    datapath: Datapath,
    fallback: String,
}

impl std::fmt::Debug for Carrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carrier").field("backend", &self.backend()).finish_non_exhaustive()
    }
}

impl Carrier {
    /// Sets up the configured backend; `auto` falls back to UDP, and says so.
    pub(crate) fn start(config: &Config, sink: Sink) -> Result<Carrier, CarrierError> {
        let (way, ports, fallback) = match config.backend {
            Backend::Udp => udp(config).map(|(way, ports)| (way, ports, String::new()))?,
            Backend::Xdp => xdp(config).map(|(way, ports)| (way, ports, String::new()))?,
            Backend::Auto => match xdp(config) {
                Ok((way, ports)) => (way, ports, String::new()),
                Err(error) => {
                    tracing::warn!(%error, "falling back to UDP; `sumac doctor` says what is missing");
                    udp(config).map(|(way, ports)| (way, ports, error.to_string()))?
                }
            },
        };
        let datapath =
            Datapath::start("sumac-datapath", ports, &config.cpus, sink).map_err(CarrierError::Thread)?;
        Ok(Carrier { way, datapath, fallback })
    }

    /// `xdp` or `udp`.
    pub(crate) fn backend(&self) -> &'static str {
        match self.way {
            Way::Udp { .. } => "udp",
            Way::Xdp { .. } => "xdp",
        }
    }

    /// Why the backend is not the one that was asked for; empty when it is.
    pub(crate) fn fallback(&self) -> &str {
        &self.fallback
    }

    /// This host's end of the path to an aggregator.
    pub(crate) fn local(&self) -> Local {
        match &self.way {
            Way::Udp { ip, port } => Local { ip: *ip, port: *port, mac: [0; 6] },
            Way::Xdp { local, .. } => *local,
        }
    }

    /// Lets a job's results in, and starts its handshake. May wait for ARP.
    pub(crate) fn add_job(&self, assigned: &Assignment, spec: &JoinSpec) -> Result<(), Failure> {
        let mac = match &self.way {
            Way::Udp { .. } => {
                match assigned.result_group {
                    None => [0; 6],
                    Some(group) => {
                        return Err(Failure::new(
                        Code::Unsupported,
                        format!("the aggregator sends results to the group {group}, which UDP sockets do not join"),
                    )
                    .hint("use the XDP backend, or attach the aggregator without a result group"));
                    }
                }
            }
            Way::Xdp { program, local, groups, .. } => {
                lock(program)
                    .check_current()
                    .map_err(|error| Failure::new(Code::Datapath, error.to_string()))?;
                let neighbour = neighbour::resolve(assigned.aggregator_ip)
                    .map_err(|error| Failure::new(Code::Unreachable, format!("the data plane: {error}")))?;
                if let Some(group) = assigned.result_group {
                    groups.join(assigned.job, group, local.ip).map_err(|error| {
                        Failure::new(
                            Code::Datapath,
                            format!(
                                "cannot join {group}, which results are sent to, on {}: {error}",
                                local.ip
                            ),
                        )
                        .hint("give `address` in the daemon's configuration an address of the interface")
                    })?;
                }
                let entry = HostJobEntry {
                    token: assigned.token,
                    aggregator_ip: u32::from(assigned.aggregator_ip),
                    host_ips: [0; sumac_wire::MAX_HOSTS],
                    epoch: assigned.epoch,
                    elements: assigned.elements,
                    world: spec.world,
                    flags: if spec.checksum { job_flag::CHECKSUM } else { 0 },
                    reserved: 0,
                };
                lock(program)
                    .add_job(assigned.job, entry)
                    .map_err(|error| Failure::new(Code::Datapath, error.to_string()))?;
                neighbour.mac
            }
        };
        let peer =
            Peer { ip: assigned.aggregator_ip, base_port: assigned.base_port, mac, checksum: spec.checksum };
        let lanes = (0..CLASSES * assigned.shards).map(|lane| params(assigned, spec, lane)).collect();
        let plan = JobPlan { lanes, peer };
        self.datapath.add_job(plan).map_err(|error| Failure::new(Code::Datapath, error.to_string()))
    }

    /// Starts the lanes of a job whose path has been measured, each with so many slots.
    pub(crate) fn start_job(&self, job: u16, slots: u32) -> Result<(), Failure> {
        let started = self.datapath.start_job(job, slots);
        started.map_err(|error| Failure::new(Code::Datapath, error.to_string()))
    }

    /// The most 32-bit words that a packet can have.
    pub(crate) fn most_words(&self) -> u16 {
        let words = self.datapath.capacity().saturating_sub(HEADER_LEN) / ELEMENT_LEN;
        u16::try_from(words.min(MAX_ELEMENTS)).unwrap_or(u16::MAX)
    }

    /// The most shards that a job can have.
    pub(crate) fn shards(&self) -> u16 {
        self.datapath.shards()
    }

    /// Hands a part of an operation to its lane; its end comes as an event with its number.
    pub(crate) fn submit(&self, errand: Errand) -> Result<(), Failure> {
        let Errand { wire_job, lane, number, operation } = errand;
        self.datapath
            .submit(wire_job, lane, u64::from(number), operation)
            .map_err(|_| Failure::new(Code::ShuttingDown, "the data path has stopped"))
    }

    /// Ends a job's operations with this error.
    pub(crate) fn fail_job(&self, job: u16, error: JobError) {
        self.datapath.fail_job(job, error);
    }

    /// Lets no more of a job's results in. All its events have been delivered when this returns.
    pub(crate) fn remove_job(&self, job: u16) -> Result<(), Failure> {
        self.datapath.remove_job(job);
        match &self.way {
            Way::Udp { .. } => Ok(()),
            Way::Xdp { program, groups, .. } => {
                groups.leave(job);
                lock(program).remove_job(job).map_err(|error| Failure::new(Code::Datapath, error.to_string()))
            }
        }
    }

    /// All counters.
    pub(crate) fn stats(&self) -> Result<Measured, Failure> {
        let stopped = || Failure::new(Code::ShuttingDown, "the data path has stopped");
        let stats = self.datapath.stats().ok_or_else(stopped)?;
        let host_program = self.host_program()?;
        measured(&stats, host_program)
            .map_err(|error| Failure::new(Code::Internal, format!("the counters have no JSON form: {error}")))
    }

    /// How many results of a job have arrived.
    pub(crate) fn results(&self, job: u16) -> Option<u64> {
        let stats = self.datapath.stats()?;
        let lanes = stats.iter().flat_map(|thread| &thread.jobs).filter(|lane| lane.job == job);
        lanes.map(|lane| lane.engine.results).reduce(|sum, more| sum + more)
    }

    /// The host program's counters by reason; none over UDP.
    fn host_program(&self) -> Result<Map<String, Value>, Failure> {
        let Way::Xdp { program, .. } = &self.way else { return Ok(Map::new()) };
        let counters =
            lock(program).counters().map_err(|error| Failure::new(Code::Datapath, error.to_string()))?;
        Ok(counters.into_iter().map(|(reason, count)| (reason.name().to_owned(), count.into())).collect())
    }

    /// Ends the data path's thread, and looks whether every frame came back.
    pub(crate) fn stop(&self) {
        for thread in self.datapath.shutdown().unwrap_or_default() {
            let (name, sent, received) = (thread.name.as_str(), thread.port.sent, thread.port.received);
            if thread.frames_are_conserved() {
                tracing::info!(backend = self.backend(), name, sent, received, "data path stopped");
            } else {
                tracing::error!(name, frames = ?thread.port.frames, sent, received, "frames are missing; please report it");
            }
        }
    }
}

/// A lane of a job. The first measures the path, for all of them.
fn params(assigned: &Assignment, spec: &JoinSpec, lane: u16) -> JobParams {
    JobParams {
        job: assigned.job,
        epoch: assigned.epoch,
        token: assigned.token,
        rank: spec.rank,
        world: spec.world,
        rack_rank: assigned.rack_rank,
        rack_world: assigned.rack_world,
        lane,
        shards: assigned.shards,
        slots: assigned.lane_slots,
        elements: assigned.elements,
        wire: spec.wire,
        scaling: spec.scaling,
        not_finite: spec.not_finite,
        measure: assigned.tune && lane == 0,
        dynamic: None,
    }
}

/// The data path's report in the API's form.
fn measured(
    threads: &[DatapathStats],
    host_program: Map<String, Value>,
) -> Result<Measured, serde_json::Error> {
    let jobs = DatapathStats::merge_jobs(threads).into_iter().map(|(job, lanes)| {
        Ok(MeasuredJob {
            job: job.job,
            state: job.state.to_owned(),
            error: job.error.unwrap_or_default(),
            engine: serde_json::to_value(&job.engine)?,
            lanes: lanes.into_iter().map(serde_json::to_value).collect::<Result<_, _>>()?,
        })
    });
    let reports = threads.iter().map(|thread| {
        let mut report = serde_json::to_value(thread)?;
        if let Value::Object(report) = &mut report {
            // They have places of their own.
            report.retain(|key, _| key != "jobs" && key != "port");
        }
        Ok(report)
    });
    Ok(Measured {
        jobs: jobs.collect::<Result<_, serde_json::Error>>()?,
        ports: threads.iter().map(|thread| serde_json::to_value(&thread.port)).collect::<Result<_, _>>()?,
        threads: reports.collect::<Result<_, serde_json::Error>>()?,
        frames: serde_json::to_value(DatapathStats::frames(threads))?,
        host_program,
    })
}

fn lock(program: &Mutex<Attached>) -> MutexGuard<'_, Attached> {
    // What is behind it are maps in the kernel, which a panic leaves as they were.
    program.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port for each thread of the data path.
type DataPorts = Vec<Box<dyn Port>>;

fn udp(config: &Config) -> Result<(Way, DataPorts), CarrierError> {
    let ip = config.address.unwrap_or(Ipv4Addr::UNSPECIFIED);
    let ports = UdpPort::bind_shards(ip, config.shards)
        .map_err(|source| CarrierError::Udp { address: ip, source })?;
    let port = ports.first().map_or(0, |port| port.local().port());
    tracing::info!(%ip, port, shards = config.shards, "packets move over UDP sockets");
    Ok((Way::Udp { ip, port }, ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect()))
}

fn xdp(config: &Config) -> Result<(Way, DataPorts), CarrierError> {
    let failed = |error: &dyn std::fmt::Display| CarrierError::Xdp(error.to_string());
    let route = match config.aggregator {
        Some(SocketAddr::V4(endpoint)) => neighbour::resolve(*endpoint.ip()).map_err(|error| failed(&error)),
        _ => Err(CarrierError::Xdp("the configuration names no `aggregator` with an IPv4 address".into())),
    };
    let (ifname, ip) = match (&config.interface, config.address) {
        (Some(ifname), Some(ip)) => (ifname.clone(), ip),
        (ifname, ip) => {
            let route = route?;
            (ifname.clone().unwrap_or(route.ifname), ip.unwrap_or(route.src_ip))
        }
    };
    // As the rules of a NIC have them: the first shard on the first queue.
    let queues = config.queues.clone().map(|mut queues| {
        queues.sort_unstable();
        queues
    });
    let mut program = open_or_attach(config, queues.as_deref(), &ifname)?;
    let port_config = XdpConfig { queues, ..XdpConfig::new(ip) };
    let ports = XdpPort::open(&port_config, &mut program).map_err(|error| failed(&error))?;
    // Those of a daemon that died; nobody is left to hear of them. Not before the sockets are open: that they could be
    // shows that no other daemon is alive on the interface, whose jobs these would be.
    program.clear_jobs().map_err(|error| failed(&error))?;
    let messages = match follow(&program) {
        Ok(messages) => Some(messages),
        Err(error) => {
            tracing::warn!(%error, "the host program's messages will be missing here; see `sumac events`");
            None
        }
    };
    let local = Local { ip, port: program.ports().0, mac: ports.first().map_or([0; 6], XdpPort::mac) };
    tracing::info!(ifname, program = ?program.mode(), "packets move over AF_XDP");
    let program = Box::new(Mutex::new(program));
    let ports = ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect();
    Ok((Way::Xdp { program, local, groups: Groups::default(), _messages: messages }, ports))
}

/// The program that is on the interface already, or a new one.
fn open_or_attach(config: &Config, queues: Option<&[u32]>, ifname: &str) -> Result<Attached, CarrierError> {
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
        Err(error) => return Err(CarrierError::Xdp(error.to_string())),
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
    attach(&options).map_err(|error| CarrierError::Xdp(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this network namespace has joined a group on any interface.
    fn has_joined(group: Ipv4Addr) -> bool {
        let little_endian = format!("{:08X}", u32::from_le_bytes(group.octets()));
        std::fs::read_to_string("/proc/self/net/igmp").is_ok_and(|table| table.contains(&little_endian))
    }

    #[test]
    fn a_job_is_in_its_group_until_it_leaves() {
        // Random enough that no other test's: the groups of a namespace are shared.
        let group = Ipv4Addr::from(0xef4d_0000 | std::process::id() & 0xffff);
        let groups = Groups::default();
        groups.join(1, group, Ipv4Addr::LOCALHOST).unwrap();
        assert!(has_joined(group));
        groups.leave(1);
        assert!(!has_joined(group));
        assert!(groups.join(1, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST).is_err(), "no group");
    }
}
