//! The periodic look at an open job: operations that do not end, results that do not come, workers that have
//! left.

use sumac_control::events::Post;
use sumac_transport::JobError;

use crate::host::Host;
use crate::job::Job;
use crate::job_end::JobEnd;
use crate::watch::{Observed, Tick, Watch};
use crate::{JobId, MILLISECOND, Nanos, OperationKey, Output, Resources, SECOND};

/// The time for results on their way when a worker has left, which had received all of them.
const DEPARTURE_GRACE: Nanos = 3 * SECOND;
/// The duration after which the oldest operation is reported. The coordinator only compares it with the other
/// workers'.
const STALL_TIMEOUT: Nanos = SECOND;
/// The interval between two looks at the data path's counters, and the time without a result after which it
/// is reported.
const LOOK_INTERVAL: Nanos = 500 * MILLISECOND;
const IDLE_TIMEOUT: Nanos = SECOND;
/// The time without a result and without a report of the coordinator after which trainers are notified.
const SILENCE_TIMEOUT: Nanos = 8 * SECOND;
/// The age from which a transfer is reported whose other end is not posted.
const TRANSFER_TIMEOUT: Nanos = 3 * SECOND;

impl Host {
    /// Looks at an open job, some ten times a second, or twice while it is idle. `departed`: the workers that
    /// have left, by the control plane.
    pub fn tick(
        &mut self,
        now: Nanos,
        id: JobId,
        is_connected: bool,
        departed: &[u16],
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) -> Tick {
        if let Some(job) = self.state.jobs.get_mut(&id) {
            job.is_connected = is_connected;
        }
        let wants_results = self.needs_results(now, id, out);
        let wants_unposted = self.needs_unposted(now, id);
        self.expire_held_back(now, id, resources, out);
        self.check_oldest(now, id, out);
        self.check_undiagnosed(now, id, is_connected, out);
        if self.state.jobs.get(&id).is_some_and(Job::is_shared) {
            let departed = [departed, &self.departed_here(id)[..]].concat();
            self.check_departed(now, id, &departed, out);
            self.tick_locally(now, id, out);
        } else {
            self.check_departed(now, id, departed, out);
        }
        Tick { wants_results, wants_unposted, is_idle: self.is_idle(id) }
    }

    /// Whether nothing in the job waits for time to pass: its next look may come later.
    #[must_use]
    pub fn is_idle(&self, id: JobId) -> bool {
        let awaits_diagnosis = self.state.jobs.get(&id).and_then(|job| job.running.as_ref());
        let awaits_diagnosis = awaits_diagnosis.is_some_and(|running| running.undiagnosed.is_some());
        let has_operation = |rank: JobId| self.state.operations.of_job(rank).next().is_some();
        !awaits_diagnosis && !self.ranks_of(id).into_iter().any(has_operation)
    }

    /// Records a counter that [`Host::tick`] has asked for.
    pub fn observe(&mut self, now: Nanos, id: JobId, observed: Observed, out: &mut Vec<Output>) {
        match observed {
            Observed::Results(results) => self.check_progress(now, id, results, out),
            Observed::Unposted(keys) if self.state.jobs.get(&id).is_some_and(Job::is_shared) => {
                self.set_unposted(id, &keys);
            }
            Observed::Unposted(keys) => self.check_transfers(now, id, &keys, out),
        }
    }

    fn needs_results(&mut self, now: Nanos, id: JobId, out: &mut Vec<Output>) -> bool {
        let Some(running) = self.running_mut(id) else { return false };
        let Watch { oldest, looked_at_results, results, .. } = &mut running.watch;
        let is_stalled = oldest.is_some_and(|(_, since, _)| now.saturating_sub(since) >= STALL_TIMEOUT);
        if !is_stalled {
            let results = *results;
            self.on_progress(now, id, results, out);
            return false;
        }
        let is_due = now.saturating_sub(*looked_at_results) >= LOOK_INTERVAL;
        if is_due {
            *looked_at_results = now;
        }
        is_due
    }

    /// Reports an operation without results, and the return of results.
    fn check_progress(&mut self, now: Nanos, id: JobId, results: Option<u64>, out: &mut Vec<Output>) {
        let oldest = self.oldest(id);
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let Some(running) = &mut job.running else { return };
        let watch = &mut running.watch;
        let Some(oldest) = oldest.filter(|_| results == watch.results) else {
            return self.on_progress(now, id, results, out);
        };
        let idle = now.saturating_sub(watch.progressed);
        let is_silent = idle >= SILENCE_TIMEOUT && !watch.is_wait_reported;
        if idle >= IDLE_TIMEOUT && watch.idle != Some(oldest.operation) {
            watch.idle = Some(oldest.operation);
            job.post(id, Post::Idle(Some(oldest.clone())), out);
        }
        if is_silent {
            let message = format!(
                "{} has had no result for 8s, and the control plane does not say for which worker it waits",
                oldest.text
            );
            self.report_waiting(id, &message, &[], out);
        }
    }

