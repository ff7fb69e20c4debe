//! The eBPF aggregator as a data plane of the control plane.

use std::{ops::Range, path::Path};

use sumac_agg_job::{
    NewJob,
    plane::{AggregatorPlane, SlotsReasons, failed, info, installed, take_over, ways},
    status::Status,
};
use sumac_agg_layout::{Drops, State};
use sumac_control::plane::{
    DataPlane, Installed, JobInstall, KnownJob, Level, PlaneError, PlaneInfo, PlaneKind, TakenOver,
};
use sumac_netutil::neighbour;

use crate::{
    aggregator::Aggregator,
    job::{AddJobError, worker_entry},
    status::chunk_limit,
    tables::OpenError,
};

/// An attached aggregator that takes jobs from a control plane.
pub struct EbpfPlane {
    pub aggregator: Aggregator,
    pub reasons: SlotsReasons,
}

impl EbpfPlane {
    pub fn open(pin_root: &Path) -> Result<EbpfPlane, OpenError> {
        Ok(EbpfPlane { aggregator: Aggregator::open(pin_root)?, reasons: SlotsReasons::default() })
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
        let jobs = state.jobs.saturating_sub(1) as u16;
        Ok(PlaneInfo {
            max_elements: limit.elements,
            narrowest: limit.port,
            jobs,
            ..info(Self::KIND, &state)
        })
    }

    fn take_over(&self, known: &[KnownJob]) -> Result<TakenOver, PlaneError> {
        let jobs = self.aggregator.tables().map_err(unavailable)?.jobs();
        let jobs = jobs.map_err(|error| failed("reading the jobs", &error))?;
        take_over(jobs, known, |job| self.remove(job))
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        let (mut workers, mut parents) = ways(job, |to| {
            let hop = neighbour::resolve(*to.ip()).map_err(|error| error.to_string())?;
            Ok(worker_entry(to, &hop))
        })?;
        if let Some(own) = self.aggregator.own_ip().map_err(unavailable)? {
            // The root knows a rack by the address of its uplink.
            let hosts = parents.iter_mut().filter(|_| !matches!(job.level, Level::Rack { .. }));
            workers.iter_mut().chain(hosts).for_each(|hop| hop.aggregator_ip = own.to_bits());
        }
        let installing = |error: &dyn std::error::Error| failed("installing a job", error);
        let new = NewJob::of(job, workers, parents).map_err(|error| installing(&error))?;
        let placed = self.aggregator.add_job(&new).map_err(|error| installing(&error))?;
        self.reasons.set(job.terms.job, Some(&job.terms.slots_reason));
        Ok(installed(job, &new, placed.group))
    }

    fn resize(&self, job: u16, slots: u32, reason: &str) -> Result<(), PlaneError> {
        let resized = self.aggregator.resize_job(job, slots);
        resized.map_err(|error| failed("changing a job's slots", &error))?;
        self.reasons.set(job, Some(reason));
        Ok(())
    }

    fn remove(&self, job: u16) -> Result<(), PlaneError> {
        self.reasons.set(job, None);
        match self.aggregator.remove_job(job) {
            Ok(_) => Ok(()),
            // Where nothing is, the job is not either.
            Err(AddJobError::Open(OpenError::NotAttached { .. })) => Ok(()),
            Err(error) => Err(failed("removing a job", &error)),
        }
    }

    fn instance(&self) -> Result<u64, PlaneError> {
        self.bound_state().map(|state| state.instance)
    }
}

impl AggregatorPlane for EbpfPlane {
    const KIND: PlaneKind = PlaneKind::Ebpf;

    fn status(&self) -> Result<Status, PlaneError> {
        self.aggregator.status().map_err(unavailable)
    }

    fn set_drops(&self, jobs: Range<u16>, drops: Drops) -> Result<(), PlaneError> {
        self.aggregator.set_drops(jobs, drops).map_err(unavailable)
    }

    fn slots_reasons(&self) -> &SlotsReasons {
        &self.reasons
    }
}

fn unavailable(error: OpenError) -> PlaneError {
    PlaneError::Unavailable { what: error.to_string() }
}
