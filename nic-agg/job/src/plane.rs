//! The parts of a data plane that all planes share.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    ops::Range,
    sync::{Mutex, PoisonError},
    thread,
};

use sumac_agg_layout::{Drops, State};
use sumac_control::plane::{
    DataPlane, Installed, JobInstall, KnownJob, LastEpoch, Level, PlaneError, PlaneInfo, PlaneKind, TakenOver,
};
use sumac_wire::tables::{JobEntry, WorkerEntry, job_flag};

use crate::{NewJob, parents, status::Status};

/// A data plane that aggregates, as the command line and the metrics see it.
pub trait AggregatorPlane: DataPlane {
    const KIND: PlaneKind;

    /// Returns the status, without what the control plane knows of the jobs.
    fn status(&self) -> Result<Status, PlaneError>;
    /// Sets the intentional drops of jobs, present or future.
    fn set_drops(&self, jobs: Range<u16>, drops: Drops) -> Result<(), PlaneError>;
    fn slots_reasons(&self) -> &SlotsReasons;
}

/// The reasons for the jobs' numbers of slots, for which the tables of jobs have no room.
#[derive(Default)]
pub struct SlotsReasons(Mutex<BTreeMap<u16, String>>);

impl SlotsReasons {
    pub fn all(&self) -> BTreeMap<u16, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets a job's reason; `None` or an empty one removes it.
    pub fn set(&self, job: u16, reason: Option<&str>) {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match reason.filter(|reason| !reason.is_empty()) {
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

/// Describes a plane of these sizes that does all that aggregators do.
pub fn info(kind: PlaneKind, state: &State) -> PlaneInfo {
    PlaneInfo {
        kind,
        slots: state.slots,
        max_elements: state.elements,
        base_port: state.base_port,
        shards: state.shards,
        dynamic_slots: state.dynamic_slots,
        ..PlaneInfo::NONE
    }
}

/// Looks up the ways to a job's workers and parents, all at once: each may take seconds.
pub fn ways(
    job: &JobInstall,
    way: impl Fn(SocketAddrV4) -> Result<WorkerEntry, String> + Sync,
) -> Result<(Vec<WorkerEntry>, Vec<WorkerEntry>), PlaneError> {
    let workers = job.workers.iter().map(|worker| SocketAddrV4::new(worker.ip, worker.port));
    let destinations: Vec<SocketAddrV4> = workers.chain(parents(job).iter().copied()).collect();
    let mut ways = thread::scope(|scope| {
        let asked: Vec<_> = destinations.iter().map(|to| scope.spawn(|| way(*to))).collect();
        let answers = asked.into_iter().zip(&destinations).enumerate();
        let answers = answers.map(|(rank, (asked, to))| {
            let answer = asked.join().unwrap_or_else(|_| Err("the look-up panicked".into()));
            answer.map_err(|what| match rank < job.workers.len() {
                true => PlaneError::NoWay { rank, ip: *to.ip(), what },
                false => PlaneError::Failed {
                    doing: "looking for the way to the root or a parameter host",
                    what: format!("{to}: {what}"),
                },
            })
        });
        answers.collect::<Result<Vec<_>, _>>()
    })?;
    let parents = ways.split_off(job.workers.len());
    Ok((ways, parents))
}

/// Returns the answer to an installation, with the plane's addresses towards workers and parameter hosts.
pub fn installed(job: &JobInstall, new: &NewJob, result_group: Option<Ipv4Addr>) -> Installed {
    let sides = |hops: &[WorkerEntry]| hops.iter().map(|hop| hop.aggregator_ip.into()).collect();
    let host_sides = match job.level {
        Level::Rack { .. } => Vec::new(),
        Level::Only | Level::Root { .. } => sides(&new.parents),
    };
    Installed { aggregator_ips: sides(&new.workers), result_group, host_sides }
}

pub fn failed(doing: &'static str, error: &dyn std::error::Error) -> PlaneError {
    PlaneError::Failed { doing, what: error.to_string() }
}
