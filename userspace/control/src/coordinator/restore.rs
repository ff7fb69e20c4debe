//! The return of running jobs from the journal's records, and the records of what has changed since.

use std::collections::{HashMap, VecDeque};

use rand::RngCore;
use sumac_job::LONGEST_OUTAGE_S;

use super::{
    Coordinator,
    ids::RunId,
    join_limits::JoinLimits,
    names::Names,
    record::{Record, Restart},
    run::{InstallState, Phase, Run},
    silence::SilenceClock,
    time::Time,
};
use crate::{
    failure::JobFailure,
    message::End,
    plane::{LastEpoch, PlaneInfo, TakenOver},
    pool::Pool,
};

impl Coordinator {
    /// A coordinator that takes up the running jobs of an earlier one; none with [`Restart::default`].
    /// `taken` is this aggregator's answer to [`crate::DataPlane::take_over`]. `random` makes tokens: it must
    /// not be guessable outside of tests.
    pub fn restore(
        now: Time,
        plane: PlaneInfo,
        instance: u64,
        taken: &TakenOver,
        restart: Restart,
        random: Box<dyn RngCore + Send>,
    ) -> Coordinator {
        let mut names = Names::new(&taken.last_epochs);
        names.raise(&restart.epochs);
        let next = |last: Option<u64>| last.map_or(0, |last| last + 1);
        let mut coordinator = Coordinator {
            pool: Pool::new(plane.slots),
            plane,
            names,
            next_run: next(restart.runs.keys().next_back().map(|id| id.0)),
            next_rack: next(restart.racks.keys().next_back().map(|id| id.0)),
            runs: restart.runs,
            members: HashMap::default(),
            racks: restart.racks,
            lost_racks: Vec::new(),
            missed_failures: VecDeque::new(),
            stealing: true,
            rejoin_grace: Time::ZERO,
            longest_outage: Time::from_secs(LONGEST_OUTAGE_S.into()),
            join_limits: JoinLimits::NONE,
            actions: VecDeque::default(),
            records: vec![Record::Instance(instance)],
            random,
            instance,
            plane_down: None,
            last_tick: now,
            silence: SilenceClock::default(),
            stopping: false,
        };
        coordinator.racks.values_mut().for_each(|rack| rack.is_recorded = true);
        for id in coordinator.runs_with(|_| true) {
            coordinator.restore_run(now, id, restart.instance, taken);
        }
        coordinator.await_reconnects(now);
        coordinator
    }

    fn restore_run(&mut self, now: Time, id: RunId, before: u64, taken: &TakenOver) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        (run.phase, run.install, run.revision) = (Phase::Running, InstallState::Installed, 1);
        run.measured_by = now;
        run.on_recorded();
        tracing::info!(name = run.name, job = run.job, epoch = run.epoch(), "a job of the journal goes on");
        self.names.restore(&run.name, run.job, id);
        self.names.raise(&[LastEpoch { job: run.job, epoch: run.epoch() }]);
        let members = run.members.iter().filter(|(_, member)| !member.departed);
        self.members.extend(members.map(|(rank, member)| (member.id, (id, *rank))));
        let has_it = before == self.instance && taken.jobs.contains(&run.job);
        run.range = run.range.filter(|range| has_it && self.pool.take_at(*range));
        match run.outlives_aggregators() {
            true if !has_it => self.mark_run_missing(now, id, None),
            false if !has_it || run.range.is_none() => {
                self.end(id, End::Failed(JobFailure::state_lost(before, self.instance)));
            }
            _ => {}
        }
        let Some(run) = self.runs.get_mut(&id) else { return };
        run.is_renewal_due = run.next_epoch.is_some();
        self.tune(id);
    }

    /// Returns the records since the last call. They go into the journal before anybody acts on what has
    /// changed.
    pub fn poll_records(&mut self) -> Vec<Record> {
        let mut records = std::mem::take(&mut self.records);
        for (id, run) in &mut self.runs {
            if std::mem::take(&mut run.is_changed) && run.phase == Phase::Running {
                run.is_unrecorded = true;
                records.extend(record(*id, run));
            }
        }
        records
    }

    /// Returns records of all that must not be forgotten, in place of all earlier ones.
    pub fn all_records(&self) -> Vec<Record> {
        let mut records = vec![Record::Instance(self.instance), Record::Epochs(self.names.epochs())];
        let racks = self.racks.iter().map(|(id, rack)| Record::Rack { id: *id, rack: rack.clone() });
        records.extend(racks);
        let running = self.runs.iter().filter(|(_, run)| run.phase == Phase::Running);
        records.extend(running.filter_map(|(id, run)| record(*id, run)));
        records
    }
}

fn record(id: RunId, run: &Run) -> Option<Record> {
    let json = serde_json::to_string(run);
    json.inspect_err(|error| tracing::error!(%error, "a job has no JSON form"))
        .ok()
        .map(|json| Record::Run(id, json))
}
