//! The host aggregator as a data plane of the control plane, and the parts of one that the eBPF aggregator shares.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rand::{TryRngCore, rngs::OsRng};
use sumac_control::plane::{
    DataPlane, Installed, JobInstall, KnownJob, LastEpoch, Level, PlaneError, PlaneInfo, PlaneKind, TakenOver,
};
use sumac_wire::tables::{JobEntry, job_flag};

use crate::{
    job::{NewJob, endpoint, parents},
    udp::{Running, StartError},
};

/// The reasons for the jobs' numbers of slots, for which the tables of jobs have no room.
#[derive(Default)]
pub struct SlotsReasons(Mutex<BTreeMap<u16, String>>);

impl SlotsReasons {
    pub fn all(&self) -> BTreeMap<u16, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets a job's reason; `None` removes it.
    pub fn set(&self, job: u16, reason: Option<&str>) {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match reason {
            Some(reason) => drop(reasons.insert(job, reason.to_owned())),
            None => drop(reasons.remove(&job)),
        }
    }
}

/// Removes the active jobs among a plane's entries that the control plane does not know.
pub fn take_over(
    entries: Vec<(u16, JobEntry)>,
    known: &[KnownJob],
    remove: impl Fn(u16) -> Result<(), PlaneError>,
) -> Result<TakenOver, PlaneError> {
    let mut taken = TakenOver::default();
    for (job, JobEntry { epoch, token, flags, .. }) in entries {
        taken.last_epochs.push(LastEpoch { job, epoch });
        if flags & job_flag::ACTIVE == 0 {
            continue;
        }
        if known.iter().any(|known| known.is(job, epoch, token)) {
            taken.jobs.push(job);
            continue;
        }
        tracing::warn!(job, epoch, "removing a job that the control plane does not know");
        remove(job)?;
    }
    Ok(taken)
}

pub fn failed(doing: &'static str, error: &dyn std::error::Error) -> PlaneError {
    PlaneError::Failed { doing, what: error.to_string() }
}

/// A host aggregator that takes jobs from a control plane.
pub struct HostDataPlane {
    running: Running,
    instance: u64,
    pub reasons: SlotsReasons,
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
        Ok(HostDataPlane { running, instance, reasons: SlotsReasons::default() })
    }

    /// As [`Running::with_dynamic`].
    pub fn with_dynamic(self, slots: u32, timeout: Duration) -> Result<HostDataPlane, StartError> {
        Ok(HostDataPlane { running: self.running.with_dynamic(slots, timeout)?, ..self })
    }

    pub fn running(&self) -> &Running {
        &self.running
    }

    fn check_alive(&self) -> Result<(), PlaneError> {
        if self.running.is_alive() {
            return Ok(());
        }
        let what = "an aggregating thread has ended; restart `sumac-agg serve`".into();
        Err(PlaneError::Unavailable { what })
    }

    /// Returns the address that packets to another come from: the bound one, or by the kernel's routes.
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
            Ok(SocketAddr::V4(local)) => Ok(*local.ip()),
            Ok(SocketAddr::V6(local)) => Err(format!("packets would leave from {local}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl DataPlane for HostDataPlane {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        self.check_alive()?;
        let sizes = self.running.sizes();
        Ok(PlaneInfo {
            kind: PlaneKind::Host,
            slots: sizes.slots,
            max_elements: sizes.elements,
            narrowest: None,
            base_port: sizes.base_port,
            shards: sizes.shards,
            dynamic_slots: sizes.dynamic_slots,
            address: None,
            kept: Vec::new(),
        })
    }

    fn take_over(&self, known: &[KnownJob]) -> Result<TakenOver, PlaneError> {
        take_over(self.running.entries(), known, |job| {
            self.running.remove(job);
            Ok(())
        })
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        self.check_alive()?;
        let addresses: Vec<_> =
            job.workers.iter().map(|worker| SocketAddrV4::new(worker.ip, worker.port)).collect();
        let to_worker = |(rank, worker): (usize, &SocketAddrV4)| {
            let no_way = |what| PlaneError::NoWay { rank, ip: *worker.ip(), what };
            self.source_for(*worker).map_err(no_way)
        };
        let to_host = |host: &SocketAddrV4| {
            self.source_for(*host).map_err(|error| PlaneError::Failed {
                doing: "finding the way to a parameter host",
                what: format!("{host}: {error}"),
            })
        };
        let aggregator_ips = addresses.iter().enumerate().map(to_worker).collect::<Result<_, _>>()?;
        let host_sides = match job.level {
            Level::Rack { .. } => Vec::new(),
            Level::Only | Level::Root { .. } => {
                job.terms.parameter_hosts.iter().map(to_host).collect::<Result<_, _>>()?
            }
        };
        let entries = |addresses: &[SocketAddrV4]| addresses.iter().copied().map(endpoint).collect();
        let new = NewJob::of(job, entries(&addresses), entries(parents(job)));
        let installed = new.and_then(|new| self.running.install(&new));
        installed.map_err(|error| failed("installing a job", &error))?;
        self.reasons.set(job.terms.job, Some(&job.terms.slots_reason));
        Ok(Installed { aggregator_ips, result_group: None, host_sides })
    }

    fn resize(&self, job: u16, slots: u32, reason: &str) -> Result<(), PlaneError> {
        let resized = self.running.resize(job, slots);
        resized.map_err(|error| failed("changing a job's slots", &error))?;
        self.reasons.set(job, Some(reason));
        Ok(())
    }

    fn remove(&self, job: u16) -> Result<(), PlaneError> {
        let entry = self.running.entries().into_iter().find(|(number, _)| *number == job);
        for rank in 0..entry.map_or(0, |(_, entry)| entry.world) {
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
        self.reasons.set(job, None);
        Ok(())
    }

    fn instance(&self) -> Result<u64, PlaneError> {
        self.check_alive()?;
        Ok(self.instance)
    }
}
