//! A P4 switch as a data plane of the control plane.

use std::{
    net::SocketAddrV4,
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
};

use sumac_agg_job::{
    JobError, NewJob, check_range,
    drops::DropRule,
    plane::{AggregatorPlane, SlotsReasons, failed, info, installed, take_over, ways},
    resized,
    seen::JobSeen,
    status::{
        Status,
        job::{JobStatus, Observed, WorkerStatus, by_reason, ended, job_status, worker_status},
    },
};
use sumac_agg_layout::{Drops, State};
use sumac_control::plane::{
    DataPlane, Installed, JobInstall, KnownJob, Level, PlaneError, PlaneInfo, PlaneKind, TakenOver,
};
use sumac_wire::{
    BLOCK_ELEMENTS,
    header::ELEMENT_LEN,
    tables::{JobEntry, WorkerEntry, job_flag},
};

use crate::{
    contents::Contents,
    counters,
    sizes::{self, Sizes},
    tables::{self, HeldJob, admission, drops},
    target::{Binding, SwitchError, Target},
    wiring::Wiring,
};

/// A switch that takes jobs from a control plane.
pub struct SwitchPlane<T> {
    switch: T,
    wiring: Wiring,
    held: Mutex<Held>,
    pub reasons: SlotsReasons,
}

/// The contents that the switch is to have.
struct Held {
    contents: Contents,
    /// The binding in which the switch was last seen.
    binding: Binding,
    /// Whether it has the contents, if no other control plane has written since.
    is_written: bool,
    /// The times that another control plane had removed jobs.
    losses: u64,
}

impl Held {
    /// Compares the contents with those that the switch is found with in another binding.
    fn rebind(&mut self, binding: Binding, found: &Contents) {
        let before = std::mem::replace(&mut self.binding, binding);
        let lost = self.contents.jobs_missing_in(found);
        if before.instance != binding.instance {
            tracing::warn!(
                before = before.instance,
                instance = binding.instance,
                "the switch was restarted: its slots are lost, its tables are written again"
            );
        } else if !lost.is_empty() {
            // Its own jobs may have had their slots since.
            self.losses += 1;
            tracing::warn!(jobs = ?lost,
                "another control plane has removed jobs from the switch: their slots are lost");
        } else if *found != self.contents {
            tracing::warn!(
                "the switch's tables are not as this control plane has left them; they are written again"
            );
        }
        self.contents.add_later_epochs(found);
    }

    /// Returns a number that changes when jobs lose their slots.
    fn instance(&self) -> u64 {
        self.binding.instance.wrapping_add(self.losses)
    }
}

impl<T: Target> SwitchPlane<T> {
    /// Takes up what is on the switch, of an earlier control plane, and writes its own addresses and hosts.
    ///
    /// # Errors
    /// When the switch does not answer, or runs another program than the control plane knows.
    pub fn start(switch: T, wiring: Wiring) -> Result<SwitchPlane<T>, SwitchError> {
        let binding = switch.binding()?;
        let mut contents = Contents::read(&switch)?;
        contents.remove_parts();
        contents.remove_table("own");
        contents.remove_table("hosts");
        contents.add(wiring.entries());
        let held = Mutex::new(Held { contents, binding, is_written: false, losses: 0 });
        let plane = SwitchPlane { switch, wiring, held, reasons: SlotsReasons::default() };
        plane.settle(&mut plane.lock())?;
        Ok(plane)
    }

    pub fn switch(&self) -> &T {
        &self.switch
    }

