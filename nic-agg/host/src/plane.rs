//! The host aggregator as a data plane of the control plane.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use rand::{TryRngCore, rngs::OsRng};
use sumac_control::plane::{
    DataPlane, Installed, JobInstall, LastEpoch, Level, PlaneError, PlaneInfo, PlaneKind, WorkerInstall,
};
use sumac_wire::tables::{JobEntry, job_flag};

use crate::{
    aggregator::NewJob,
    udp::{Running, StartError},
};

/// A host aggregator that takes jobs from a control plane.
pub struct HostPlane {
    running: Running,
    instance: u64,
}

impl HostPlane {
    /// Starts an aggregator with `slots` slots for chunks of at most `elements` in `shards` shards, on UDP `ip:port` and
    /// the ports after it.
    pub fn start(
        slots: u32,
        elements: u16,
        shards: u16,
        ip: Ipv4Addr,
        port: u16,
    ) -> Result<HostPlane, StartError> {
        let instance = OsRng.try_next_u64().map_err(|error| StartError::Setup {
            what: "get a random number",
            source: std::io::Error::other(error.to_string()),
        })?;
        let running = Running::start(slots, elements, shards, ip, port)?;
        Ok(HostPlane { running, instance })
    }

    /// The aggregator.
    pub fn running(&self) -> &Running {
        &self.running
    }

    fn check_alive(&self) -> Result<(), PlaneError> {
        if self.running.is_alive() {
            Ok(())
        } else {
            Err(PlaneError::Unavailable {
                what: "an aggregating thread has ended; restart `sumac-agg serve`".into(),
            })
        }
    }
}

impl DataPlane for HostPlane {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        self.check_alive()?;
        Ok(PlaneInfo {
            kind: PlaneKind::Host,
            slots: self.running.slots(),
            max_elements: self.running.max_elements(),
            base_port: self.running.local().port(),
            shards: self.running.shards(),
        })
    }

    fn take_over(&self) -> Result<Vec<LastEpoch>, PlaneError> {
        // A rack enters anew, with the same memory, when it was out of its root's sight for too long.
        let epochs = self.running.epochs();
        for (job, epoch, _) in epochs.iter().filter(|(.., is_active)| *is_active) {
            tracing::warn!(job, epoch, "removing a job that nobody keeps alive");
            self.running.remove(*job);
        }
        Ok(epochs.into_iter().map(|(job, epoch, _)| LastEpoch { job, epoch }).collect())
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        self.check_alive()?;
        let mut aggregator_ips = Vec::with_capacity(job.workers.len());
        for (rank, worker) in job.workers.iter().enumerate() {
            aggregator_ips.push(self.source_for(rank, worker)?);
        }
        let workers = job.workers.iter().map(|worker| SocketAddrV4::new(worker.ip, worker.port)).collect();
        let parent = match job.level {
            Level::Rack { parent, .. } => Some(parent),
            Level::Only | Level::Root { .. } => None,
        };
        let installed = self.running.install(job.job, &NewJob { entry: entry(job), workers, parent });
        installed
            .map_err(|error| PlaneError::Failed { doing: "installing a job", what: error.to_string() })?;
        Ok(Installed { aggregator_ips, result_group: None })
    }

    fn resize(&self, job: u16, lane_slots: u32) -> Result<(), PlaneError> {
        if self.running.resize(job, lane_slots) {
            return Ok(());
        }
        let what = format!("job {job} is not there, or has not {lane_slots} slots in each lane");
        Err(PlaneError::Failed { doing: "changing a job's slots", what })
    }

    fn remove(&self, job: u16) -> Result<(), PlaneError> {
        for (rank, worker) in self.running.worker_counters(job).into_iter().enumerate() {
            tracing::info!(
                job,
                rank,
                added = worker.added,
                last = worker.last,
                duplicates = worker.duplicates,
                replies = worker.replies,
                "a worker of a job that ends; `last`: how often the others waited for it"
            );
        }
        self.running.remove(job);
        Ok(())
    }

    fn instance(&self) -> Result<u64, PlaneError> {
        self.check_alive()?;
        Ok(self.instance)
    }
}

impl HostPlane {
    /// The address that packets to a worker come from: the bound one, or what the kernel's routes say.
    fn source_for(&self, rank: usize, worker: &WorkerInstall) -> Result<Ipv4Addr, PlaneError> {
        let bound = *self.running.local().ip();
        if !bound.is_unspecified() {
            return Ok(bound);
        }
        let asked = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.connect((worker.ip, worker.port))?;
            socket.local_addr()
        });
        match asked {
            Ok(std::net::SocketAddr::V4(local)) => Ok(*local.ip()),
            Ok(std::net::SocketAddr::V6(_)) => Ok(worker.local_ip),
            Err(error) => Err(PlaneError::NoWay { rank, ip: worker.ip, what: error.to_string() }),
        }
    }
}

fn entry(job: &JobInstall) -> JobEntry {
    let world = job.workers.len() as u16;
    let (level, contributors, rack, racks) = match job.level {
        Level::Only => (0, world, 0, 0),
        Level::Root { contributors } => (job_flag::ROOT, contributors, 0, 0),
        Level::Rack { rack, racks, contributors, .. } => (job_flag::CHILD, contributors, rack, racks),
    };
    let given = [(job_flag::CHECKSUM, job.checksum), (job_flag::STEALING, job.stealing)];
    JobEntry {
        token: job.token,
        slot_base: job.first_slot,
        slots: job.slots(),
        epoch: job.epoch,
        elements: job.elements,
        flags: given.iter().filter(|(_, given)| *given).fold(level, |flags, (flag, _)| flags | flag),
        contributors,
        shards: job.shards,
        lane_slots_log2: job.lane_slots.checked_ilog2().unwrap_or(0) as u16,
        rack,
        racks,
        ..JobEntry::default()
    }
}
