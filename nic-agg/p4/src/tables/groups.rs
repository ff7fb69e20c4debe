//! Multicast groups: a job's has its number, and a copy for each worker.

use sumac_agg_job::NewJob;

use super::numbers::worker;
use crate::target::{Group, Replica};

pub fn of_job(new: &NewJob) -> Group {
    let replica = |(rank, hop): (usize, &sumac_wire::tables::WorkerEntry)| Replica {
        port: hop.ifindex,
        instance: worker(rank) as u32,
    };
    Group::new(new.job.into(), new.workers.iter().enumerate().map(replica))
}
