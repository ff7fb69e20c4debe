//! The eBPF aggregator as a data plane of the control plane.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use sumac_agg_layout::State;
use sumac_control::{
    neighbour::{self, Neighbour},
    plane::{
        self, DataPlane, Installed, JobInstall, KnownJob, LastEpoch, PlaneError, PlaneInfo, PlaneKind,
        TakenOver,
    },
};
use sumac_wire::tables::job_flag;

use crate::{
    aggregator::{Aggregator, OpenError},
    job::{Level, NewDynamic, NewJob, NewWorker},
    status::chunk_limit,
};

/// An attached aggregator that takes jobs from a control plane.
pub struct EbpfPlane {
    aggregator: Aggregator,
    /// The reason for each job's number of slots: the maps have no room for it.
    reasons: Mutex<BTreeMap<u16, String>>,
}

impl EbpfPlane {
    /// The aggregator of the calling thread's network namespace.
    ///
    /// # Errors
    /// When none is attached.
    pub fn open(pin_root: &Path) -> Result<EbpfPlane, OpenError> {
        let aggregator = Aggregator::open(pin_root)?;
        Ok(EbpfPlane { aggregator, reasons: Mutex::default() })
    }

    /// The aggregator.
    #[must_use]
    pub fn aggregator(&self) -> &Aggregator {
        &self.aggregator
    }

    /// The reason for each job's number of slots, by job number.
    #[must_use]
    pub fn slots_reasons(&self) -> BTreeMap<u16, String> {
        self.reasons().clone()
    }

    fn remember(&self, job: u16, reason: &str) {
        self.reasons().insert(job, reason.to_owned());
    }

    fn reasons(&self) -> MutexGuard<'_, BTreeMap<u16, String>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its state, while its programs are on any port.
    fn bound_state(&self) -> Result<State, PlaneError> {
        if !self.aggregator.is_bound().map_err(unavailable)? {
            let what = "its programs are detached; attach them again: sumac-agg attach IFACE...".into();
            return Err(PlaneError::Unavailable { what });
        }
        self.aggregator.state().map_err(unavailable)
    }
}

impl DataPlane for EbpfPlane {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        let state = self.bound_state()?;
        let ports = self.aggregator.tables().map_err(unavailable)?.ports();
        let ports = ports.map_err(|error| failed("reading the ports", &error))?;
        let limit = chunk_limit(state.elements, &ports);
        Ok(PlaneInfo {
            kind: PlaneKind::Ebpf,
            slots: state.slots,
            max_elements: limit.elements,
            narrowest: limit.port.map(Into::into),
            base_port: state.base_port,
            shards: state.shards,
            dynamic_slots: state.dynamic_slots,
            address: None,
            kept: Vec::new(),
        })
    }

    fn take_over(&self, known: &[KnownJob]) -> Result<TakenOver, PlaneError> {
        let jobs = self.aggregator.tables().map_err(unavailable)?.jobs();
        let jobs = jobs.map_err(|error| failed("reading the jobs", &error))?;
        let mut taken = TakenOver::default();
        for (job, entry) in &jobs {
            taken.last_epochs.push(LastEpoch { job: *job, epoch: entry.epoch });
            if entry.flags & job_flag::ACTIVE == 0 {
                continue;
            }
            if known.iter().any(|known| known.is(*job, entry.epoch, entry.token)) {
                taken.jobs.push(*job);
                continue;
            }
            tracing::warn!(job, epoch = entry.epoch, "removing a job that the control plane does not know");
            self.remove(*job)?;
        }
        Ok(taken)
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        let Ways { mut workers, mut hosts, level } = ways(job)?;
        if let Some(own) = self.aggregator.own_ip().map_err(unavailable)? {
            workers.iter_mut().chain(&mut hosts).for_each(|way| way.aggregator_ip = own);
        }
        let sides = |ways: &[NewWorker]| ways.iter().map(|way| way.aggregator_ip).collect();
        let (aggregator_ips, host_sides) = (sides(&workers), sides(&hosts));
        let terms = &job.terms;
        let new = NewJob {
            job: terms.job,
            epoch: terms.epoch,
            token: terms.token,
            dynamic: terms.is_dynamic().then(|| NewDynamic { slots: terms.slots, hosts }),
            first_slot: Some(job.first_slot),
            slots: job.pool_slots(),
            lane_slots: if terms.is_dynamic() { 0 } else { terms.slots },
            shards: terms.shards,
            stealing: job.stealing,
            level,
            elements: terms.elements,
            checksum: terms.checksum,
            group: None,
            workers,
        };
        let placed = self.aggregator.add_job(&new).map_err(|error| failed("installing a job", &error))?;
        self.remember(terms.job, &terms.slots_reason);
        Ok(Installed { aggregator_ips, result_group: placed.group, host_sides })
    }

    fn resize(&self, job: u16, slots: u32, reason: &str) -> Result<(), PlaneError> {
        let resized = self.aggregator.resize_job(job, slots);
        resized.map_err(|error| failed("changing a job's slots", &error))?;
        self.remember(job, reason);
        Ok(())
    }

    fn remove(&self, job: u16) -> Result<(), PlaneError> {
        self.reasons().remove(&job);
        match self.aggregator.remove_job(job) {
            Ok(_) => Ok(()),
            // Where nothing is, the job is not either.
            Err(crate::aggregator::ChangeError::Open(OpenError::NotAttached { .. })) => Ok(()),
            Err(error) => Err(failed("removing a job", &error)),
        }
    }

    fn instance(&self) -> Result<u64, PlaneError> {
        self.bound_state().map(|state| state.instance)
    }
}

