//! Ranks of a simulated host without a membership of their own: what the daemon's tasks and threads do for
//! them.

use sumac_host::{EndedFragment, FragmentOutcome, FragmentTimes, JobEnd, JobId, NameRefusal, Nanos, RankSum};

use super::host::SimHost;

impl SimHost {
    /// Does what the threads for sums do. Returns whether there was anything.
    pub(super) fn run_sums(&mut self, now: Nanos) -> bool {
        let sums = std::mem::take(&mut self.sums);
        let has_some = !sums.is_empty();
        sums.into_iter().for_each(|ranks| self.sum(now, ranks));
        has_some
    }

    fn sum(&mut self, now: Nanos, ranks: RankSum) {
        let first = ranks.keys.first().copied();
        let mut sum = self.handles.sum(ranks);
        let outcome = sum.run().map_or_else(FragmentOutcome::LocalFault, |()| FragmentOutcome::Complete);
        drop(sum);
        if let Some(first) = first {
            let times = FragmentTimes::default();
            self.fragment_ended(now, first, EndedFragment { outcome, times, loss: None, left: Vec::new() });
        }
    }

    /// Returns whether something has changed.
    pub(super) fn synchronize_local(&mut self, now: Nanos, id: JobId) -> bool {
        let Some(found) = self.memberships.get(&id) else { return false };
        let (is_open, deadline) = (found.is_open, found.deadline);
        if is_open {
            let taken = self.call(now, |host, _, out| host.take_end(id, out));
            let Some(found) = self.memberships.get_mut(&id) else { return false };
            found.end = taken.or(found.end.take());
            // Its memory may be in use.
            let end = found.end.clone().filter(|_| !self.core.is_summing(id));
            return end.is_some_and(|end| self.finish_local(now, id, &end));
        }
        if let Some(failure) = self.core.interruption(id) {
            return self.refuse_local(now, id, failure);
        }
        match self.call(now, |host, handles, out| host.take_name(id, handles, out)) {
            Err(NameRefusal::Refused(failure)) => return self.refuse_local(now, id, failure),
            Err(NameRefusal::Held(holder)) if now >= deadline => {
                let text = format!("rank {holder} has it");
                let failure = sumac_api::Failure::new(sumac_api::Code::RankTaken, text);
                return self.refuse_local(now, id, failure);
            }
            Err(NameRefusal::Held(_)) => return false,
            Ok(()) => {}
        }
        if self.core.is_running(id) {
            if let Some(found) = self.memberships.get_mut(&id) {
                found.is_open = true;
            }
            return match self.call(now, |host, _, out| host.opened(id, out)) {
                Ok(()) => true,
                Err(failure) => self.refuse_local(now, id, failure),
            };
        }
        if now < deadline || self.core.is_gathered(id) {
            return false;
        }
        let failure = self.call(now, |host, _, out| host.give_up_gathering(id, out));
        self.refuse_local(now, id, failure)
    }

    /// Whether the host's other ranks have come, which a job waits for before it joins the other hosts.
    pub(super) fn is_gathered(&mut self, now: Nanos, id: JobId) -> Result<bool, sumac_api::Failure> {
        let Some(found) = self.memberships.get(&id) else { return Ok(false) };
        if found.spec.ranks_per_worker() == 1 || self.core.is_gathered(id) {
            return Ok(true);
        }
        if now < found.deadline {
            return Ok(false);
        }
        Err(self.call(now, |host, _, out| host.give_up_gathering(id, out)))
    }

    /// Takes the end of a job, once the host's other ranks do not need its engines any more.
    pub(super) fn take_end(&mut self, now: Nanos, id: JobId) -> Option<JobEnd> {
        let taken = self.call(now, |host, _, out| host.take_end(id, out));
        let found = self.memberships.get_mut(&id)?;
        found.end = taken.or(found.end.take());
        let end = found.end.clone()?;
        if let JobEnd::Closed { request } = end
            && self.core.has_other_ranks(id)
            && !self.core.is_over(id)
        {
            if !self.core.is_summing(id) {
                self.call(now, |host, handles, out| host.close_rank(id, request, handles, out));
            }
            return None;
        }
        Some(end)
    }

    fn refuse_local(&mut self, now: Nanos, id: JobId, failure: sumac_api::Failure) -> bool {
        self.memberships.remove(&id);
        self.call(now, |host, handles, out| host.not_opened(id, failure, handles, out));
        true
    }

    fn finish_local(&mut self, now: Nanos, id: JobId, end: &JobEnd) -> bool {
        self.memberships.remove(&id);
        self.call(now, |host, handles, out| host.finish(now, id, end, handles, out));
        if let JobEnd::Closed { request } = end {
            self.call(now, |host, handles, out| host.closed(id, *request, handles, out));
        }
        self.core.remove_job(id, &mut self.handles);
        true
    }
}