    fn on_progress(&mut self, now: Nanos, id: JobId, results: Option<u64>, out: &mut Vec<Output>) {
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let Some(running) = &mut job.running else { return };
        let watch = &mut running.watch;
        (watch.results, watch.progressed, watch.looked_at_results) = (results, now, now);
        watch.is_wait_reported = false;
        if watch.idle.take().is_some() {
            job.post(id, Post::Idle(None), out);
        }
    }

    /// Notifies the trainers that an operation waits for these ranks; none: they are not known.
    pub(crate) fn report_waiting(&mut self, id: JobId, message: &str, ranks: &[u16], out: &mut Vec<Output>) {
        if let Some(running) = self.running_mut(id) {
            running.watch.is_wait_reported = true;
        }
        for id in self.ranks_of(id) {
            self.notify_waiting(id, message, ranks, out);
        }
        out.push(Output::Warn { job: id, message: message.to_owned(), ranks: ranks.to_vec() });
    }

    fn needs_unposted(&mut self, now: Nanos, id: JobId) -> bool {
        let Some(running) = self.running_mut(id) else { return false };
        if !running.terms.is_direct() {
            // Jobs of other modes have no transfers.
            return false;
        }
        let ranks = self.ranks_of(id).into_iter();
        let own = ranks.flat_map(|rank| self.state.operations.of_job(rank)).map(|(_, operation)| operation);
        let transfers = own.filter(|operation| operation.transfer().is_some());
        let oldest = transfers.map(|operation| operation.submitted).min();
        let is_old = oldest.is_some_and(|since| now.saturating_sub(since) >= TRANSFER_TIMEOUT);
        let Some(running) = self.running_mut(id) else { return false };
        let watch = &mut running.watch;
        if !is_old {
            watch.unposted.clear();
            self.set_unposted(id, &[]);
            return false;
        }
        let is_due = watch.looked_at_transfers.is_none_or(|at| now.saturating_sub(at) >= LOOK_INTERVAL);
        if is_due {
            watch.looked_at_transfers = Some(now);
        }
        is_due
    }

    /// Notifies the trainers of transfers whose other end is not posted. Only two workers know of a transfer,
    /// so it is not reported to the control plane.
    pub(crate) fn check_transfers(
        &mut self,
        now: Nanos,
        id: JobId,
        keys: &[OperationKey],
        out: &mut Vec<Output>,
    ) {
        let unposted = self.unposted(now, id, keys);
        let Some(running) = self.running_mut(id) else { return };
        let Some((keys, ranks, message)) = unposted else { return running.watch.unposted.clear() };
        let is_new = keys.iter().any(|key| !running.watch.unposted.contains(key));
        running.watch.unposted = keys;
        if is_new {
            self.notify_waiting(id, &message, &ranks, out);
            out.push(Output::Warn { job: id, message, ranks });
        }
    }

    /// Returns those of these transfers, whose other end was not posted, that are old, the ranks that have
    /// not posted them, and a message.
    fn unposted(
        &self,
        now: Nanos,
        id: JobId,
        keys: &[OperationKey],
    ) -> Option<(Vec<OperationKey>, Vec<u16>, String)> {
        let own = keys.iter().filter_map(|key| Some((*key, self.state.operations.get(key)?)));
        let mut old: Vec<_> = own
            .filter(|(_, operation)| {
                operation.job == id && now.saturating_sub(operation.submitted) >= TRANSFER_TIMEOUT
            })
            .filter_map(|(key, operation)| Some((key, operation.submitted, operation.transfer()?)))
            .collect();
        old.sort_by_key(|(_, since, _)| *since);
        let (_, since, first) = old.first()?;
        let mut ranks: Vec<u16> = old.iter().map(|(_, _, transfer)| transfer.peer).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let other = if first.sends() { "post_recv" } else { "post_send" };
        let more = match old.len() - 1 {
            0 => String::new(),
            more => format!("; {more} more transfers wait likewise, for ranks {ranks:?} in all"),
        };
        let waited = now.saturating_sub(*since) / SECOND;
        let message =
            format!("{first} has waited for {waited} s for the {other} of rank {}{more}", first.peer);
        Some((old.iter().map(|(key, _, _)| *key).collect(), ranks, message))
    }

