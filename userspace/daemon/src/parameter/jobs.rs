//! The jobs of this parameter host, and the time of their last packets.
//!
//! A dynamic job outlives its control plane. So a parameter host that registers at a restarted control plane
//! keeps its former jobs while they receive packets.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sumac_control::plane::KnownJob;
use sumac_parameter::HostJob;

/// The time without packets after which an orphaned job is removed: its workers may be computing meanwhile.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
struct Entry {
    job: HostJob,
    /// The number of packets at the last check.
    packets: u64,
    /// The time of the last check that found new packets.
    active: Instant,
    /// Whether its control plane does not know it.
    is_orphan: bool,
}

#[derive(Debug, Default)]
pub(crate) struct ParameterJobs(Mutex<HashMap<u16, Entry>>);

impl ParameterJobs {
    fn lock(&self) -> MutexGuard<'_, HashMap<u16, Entry>> {
        // Every statement leaves the map whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, job: HostJob, now: Instant) {
        self.lock().insert(job.job, Entry { job, packets: 0, active: now, is_orphan: false });
    }

    /// Returns the numbers of all jobs.
    pub(crate) fn numbers(&self) -> Vec<u16> {
        let mut numbers: Vec<u16> = self.lock().keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    pub(super) fn get(&self, job: u16) -> Option<HostJob> {
        self.lock().get(&job).map(|entry| entry.job.clone())
    }

    pub(super) fn renew(&self, job: HostJob) {
        if let Some(entry) = self.lock().get_mut(&job.job) {
            entry.job = job;
        }
    }

    /// A control plane takes over: returns the numbers of the jobs that it knows. The others are orphans.
    pub(super) fn take_over(&self, known: &[KnownJob]) -> Vec<u16> {
        let mut jobs = self.lock();
        for entry in jobs.values_mut() {
            let HostJob { job, epoch, token, .. } = entry.job;
            entry.is_orphan = !known.iter().any(|known| known.is(job, epoch, token));
        }
        jobs.iter().filter(|(_, entry)| !entry.is_orphan).map(|(job, _)| *job).collect()
    }

    pub(super) fn remove(&self, job: u16) {
        self.lock().remove(&job);
    }

    pub(super) fn clear(&self) -> Vec<u16> {
        self.lock().drain().map(|(job, _)| job).collect()
    }

    /// Checks the number of packets of each job. Returns the orphaned jobs that are idle.
    pub(super) fn check(&self, now: Instant, packets: impl Fn(u16) -> u64) -> Vec<u16> {
        let mut jobs = self.lock();
        for (job, entry) in jobs.iter_mut() {
            let seen = packets(*job);
            if seen != entry.packets {
                (entry.packets, entry.active) = (seen, now);
            }
        }
        let is_over =
            |entry: &Entry| entry.is_orphan && now.saturating_duration_since(entry.active) >= IDLE_TIMEOUT;
        jobs.iter().filter(|(_, entry)| is_over(entry)).map(|(job, _)| *job).collect()
    }

    pub(super) fn orphans(&self) -> Vec<u16> {
        let mut orphans: Vec<u16> =
            self.lock().iter().filter(|(_, entry)| entry.is_orphan).map(|(job, _)| *job).collect();
        orphans.sort_unstable();
        orphans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(job: u16) -> HostJob {
        HostJob {
            job,
            epoch: 3,
            token: 0xfeed,
            elements: 352,
            window: 256,
            slots: 64,
            lanes: 2,
            shards: 1,
            checksum: true,
            congestion_control: true,
            workers: Vec::new(),
            upstream: vec!["10.77.0.1:48700".parse().unwrap()],
        }
    }

    #[test]
    fn only_the_very_job_is_taken_over() {
        let (jobs, start) = (ParameterJobs::default(), Instant::now());
        jobs.add(job(1), start);
        let this = KnownJob { job: 1, epoch: 3, token: 0xfeed, next_epoch: None };
        for other in [
            KnownJob { job: 2, ..this },
            KnownJob { token: 1, ..this },
            KnownJob { epoch: 4, ..this },
            KnownJob { epoch: 2, next_epoch: Some(4), ..this },
        ] {
            assert_eq!(jobs.take_over(&[other]), [0; 0], "{other:?}");
            assert_eq!(jobs.orphans(), [1]);
        }
        assert_eq!(jobs.take_over(&[this]), [1]);
        assert_eq!((jobs.orphans(), jobs.get(1)), (vec![], Some(job(1))));
        jobs.renew(HostJob { epoch: 4, ..job(1) });
        assert_eq!(jobs.take_over(&[this]), [0; 0]);
        assert_eq!(jobs.take_over(&[KnownJob { next_epoch: Some(4), ..this }]), [1], "it was being renewed");
    }

    #[test]
    fn orphans_stay_while_they_see_packets() {
        let (jobs, start) = (ParameterJobs::default(), Instant::now());
        jobs.add(job(1), start);
        jobs.add(job(2), start);
        assert!(jobs.check(start + 2 * IDLE_TIMEOUT, |_| 5).is_empty(), "both have their control plane");
        jobs.take_over(&[]);
        assert_eq!(jobs.orphans(), [1, 2]);
        // Job 1 continues.
        let later = start + 3 * IDLE_TIMEOUT;
        assert_eq!(jobs.check(later, |job| if job == 1 { 6 } else { 5 }), [2]);
        jobs.remove(2);
        assert!(jobs.check(later + IDLE_TIMEOUT / 2, |_| 6).is_empty());
        assert_eq!(jobs.check(later + IDLE_TIMEOUT, |_| 6), [1]);
        jobs.add(job(1), later);
        assert!(!jobs.orphans().contains(&1), "a new job of that number");
    }
}
