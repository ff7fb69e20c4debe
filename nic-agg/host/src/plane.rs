//! The host aggregator as a data plane of the control plane.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use rand::{TryRngCore, rngs::OsRng};
use sumac_control::plane::{
    DataPlane, Installed, JobInstall, LastEpoch, PlaneError, PlaneInfo, PlaneKind, WorkerInstall,
};
use sumac_wire::tables::{JobEntry, job_flag};

use crate::{
    aggregator::HostAggregator,
    udp::{Running, StartError},
};

/// A host aggregator that takes jobs from a control plane.
pub struct HostPlane {
    running: Running,
    instance: u64,
}

impl HostPlane {
    /// Starts an aggregator with `slots` slots for chunks of at most `elements`, on UDP `ip:port`.
    pub fn start(slots: u32, elements: u16, ip: Ipv4Addr, port: u16) -> Result<HostPlane, StartError> {
        let instance = OsRng.try_next_u64().map_err(|error| StartError::Setup {
            what: "get a random number",
            source: std::io::Error::other(error.to_string()),
        })?;
        let running = Running::start(HostAggregator::new(slots, elements)?, ip, port)?;
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
                what: "the aggregating thread has ended; restart `sumac-agg serve`".into(),
            })
        }
    }
}

impl DataPlane for HostPlane {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        self.check_alive()?;
        let core = self.running.core();
        Ok(PlaneInfo {
            kind: PlaneKind::Host,
            slots: core.slots(),
            max_elements: core.max_elements(),
            base_port: self.running.local().port(),
            shards: 1,
        })
    }

    fn take_over(&self) -> Result<Vec<LastEpoch>, PlaneError> {
        // Its memory is as old as this process: nobody was here before.
        Ok(Vec::new())
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        self.check_alive()?;
        let mut aggregator_ips = Vec::with_capacity(job.workers.len());
        for (rank, worker) in job.workers.iter().enumerate() {
            aggregator_ips.push(self.source_for(rank, worker)?);
        }
        let entry = JobEntry {
            token: job.token,
            slot_base: job.first_slot,
            slots: job.slots,
            epoch: job.epoch,
            elements: job.elements,
            flags: if job.checksum { job_flag::CHECKSUM } else { 0 },
            contributors: job.workers.len() as u16,
            shards: 1,
            lane_slots_log2: job.slots.ilog2() as u16,
            ..JobEntry::default()
        };
        let addresses = job.workers.iter().map(|worker| SocketAddrV4::new(worker.ip, worker.port)).collect();
        let installed = self.running.core().install(job.job, entry, addresses);
        installed
            .map_err(|error| PlaneError::Failed { doing: "installing a job", what: error.to_string() })?;
        Ok(Installed { aggregator_ips, result_group: None })
    }

    fn remove(&self, job: u16) -> Result<(), PlaneError> {
        self.running.core().remove(job);
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
