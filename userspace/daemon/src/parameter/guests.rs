//! The jobs that are summed here, and whether anybody still sends for them.
//!
//! A dynamic job outlives its control plane: its workers go on. So a parameter host that enters at a control plane anew
//! keeps the jobs of before for as long as they see packets.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sumac_control::plane::KnownJob;
use sumac_parameter::HostJob;

/// How long a job that its control plane has forgotten may be without packets: its workers may be computing meanwhile.
const IDLE: Duration = Duration::from_secs(60);

/// One job.
#[derive(Clone, Debug)]
struct Guest {
    /// What is known of it.
    job: HostJob,
    /// How many packets had come at the last look.
    packets: u64,
    /// When the last look found more than the one before.
    active: Instant,
    /// Its control plane has forgotten it.
    is_orphan: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Guests(Mutex<HashMap<u16, Guest>>);

impl Guests {
    fn lock(&self) -> MutexGuard<'_, HashMap<u16, Guest>> {
        // Every statement leaves the map whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, job: HostJob, now: Instant) {
        self.lock().insert(job.job, Guest { job, packets: 0, active: now, is_orphan: false });
    }

    /// What is known of a job.
    pub(super) fn get(&self, job: u16) -> Option<HostJob> {
        self.lock().get(&job).map(|guest| guest.job.clone())
    }

    /// A job has another incarnation.
    pub(super) fn renew(&self, job: HostJob) {
        if let Some(guest) = self.lock().get_mut(&job.job) {
            guest.job = job;
        }
    }

    /// A control plane takes over: returns the numbers of the jobs that it knows. The others are orphans.
    pub(super) fn take_over(&self, known: &[KnownJob]) -> Vec<u16> {
        let mut guests = self.lock();
        for guest in guests.values_mut() {
            let HostJob { job, epoch, token, .. } = guest.job;
            guest.is_orphan = !known.iter().any(|known| known.is(job, epoch, token));
        }
        guests.iter().filter(|(_, guest)| !guest.is_orphan).map(|(job, _)| *job).collect()
    }

    pub(super) fn remove(&self, job: u16) {
        self.lock().remove(&job);
    }

    /// Whether a job is here that its control plane has forgotten.
    pub(super) fn has_orphan(&self, job: u16) -> bool {
        self.lock().get(&job).is_some_and(|guest| guest.is_orphan)
    }

    /// Forgets all, and gives their numbers.
    pub(super) fn clear(&self) -> Vec<u16> {
        self.lock().drain().map(|(job, _)| job).collect()
    }

    /// Looks at how many packets have come for each job. Gives the orphans that are to be removed.
    pub(super) fn look(&self, now: Instant, packets: impl Fn(u16) -> u64) -> Vec<u16> {
        let mut guests = self.lock();
        for (job, guest) in guests.iter_mut() {
            let seen = packets(*job);
            if seen != guest.packets {
                (guest.packets, guest.active) = (seen, now);
            }
        }
        let is_over = |guest: &Guest| guest.is_orphan && now.saturating_duration_since(guest.active) >= IDLE;
        guests.iter().filter(|(_, guest)| is_over(guest)).map(|(job, _)| *job).collect()
    }

    /// The orphans.
    pub(super) fn orphans(&self) -> Vec<u16> {
        let mut orphans: Vec<u16> =
            self.lock().iter().filter(|(_, guest)| guest.is_orphan).map(|(job, _)| *job).collect();
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
            linear: false,
            lanes: 2,
            shards: 1,
            checksum: true,
            workers: Vec::new(),
            upstream: vec!["10.77.0.1:48700".parse().unwrap()],
        }
    }

    #[test]
    fn only_the_very_job_is_taken_over() {
        let (guests, start) = (Guests::default(), Instant::now());
        guests.add(job(1), start);
        let this = KnownJob { job: 1, epoch: 3, token: 0xfeed, next_epoch: None };
        for other in [
            KnownJob { job: 2, ..this },
            KnownJob { token: 1, ..this },
            KnownJob { epoch: 4, ..this },
            KnownJob { epoch: 2, next_epoch: Some(4), ..this },
        ] {
            assert_eq!(guests.take_over(&[other]), [0; 0], "{other:?}");
            assert_eq!(guests.orphans(), [1]);
        }
        assert_eq!(guests.take_over(&[this]), [1]);
        assert_eq!((guests.orphans(), guests.get(1)), (vec![], Some(job(1))));
        guests.renew(HostJob { epoch: 4, ..job(1) });
        assert_eq!(guests.take_over(&[this]), [0; 0]);
        assert_eq!(
            guests.take_over(&[KnownJob { next_epoch: Some(4), ..this }]),
            [1],
            "it was being renewed"
        );
    }

    #[test]
    fn orphans_stay_while_they_see_packets() {
        let (guests, start) = (Guests::default(), Instant::now());
        guests.add(job(1), start);
        guests.add(job(2), start);
        assert!(guests.look(start + 2 * IDLE, |_| 5).is_empty(), "both have their control plane");
        guests.take_over(&[]);
        assert_eq!(guests.orphans(), [1, 2]);
        // Job 1 goes on.
        let later = start + 3 * IDLE;
        assert_eq!(guests.look(later, |job| if job == 1 { 6 } else { 5 }), [2]);
        guests.remove(2);
        assert!(guests.look(later + IDLE / 2, |_| 6).is_empty());
        assert_eq!(guests.look(later + IDLE, |_| 6), [1]);
        guests.add(job(1), later);
        assert!(!guests.has_orphan(1), "a new job of that number");
    }
}
