//! The host aggregator as a data plane of the control plane.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rand::{TryRngCore, rngs::OsRng};
use sumac_control::plane::{
    DataPlane, Installed, JobInstall, KnownJob, LastEpoch, Level, PlaneError, PlaneInfo, PlaneKind, TakenOver,
};
use sumac_wire::tables::{JobEntry, job_flag};

use crate::{
    aggregator::{JobError, NewJob},
    udp::{Running, StartError},
};

/// A host aggregator that takes jobs from a control plane.
pub struct HostDataPlane {
    running: Running,
    instance: u64,
    /// The reasons for the jobs' numbers of slots.
    reasons: Mutex<BTreeMap<u16, String>>,
}

impl HostDataPlane {
    /// Starts an aggregator with `slots` slots for chunks of at most `elements` in `shards` shards, on UDP `ip:port` and
    /// the ports after it.
    pub fn start(
        slots: u32,
        elements: u16,
        shards: u16,
        ip: Ipv4Addr,
        port: u16,
    ) -> Result<HostDataPlane, StartError> {
        let instance = OsRng.try_next_u64().map_err(|error| StartError::Setup {
            what: "get a random number",
            source: std::io::Error::other(error.to_string()),
        })?;
        let running = Running::start(slots, elements, shards, ip, port)?;
        Ok(HostDataPlane { running, instance, reasons: Mutex::default() })
    }

    /// With `slots` slots in each shard that dynamic jobs share. When nobody adds to one for `timeout`, others may take it.
    ///
    /// # Errors
    /// When the slots do not fit half of the memory that this host has.
    pub fn with_dynamic(self, slots: u32, timeout: Duration) -> Result<HostDataPlane, StartError> {
        Ok(HostDataPlane { running: self.running.with_dynamic(slots, timeout)?, ..self })
    }

    /// The aggregator.
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Returns the reason for a job's number of slots; empty if unknown.
    pub fn slots_reason(&self, job: u16) -> String {
        self.reasons().get(&job).cloned().unwrap_or_default()
    }

    fn remember(&self, job: u16, reason: &str) {
        self.reasons().insert(job, reason.to_owned());
    }

    fn reasons(&self) -> MutexGuard<'_, BTreeMap<u16, String>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
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

impl DataPlane for HostDataPlane {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        self.check_alive()?;
        Ok(PlaneInfo {
            kind: PlaneKind::Host,
            slots: self.running.slots(),
            max_elements: self.running.max_elements(),
            narrowest: None,
            base_port: self.running.local().port(),
            shards: self.running.shards(),
            dynamic_slots: self.running.dynamic_slots(),
            address: None,
            kept: Vec::new(),
        })
    }

    fn take_over(&self, known: &[KnownJob]) -> Result<TakenOver, PlaneError> {
        let epochs = self.running.epochs();
        let tokens: BTreeMap<u16, u64> =
            self.running.jobs().into_iter().map(|(job, entry, ..)| (job, entry.token)).collect();
        let mut taken = TakenOver::default();
        for (job, epoch, _) in epochs.iter().filter(|(.., is_active)| *is_active) {
            let token = tokens.get(job).copied();
            if known.iter().any(|known| token.is_some_and(|token| known.is(*job, *epoch, token))) {
                taken.jobs.push(*job);
                continue;
            }
            tracing::warn!(job, epoch, "removing a job that the control plane does not know");
            self.running.remove(*job);
        }
        taken.last_epochs = epochs.into_iter().map(|(job, epoch, _)| LastEpoch { job, epoch }).collect();
        Ok(taken)
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        self.check_alive()?;
        let mut aggregator_ips = Vec::with_capacity(job.workers.len());
        for (rank, worker) in job.workers.iter().enumerate() {
            let address = SocketAddrV4::new(worker.ip, worker.port);
            let way =
                self.source_for(address).map_err(|what| PlaneError::NoWay { rank, ip: worker.ip, what });
            aggregator_ips.push(way?);
        }
        let workers = job.workers.iter().map(|worker| SocketAddrV4::new(worker.ip, worker.port)).collect();
        let hosts = &job.terms.parameter_hosts[..];
        let (parents, host_sides) = match job.level {
            Level::Rack { parent, .. } => (vec![parent], Vec::new()),
            Level::Only | Level::Root { .. } => (hosts.to_vec(), self.host_sides(hosts)?),
        };
        let new = NewJob { entry: entry(job)?, workers, parents };
        let terms = &job.terms;
        self.running.install(terms.job, &new).map_err(|error| failed("installing a job", &error))?;
        self.remember(terms.job, &terms.slots_reason);
        Ok(Installed { aggregator_ips, result_group: None, host_sides })
    }