/// The ways of a job.
struct Ways {
    /// To its workers, by rank.
    workers: Vec<NewWorker>,
    /// To its parameter hosts; none at a rack, whose sums go to the root.
    hosts: Vec<NewWorker>,
    /// With that to its root.
    level: Level,
}

/// Looks for all ways of a job. They are asked for at once: each may take seconds.
fn ways(job: &JobInstall) -> Result<Ways, PlaneError> {
    let workers = job.workers.iter().map(|worker| SocketAddrV4::new(worker.ip, worker.port));
    let up = match job.level {
        plane::Level::Rack { parent, .. } => vec![parent],
        plane::Level::Only | plane::Level::Root { .. } => job.terms.parameter_hosts.clone(),
    };
    let whereto: Vec<SocketAddrV4> = workers.chain(up).collect();
    let mut ways = thread::scope(|scope| {
        let asked: Vec<_> = whereto.iter().map(|to| scope.spawn(|| neighbour::resolve(*to.ip()))).collect();
        let answers = asked.into_iter().zip(&whereto).enumerate();
        answers
            .map(|(rank, (asked, to))| {
                let no_way = |what: String| no_way(job, rank, *to.ip(), what);
                let answer = asked.join().map_err(|_| no_way("the look-up panicked".into()))?;
                Ok(way(*to, &answer.map_err(|error| no_way(error.to_string()))?))
            })
            .collect::<Result<Vec<NewWorker>, PlaneError>>()
    })?;
    let level = match job.level {
        plane::Level::Only => Level::Only,
        plane::Level::Root { contributors } => Level::Root { contributors },
        plane::Level::Rack { rack, racks, contributors, parent } => {
            let none = || no_way(job, job.workers.len(), *parent.ip(), "it was not looked up".into());
            Level::Rack { rack, racks, contributors, parent: ways.pop().ok_or_else(none)? }
        }
    };
    let hosts = ways.split_off(job.workers.len().min(ways.len()));
    Ok(Ways { workers: ways, hosts, level })
}

/// The reason that a worker, or, behind the last of them, the root or a parameter host, is unreachable.
fn no_way(job: &JobInstall, rank: usize, ip: Ipv4Addr, what: String) -> PlaneError {
    if rank < job.workers.len() {
        return PlaneError::NoWay { rank, ip, what };
    }
    PlaneError::Failed {
        doing: "looking for the way to the root or a parameter host",
        what: format!("{ip}: {what}"),
    }
}

fn way(to: SocketAddrV4, neighbour: &Neighbour) -> NewWorker {
    NewWorker {
        ip: *to.ip(),
        port: to.port(),
        mac: neighbour.mac,
        ifindex: neighbour.ifindex,
        aggregator_ip: neighbour.src_ip,
        aggregator_mac: neighbour.own_mac,
    }
}

fn unavailable(error: OpenError) -> PlaneError {
    PlaneError::Unavailable { what: error.to_string() }
}

fn failed(doing: &'static str, error: &dyn std::error::Error) -> PlaneError {
    PlaneError::Failed { doing, what: error.to_string() }
}