    pub fn sizes(&self) -> Sizes {
        self.wiring.program
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the contents that the switch is to have, if it may have others: after a restart of it, another
    /// control plane, or a call whose outcome is not known.
    fn settle(&self, held: &mut Held) -> Result<(), SwitchError> {
        let binding = self.switch.binding()?;
        if held.is_written && held.binding == binding {
            return Ok(());
        }
        let found = Contents::read(&self.switch)?;
        held.is_written = false;
        if held.binding != binding {
            held.rebind(binding, &found);
        }
        for step in found.steps_to(&held.contents) {
            self.switch.write(&step)?;
        }
        held.is_written = true;
        Ok(())
    }

    /// Changes the contents of the switch, or leaves them as they are.
    fn change(&self, held: &mut Held, edit: impl FnOnce(&mut Contents)) -> Result<(), SwitchError> {
        self.settle(held)?;
        let mut after = held.contents.clone();
        edit(&mut after);
        for step in held.contents.steps_to(&after) {
            if let Err(error) = self.switch.write(&step) {
                held.is_written = false;
                if let Err(error) = self.settle(held) {
                    tracing::warn!(%error,
                        "the switch may hold a part of a job; it is removed when the switch answers");
                }
                return Err(error);
            }
        }
        held.contents = after;
        Ok(())
    }

    /// Installs a job's entries. Where a table is full that removed jobs have entries in, those go.
    fn add(&self, held: &mut Held, new: &NewJob) -> Result<(), SwitchError> {
        let install = |contents: &mut Contents| {
            contents.remove_job(new.job);
            contents.add(tables::entries(new, self.wiring.program));
            contents.add_group(tables::group(new));
        };
        let full = match self.change(held, install) {
            Err(SwitchError::TableFull { table, what }) if admission::outlives_job(&table) => {
                SwitchError::TableFull { table, what }
            }
            other => return other,
        };
        if !held.contents.clone().forget_former() {
            return Err(full);
        }
        self.change(held, |contents| {
            contents.forget_former();
        })?;
        self.change(held, install)
    }

    fn state(&self) -> State {
        let Sizes { base_port, shards, static_slots, dynamic_slots, elements, .. } = self.wiring.program;
        State { slots: static_slots, elements, base_port, shards, dynamic_slots, ..State::default() }
    }

    /// Returns the jobs, present and former.
    pub fn jobs(&self) -> Vec<(u16, HeldJob)> {
        self.lock().contents.jobs().into_iter().collect()
    }

    pub fn entries(&self) -> Vec<(u16, JobEntry)> {
        self.jobs().into_iter().map(|(job, known)| (job, known.entry())).collect()
    }

    /// Returns the counters of all jobs, by number; 0: of packets without one.
    pub fn counters(&self) -> Result<Vec<JobSeen>, SwitchError> {
        counters::all(&self.switch)
    }

    pub fn drops(&self, job: u16) -> Drops {
        drops::of_job(job, self.lock().contents.entries())
    }

    fn job_status(&self, number: u16, new: &NewJob, seen: JobSeen) -> Result<JobStatus, SwitchError> {
        let address = |hop: &WorkerEntry| SocketAddrV4::new(hop.ip.into(), hop.port);
        let counts = counters::of_workers(&self.switch, number)?;
        let workers = (0..).zip(&new.workers).zip(counts).map(|((rank, hop), seen)| WorkerStatus {
            late: None,
            ..worker_status(rank, address(hop), Some((hop.mac, hop.ifindex)), seen)
        });
        let observed = Observed {
            parents: new.parents.iter().map(address).collect(),
            seen,
            drops: self.drops(number),
            workers: workers.collect(),
        };
        Ok(JobStatus { aggregation: None, ..job_status(number, &new.active_entry(), observed) })
    }
}

impl<T: Target> DataPlane for SwitchPlane<T> {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        Ok(PlaneInfo {
            verifies_checksums: false,
            marks_overflow: false,
            bounds_loss: self.sizes().bounds_loss,
            jobs: sizes::JOBS as u16 - 1,
            ..info(Self::KIND, &self.state())
        })
    }

    fn take_over(&self, known: &[KnownJob]) -> Result<TakenOver, PlaneError> {
        take_over(self.entries(), known, |job| self.remove(job))
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        let (workers, parents) = ways(job, |to| self.wiring.hop(*to.ip(), to.port()))?;
        let installing = |error: &dyn std::error::Error| failed("installing a job", error);
        let mut new = NewJob::of(job, workers, parents).map_err(|error| installing(&error))?;
        let may_be_bounded = job.level == Level::Only && !job.terms.whole && !new.is_dynamic();
        if self.sizes().bounds_loss && may_be_bounded {
            new.entry.flags |= job_flag::LANE_BUDGET;
        }
        let mut held = self.lock();
        self.settle(&mut held).map_err(unavailable)?;
        self.check(&held.contents, &new).map_err(|error| installing(&error))?;
        counters::clear(&self.switch, new.job).map_err(unavailable)?;
        self.add(&mut held, &new).map_err(|error| installing(&error))?;
        self.reasons.set(new.job, Some(&job.terms.slots_reason));
        Ok(installed(job, &new, None))
    }

    fn resize(&self, job: u16, slots: u32, reason: &str) -> Result<(), PlaneError> {
        let resizing = |error: &dyn std::error::Error| failed("changing a job's slots", error);
        let mut held = self.lock();
        self.settle(&mut held).map_err(unavailable)?;
        let Some(HeldJob::Active(new)) = held.contents.jobs().remove(&job) else {
            return Err(resizing(&JobError::Resize { job, lane_slots: slots, before: 0 }));
        };
        let entry = resized(job, &new.active_entry(), slots).map_err(|error| resizing(&error))?;
        let workers = counters::of_workers(&self.switch, job).map_err(unavailable)?;
        if workers.iter().any(|worker| worker.counters.added > 0) {
            return Err(resizing(&JobError::Held(job)));
        }
        let entry = JobEntry { slots: entry.slots, lane_slots_log2: entry.lane_slots_log2, ..new.entry };
        self.add(&mut held, &NewJob { entry, ..new }).map_err(|error| resizing(&error))?;
        self.reasons.set(job, Some(reason));
        Ok(())
    }

