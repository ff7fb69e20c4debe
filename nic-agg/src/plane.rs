//! The eBPF aggregator as a data plane of the control plane.

use std::{path::Path, thread};

use sumac_agg_layout::State;
use sumac_control::{
    neighbour::{self, Neighbour},
    plane::{DataPlane, Installed, JobInstall, LastEpoch, PlaneError, PlaneInfo, PlaneKind, WorkerInstall},
};
use sumac_wire::tables::job_flag;

use crate::{
    aggregator::{Aggregator, OpenError},
    job::{Level, NewJob, NewWorker},
};

/// An attached aggregator that takes jobs from a control plane.
pub struct EbpfPlane {
    aggregator: Aggregator,
}

impl EbpfPlane {
    /// The aggregator of the calling thread's network namespace.
    ///
    /// # Errors
    /// When none is attached.
    pub fn open(pin_root: &Path) -> Result<EbpfPlane, OpenError> {
        Aggregator::open(pin_root).map(|aggregator| EbpfPlane { aggregator })
    }

    /// The aggregator.
    #[must_use]
    pub fn aggregator(&self) -> &Aggregator {
        &self.aggregator
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
        Ok(PlaneInfo {
            kind: PlaneKind::Ebpf,
            slots: state.slots,
            max_elements: state.elements,
            base_port: state.base_port,
            shards: state.shards,
        })
    }

    fn take_over(&self) -> Result<Vec<LastEpoch>, PlaneError> {
        let jobs = self.aggregator.tables().map_err(unavailable)?.jobs();
        let jobs = jobs.map_err(|error| failed("reading the jobs", &error))?;
        for (job, entry) in &jobs {
            if entry.flags & job_flag::ACTIVE != 0 {
                tracing::warn!(job, epoch = entry.epoch, "removing a job that nobody keeps alive");
                self.remove(*job)?;
            }
        }
        Ok(jobs.into_iter().map(|(job, entry)| LastEpoch { job, epoch: entry.epoch }).collect())
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        let workers = ways(&job.workers)?;
        let aggregator_ips = workers.iter().map(|worker| worker.aggregator_ip).collect();
        let new = NewJob {
            job: job.job,
            epoch: job.epoch,
            token: job.token,
            first_slot: Some(job.first_slot),
            slots: job.slots,
            lane_slots: job.slots,
            shards: 1,
            stealing: false,
            level: Level::Only,
            elements: job.elements,
            checksum: job.checksum,
            group: None,
            workers,
        };
        let placed = self.aggregator.add_job(&new).map_err(|error| failed("installing a job", &error))?;
        Ok(Installed { aggregator_ips, result_group: placed.group })
    }

    fn remove(&self, job: u16) -> Result<(), PlaneError> {
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

/// The ways to all workers, by rank. They are asked for at once: each may take seconds.
fn ways(workers: &[WorkerInstall]) -> Result<Vec<NewWorker>, PlaneError> {
    thread::scope(|scope| {
        let asked: Vec<_> =
            workers.iter().map(|worker| scope.spawn(|| neighbour::resolve(worker.ip))).collect();
        let answers = asked.into_iter().zip(workers).enumerate();
        answers
            .map(|(rank, (asked, worker))| {
                let no_way = |what: String| PlaneError::NoWay { rank, ip: worker.ip, what };
                let answer = asked.join().map_err(|_| no_way("the look-up panicked".into()))?;
                Ok(way(worker, &answer.map_err(|error| no_way(error.to_string()))?))
            })
            .collect()
    })
}

fn way(worker: &WorkerInstall, neighbour: &Neighbour) -> NewWorker {
    NewWorker {
        ip: worker.ip,
        port: worker.port,
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