    fn resize(&self, job: u16, slots: u32, reason: &str) -> Result<(), PlaneError> {
        let resized = self.running.resize(job, slots);
        resized.map_err(|error| failed("changing a job's slots", &error))?;
        self.remember(job, reason);
        Ok(())
    }

    fn remove(&self, job: u16) -> Result<(), PlaneError> {
        let world = self.running.jobs().into_iter().find(|(number, ..)| *number == job);
        for rank in 0..world.map_or(0, |(_, entry, ..)| entry.world) {
            let worker = self.running.worker_seen(job, rank).counters;
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
        self.reasons().remove(&job);
        Ok(())
    }

    fn instance(&self) -> Result<u64, PlaneError> {
        self.check_alive()?;
        Ok(self.instance)
    }
}

impl HostDataPlane {
    /// The addresses that packets to parameter hosts come from.
    fn host_sides(&self, hosts: &[SocketAddrV4]) -> Result<Vec<Ipv4Addr>, PlaneError> {
        let way = |host: &SocketAddrV4| {
            self.source_for(*host).map_err(|error| PlaneError::Failed {
                doing: "finding the way to a parameter host",
                what: format!("{host}: {error}"),
            })
        };
        hosts.iter().map(way).collect()
    }

    /// The address that packets to another come from: the bound one, or what the kernel's routes say.
    fn source_for(&self, address: SocketAddrV4) -> Result<Ipv4Addr, String> {
        let bound = *self.running.local().ip();
        if !bound.is_unspecified() {
            return Ok(bound);
        }
        let asked = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.connect(address)?;
            socket.local_addr()
        });
        match asked {
            Ok(std::net::SocketAddr::V4(local)) => Ok(*local.ip()),
            Ok(std::net::SocketAddr::V6(local)) => Err(format!("packets would leave from {local}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn entry(job: &JobInstall) -> Result<JobEntry, PlaneError> {
    let terms = &job.terms;
    let world = job.workers.len() as u16;
    let (level, contributors, rack, racks) = match job.level {
        Level::Only => (0, world, 0, 0),
        Level::Root { contributors } => (job_flag::ROOT, contributors, 0, 0),
        Level::Rack { rack, racks, contributors, .. } => (job_flag::CHILD, contributors, rack, racks),
    };
    let given = [
        (job_flag::CHECKSUM, terms.checksum),
        (job_flag::STEALING, job.stealing),
        (job_flag::DYNAMIC, terms.is_dynamic()),
    ];
    let (slots, lane_slots_log2) = match terms.is_dynamic() {
        true => (terms.slots, 0),
        false if terms.slots.is_power_of_two() => (job.pool_slots(), terms.slots.ilog2() as u16),
        false => {
            let what = format!("{} slots in a lane: must be a power of two", terms.slots);
            return Err(PlaneError::Failed { doing: "installing a job", what });
        }
    };
    Ok(JobEntry {
        token: terms.token,
        slot_base: job.first_slot,
        slots,
        epoch: terms.epoch,
        elements: terms.elements,
        flags: given.iter().filter(|(_, given)| *given).fold(level, |flags, (flag, _)| flags | flag),
        contributors,
        shards: terms.shards,
        lane_slots_log2,
        rack,
        racks,
        ..JobEntry::default()
    })
}

fn failed(doing: &'static str, error: &JobError) -> PlaneError {
    PlaneError::Failed { doing, what: error.to_string() }
}