    fn remove(&self, job: u16) -> Result<(), PlaneError> {
        self.reasons.set(job, None);
        let mut held = self.lock();
        if !matches!(held.contents.jobs().get(&job), Some(HeldJob::Active(_))) {
            return Ok(());
        }
        if let Err(error) = self.change(&mut held, |contents| contents.end_job(job)) {
            tracing::warn!(job, %error, "the job is removed from the switch when that answers");
            held.contents.end_job(job);
            held.is_written = false;
        }
        Ok(())
    }

    fn instance(&self) -> Result<u64, PlaneError> {
        let mut held = self.lock();
        self.settle(&mut held).map_err(unavailable)?;
        Ok(held.instance())
    }
}

impl<T: Target> AggregatorPlane for SwitchPlane<T> {
    const KIND: PlaneKind = PlaneKind::P4;

    fn status(&self) -> Result<Status, PlaneError> {
        let state = State { instance: self.instance()?, ..self.state() };
        let reading = |error: SwitchError| failed("reading the switch's counters", &error);
        let seen = self.counters().map_err(reading)?;
        let of = |job: u16| seen.get(usize::from(job)).copied().unwrap_or_default();
        let held = self.jobs();
        let active = held.iter().filter_map(|(number, held)| match held {
            HeldJob::Active(new) => Some((*number, new)),
            HeldJob::Former(_) => None,
        });
        let jobs = active.map(|(number, new)| self.job_status(number, new, of(number)));
        let jobs: Vec<JobStatus> = jobs.collect::<Result<_, _>>().map_err(reading)?;
        let former =
            held.iter().map(|(job, held)| (*job, held.entry())).filter(|(_, entry)| !is_active(entry));
        Ok(Status {
            pool_bytes: u64::from(self.sizes().cells()) * (BLOCK_ELEMENTS * ELEMENT_LEN) as u64,
            drops: DropRule::of((1..sizes::JOBS as u16).map(|job| (job, self.drops(job)))),
            counters: by_reason(|reason| seen.iter().map(|seen| seen.counters[reason as usize]).sum()),
            ended: ended(former, |job| Ok::<_, PlaneError>(of(job)))?,
            ..Status::of(Self::KIND, &state, None, jobs)
        })
    }

    fn set_drops(&self, jobs: Range<u16>, parts: Drops) -> Result<(), PlaneError> {
        let (first, end) = (jobs.start, jobs.end.min(sizes::JOBS as u16));
        if first >= end {
            let most = sizes::JOBS - 1;
            let what = format!("job {first}: the switch's program has job numbers 1 to {most}");
            return Err(PlaneError::Failed { doing: "setting intentional drops", what });
        }
        let changed = self.change(&mut self.lock(), |contents| {
            for job in first..end {
                contents.remove_drops(job);
                contents.add(drops::entries(job, parts));
            }
        });
        changed.map_err(|error| failed("setting intentional drops", &error))
    }

    fn slots_reasons(&self) -> &SlotsReasons {
        &self.reasons
    }
}

impl<T: Target> SwitchPlane<T> {
    /// Checks a job against the program's sizes, and against the other jobs.
    fn check(&self, contents: &Contents, new: &NewJob) -> Result<(), JobError> {
        if new.is_middle() {
            return Err(JobError::SwitchInMiddle);
        }
        let jobs = contents.jobs();
        let before = jobs.get(&new.job).map(HeldJob::entry).unwrap_or_default();
        let state = self.state();
        if new.is_dynamic() {
            return new.check(&State { elements: self.wiring.program.shared_elements(), ..state }, &before);
        }
        new.check(&state, &before)?;
        let JobEntry { slot_base, slots, .. } = new.entry;
        let others: Vec<_> = jobs.iter().map(|(job, known)| (*job, known.entry())).collect();
        let others = others.iter().map(|(job, entry)| (*job, entry));
        check_range(slot_base, slots, self.wiring.program.static_slots, others)
    }
}

/// Whether an entry is of a job that aggregates.
pub fn is_active(entry: &JobEntry) -> bool {
    entry.flags & job_flag::ACTIVE != 0
}

fn unavailable(error: SwitchError) -> PlaneError {
    PlaneError::Unavailable { what: error.to_string() }
}
