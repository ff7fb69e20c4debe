//! The aggregator of a node: the real one for hosts, one for each shard, as its UDP threads have them.

use std::{collections::BTreeMap, net::SocketAddrV4};

use sumac_agg_host::{Answer, HostAggregator, JobError, NewJob, NoMemory};
use sumac_wire::{Reason, tables::job_flag};

use crate::{
    events::{MILLI, Nanos},
    packet::PORT,
};

/// What an aggregator has room for.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Shards.
    pub shards: u16,
    /// Slots of each shard for static jobs.
    pub slots: u32,
    /// Slots of each shard that dynamic jobs share.
    pub dynamic_slots: u32,
    /// Most elements of a chunk.
    pub elements: u16,
    /// How long nobody may add to a dynamic slot before it can be taken.
    pub patience: Nanos,
}

/// What is to be done with a packet, which is its own answer now.
pub(crate) enum Outcome {
    Silent,
    /// Send it there, with these ECN bits ([`crate::packet::ecn`]).
    One(u8, SocketAddrV4),
    /// Send it to all below, of this job.
    All(u8, u16),
}

/// An aggregator.
pub struct Aggregator {
    capacity: Capacity,
    shards: Vec<HostAggregator>,
    jobs: BTreeMap<u16, NewJob>,
    /// Whether its data path is gone: the node passes on what is not for it, and answers nothing.
    pub is_dead: bool,
    /// Whether what it sends up is lost, and what comes from there for it. Others' packets pass the node as ever.
    pub is_cut: bool,
}

impl Aggregator {
    /// One without jobs.
    ///
    /// # Errors
    /// When its slots do not fit this machine's memory.
    pub fn new(capacity: Capacity) -> Result<Aggregator, NoMemory> {
        let shards = shards(&capacity)?;
        Ok(Aggregator { capacity, shards, jobs: BTreeMap::new(), is_dead: false, is_cut: false })
    }

    /// Aggregates for a job from now on.
    ///
    /// # Errors
    /// When the job cannot have what it asks for.
    pub fn install(&mut self, number: u16, job: &NewJob) -> Result<(), JobError> {
        for shard in &mut self.shards {
            shard.remove(number);
            shard.install(number, job.clone())?;
        }
        self.jobs.insert(number, job.clone());
        Ok(())
    }

    /// Forgets a job; slots that hold something of it keep it.
    pub fn remove(&mut self, number: u16) {
        self.shards.iter_mut().for_each(|shard| {
            shard.remove(number);
        });
        self.jobs.remove(&number);
    }

    /// Loses its memory, as by a restart, and is told its dynamic jobs again. Static ones would have to begin anew.
    ///
    /// # Errors
    /// As [`Aggregator::install`].
    pub fn restart(&mut self) -> Result<(), JobError> {
        let Ok(shards) = shards(&self.capacity) else { return Ok(()) };
        self.shards = shards;
        self.is_dead = false;
        let jobs = std::mem::take(&mut self.jobs);
        let is_dynamic = |job: &NewJob| job.entry.flags & job_flag::DYNAMIC != 0;
        jobs.iter()
            .filter(|(_, job)| is_dynamic(job))
            .try_for_each(|(number, job)| self.install(*number, job))
    }

    /// Packets by what became of them, in all shards.
    pub fn counter(&self, reason: Reason) -> u64 {
        self.shards.iter().map(|shard| shard.counter(reason)).sum()
    }

    /// The same of one job.
    pub fn job_counter(&self, job: u16, reason: Reason) -> u64 {
        self.shards.iter().map(|shard| shard.job_seen(job).counters[reason as usize]).sum()
    }

    /// A packet that came to one of its own sockets.
    pub(crate) fn take(
        &mut self,
        now: Nanos,
        source: SocketAddrV4,
        own: SocketAddrV4,
        payload: &mut [u8],
        marked: bool,
    ) -> Outcome {
        let shard = usize::from(own.port() - PORT);
        let Some(aggregator) = self.shards.get_mut(shard).filter(|_| !self.is_dead) else {
            return Outcome::Silent;
        };
        aggregator.set_now((now / MILLI) as u32);
        let is_below = |socket: SocketAddrV4| {
            self.jobs.values().any(|job| job.workers.iter().any(|below| below.ip() == socket.ip()))
        };
        if self.is_cut && !is_below(source) {
            return Outcome::Silent;
        }
        let answer = match marked {
            true => aggregator.on_marked_packet(*source.ip(), payload),
            false => aggregator.on_packet(*source.ip(), payload),
        };
        match answer {
            Answer::None(_) => Outcome::Silent,
            Answer::One(_, destination) if self.is_cut && !is_below(destination) => Outcome::Silent,
            Answer::One(_, destination) => Outcome::One(aggregator.ecn(job_of(payload)), destination),
            Answer::All(_, job) => Outcome::All(aggregator.ecn(job), job),
        }
    }

    /// The senders below it that a result of a job goes to, which came by this socket.
    pub(crate) fn below(&self, own: SocketAddrV4, job: u16) -> &[SocketAddrV4] {
        let shard = usize::from(own.port() - PORT);
        self.shards.get(shard).map_or(&[], |shard| shard.workers(job))
    }
}

fn shards(capacity: &Capacity) -> Result<Vec<HostAggregator>, NoMemory> {
    let shard = |shard| {
        let one = HostAggregator::of_shard(shard, capacity.shards, capacity.slots, capacity.elements)?;
        let mut one = one.with_dynamic(capacity.dynamic_slots)?;
        one.set_patience((capacity.patience / MILLI) as u32);
        Ok(one)
    };
    (0..capacity.shards).map(shard).collect()
}

fn job_of(payload: &[u8]) -> u16 {
    let at = sumac_wire::header::offset::JOB;
    payload.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}
