//! Jobs whose ranks are all on one simulated host: what the daemon's tasks and threads do for them.

use sumac_host::{
    EndedFragment, FragmentKey, FragmentOutcome, FragmentTimes, JobEnd, JobId, NameRefusal, Nanos,
};
use sumac_transport::LocalSum;

use super::host::SimHost;

impl SimHost {
    /// Does what the threads for sums do. Returns whether there was anything.
    pub(super) fn run_sums(&mut self, now: Nanos) -> bool {
        let sums = std::mem::take(&mut self.sums);
        let has_some = !sums.is_empty();
        sums.into_iter().for_each(|(keys, sum)| self.sum(now, &keys, sum));
        has_some
    }

    fn sum(&mut self, now: Nanos, keys: &[FragmentKey], mut sum: LocalSum) {
        for (part, key) in sum.parts.iter_mut().zip(keys) {
            if let Some(memory) = self.handles.take_lease(*key) {
                part.buffer = Box::new(memory);
            }
        }
        let outcome = sum.run().map_or_else(FragmentOutcome::LocalFault, |()| FragmentOutcome::Complete);
        drop(sum);
        if let Some(first) = keys.first() {
            let times = FragmentTimes::default();
            self.fragment_ended(now, *first, EndedFragment { outcome, times, loss: None, left: Vec::new() });
        }
    }

    /// Returns whether something has changed.
    pub(super) fn synchronize_local(&mut self, now: Nanos, id: JobId) -> bool {
        let Some(found) = self.memberships.get(&id) else { return false };
        let (is_open, deadline) = (found.is_open, found.deadline);
        if is_open {
            let end = self.call(now, |host, _, out| host.take_end(id, out));
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
        if self.core.is_gathered(id) {
            if let Some(found) = self.memberships.get_mut(&id) {
                found.is_open = true;
            }
            return match self.call(now, |host, _, out| host.opened(id, out)) {
                Ok(()) => true,
                Err(failure) => self.refuse_local(now, id, failure),
            };
        }
        if now < deadline {
            return false;
        }
        let failure = self.call(now, |host, _, out| host.give_up_gathering(id, out));
        self.refuse_local(now, id, failure)
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
        self.core.remove_job(id);
        true
    }
}