    fn check_oldest(&mut self, now: Nanos, id: JobId, out: &mut Vec<Output>) {
        let oldest = self.oldest(id);
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let Some(running) = &mut job.running else { return };
        let Some(oldest) = oldest else { return running.watch.oldest = None };
        match &mut running.watch.oldest {
            Some((known, since, reported)) if *known == oldest.operation => {
                if !*reported && now.saturating_sub(*since) >= STALL_TIMEOUT {
                    *reported = true;
                    job.post(id, Post::Stalled(oldest), out);
                }
            }
            known => *known = Some((oldest.operation, now, false)),
        }
    }

    fn check_undiagnosed(&mut self, now: Nanos, id: JobId, is_connected: bool, out: &mut Vec<Output>) {
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let Some(running) = &mut job.running else { return };
        let due = running.undiagnosed.take_if(|undiagnosed| undiagnosed.is_due(now, is_connected));
        if let Some(undiagnosed) = due {
            self.end_job(id, undiagnosed.end, out);
        }
    }

    pub(crate) fn check_departed(&mut self, now: Nanos, id: JobId, departed: &[u16], out: &mut Vec<Output>) {
        let awaited = self.awaited(id, departed);
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let Some(running) = &mut job.running else { return };
        let watch = &mut running.watch;
        let new = departed.iter().filter(|rank| !watch.departed.contains(rank));
        // The data path has workers, each once.
        let local = running.terms.local_world.max(1);
        let workers = new.filter(|rank| rank.is_multiple_of(local)).map(|rank| rank / local);
        out.extend(workers.map(|worker| Output::PeerLeft { job: id, worker }));
        watch.departed = departed.to_vec();
        let Some(rank) = awaited else {
            watch.deserted = None;
            return;
        };
        let since = *watch.deserted.get_or_insert(now);
        if now.saturating_sub(since) < DEPARTURE_GRACE {
            return;
        }
        let reason = format!("has left job {:?} while sums were outstanding here", job.name);
        let message = "sums wait for workers that have left".to_owned();
        out.push(Output::Warn { job: id, message, ranks: departed.to_vec() });
        self.end_job(id, JobEnd::ours(JobError::Worker { rank, reason }), out);
    }

    /// Returns one of the ranks that have left whose part in an outstanding operation is missing.
    fn awaited(&self, id: JobId, departed: &[u16]) -> Option<u16> {
        if departed.is_empty() {
            return None;
        }
        let mut awaited = None;
        for (_, operation) in self.state.operations.of_job(id) {
            match operation.transfer() {
                Some(transfer) => {
                    awaited = awaited.or(Some(transfer.peer).filter(|peer| departed.contains(peer)));
                }
                None => return departed.first().copied(),
            }
        }
        awaited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finished::Outcome;
    use crate::operation::tests::operation;
    use crate::operations::tests::visits;
    use crate::quotas::QuotaLimits;
    use crate::{HostConfig, HostState};

    #[test]
    fn a_look_at_a_job_passes_no_operation_of_another() {
        let config = HostConfig {
            quotas: QuotaLimits { mapped: 0, held: 0, descriptors: 0 },
            backend: "udp".into(),
            daemon: "sumac".into(),
            has_spans: false,
            sum_threads: 1,
        };
        let mut host = Host::resume(config, HostState::default());
        for (job, count) in [(1, 3), (2, 100_000)] {
            for op in 0..count {
                let key = OperationKey { connection: job, op };
                let mut own = operation(1);
                own.job = job;
                host.state.operations.insert(key, own);
            }
        }
        let look = |host: &mut Host| {
            host.needs_unposted(10 * SECOND, 1);
            host.tick_locally(10 * SECOND, 1, &mut Vec::new());
            assert_eq!(host.held_back(1).len(), 0);
            assert_eq!(host.awaited(1, &[]), None);
            assert_eq!(host.awaited(1, &[4]), Some(4));
        };
        // One awaits a worker that has left.
        assert_eq!(visits(|| look(&mut host)), 1);
        let key = |op| OperationKey { connection: 1, op };
        host.state.operations.hold_back(key(2), Outcome::default(), SECOND);
        assert_eq!(visits(|| assert_eq!(host.held_back(1).len(), 1)), 1);
        host.state.operations.remove(&key(2));
        assert_eq!(host.held_back(1).len(), 0);
        assert_eq!(visits(|| assert_eq!(host.state.operations.of_connection(1).count(), 2)), 2);
        assert_eq!(host.leases().count(), 0);
        host.state.operations.remove(&key(1));
        assert_eq!(host.state.operations.of_job(1).map(|(key, _)| key.op).collect::<Vec<_>>(), [0]);
    }
}
