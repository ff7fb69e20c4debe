//! The aggregator of a node: one [`HostAggregator`] for each shard, as the UDP threads of `sumac-agg serve`
//! have them.

use std::{collections::BTreeMap, net::SocketAddrV4};

use sumac_agg_host::{Answer, HostAggregator, NoMemory};
use sumac_agg_job::{JobError, NewJob};
use sumac_wire::{
    Header, Reason, admit,
    header::{HEADER_LEN, flag},
};

use crate::{
    address::PORT,
    events::{MILLI, Nanos},
    packet::ecn,
};

/// Memory of an aggregator.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    pub shards: u16,
    /// Slots of each shard for static jobs.
    pub slots: u32,
    /// Slots of each shard that dynamic jobs share.
    pub dynamic_slots: u32,
    /// Most elements of a chunk.
    pub elements: u16,
    /// Age at which an incomplete dynamic slot can be taken by another chunk.
    pub slot_timeout: Nanos,
}

/// The result of one packet at an aggregator.
pub(crate) struct Handled {
    /// Destinations of the answer that replaced the packet.
    pub destinations: Vec<SocketAddrV4>,
    /// ECN bits of the answer ([`crate::packet::ecn`]).
    pub ecn: u8,
    /// `None` when the aggregator did not see the packet.
    pub reason: Option<Reason>,
    /// Whether the sender's elements were added to a slot.
    pub added: bool,
}

impl Handled {
    const UNSEEN: Handled = Handled { destinations: Vec::new(), ecn: 0, reason: None, added: false };
}

/// An aggregator with the faults that a test injects.
pub struct Aggregator {
    capacity: Capacity,
    shards: Vec<HostAggregator>,
    jobs: BTreeMap<u16, NewJob>,
    /// The data path is down: packets to it are lost, and the node forwards all others.
    pub is_dead: bool,
    /// Packets between it and its parents are lost.
    pub is_cut: bool,
    /// Packets of this sender to it are lost.
    pub deaf_to: Option<SocketAddrV4>,
    /// Its frames have room for the result that a contribution without values completes.
    pub has_room: bool,
}

impl Aggregator {
    pub fn new(capacity: Capacity) -> Result<Aggregator, NoMemory> {
        let shards = shards(&capacity)?;
        let jobs = BTreeMap::new();
        Ok(Aggregator {
            capacity,
            shards,
            jobs,
            is_dead: false,
            is_cut: false,
            deaf_to: None,
            has_room: false,
        })
    }

    /// Installs a job, in place of one with the same number.
    pub fn install(&mut self, job: &NewJob, first_chunk: u32) -> Result<(), JobError> {
        let number = job.job;
        for shard in &mut self.shards {
            shard.remove(number);
            shard.install(job)?;
            if !job.is_dynamic() {
                shard.start_streams_at(number, first_chunk);
            }
        }
        self.jobs.insert(number, job.clone());
        Ok(())
    }

    /// Removes a job; slots keep what they hold of it.
    pub fn remove(&mut self, number: u16) {
        self.shards.iter_mut().for_each(|shard| {
            shard.remove(number);
        });
        self.jobs.remove(&number);
    }

    /// Loses its memory, as by a restart. The control plane installs dynamic jobs again; static jobs need a
    /// new epoch.
    pub fn restart(&mut self) -> Result<(), JobError> {
        let Ok(shards) = shards(&self.capacity) else { return Ok(()) };
        self.shards = shards;
        self.is_dead = false;
        let jobs = std::mem::take(&mut self.jobs);
        jobs.values().filter(|job| job.is_dynamic()).try_for_each(|job| self.install(job, 0))
    }

    /// Packets of all shards by reason.
    pub fn counter(&self, reason: Reason) -> u64 {
        self.shards.iter().map(|shard| shard.counter(reason)).sum()
    }

    /// Packets of one job by reason.
    pub fn job_counter(&self, job: u16, reason: Reason) -> u64 {
        self.shards.iter().map(|shard| shard.watch.job(job).counters[reason as usize]).sum()
    }

    /// Dynamic slots that hold a chunk.
    pub fn slots_in_use(&self) -> u32 {
        self.shards.iter().map(HostAggregator::held).sum()
    }

    /// Handles a packet with these ECN bits that was addressed to it.
    pub(crate) fn handle(
        &mut self,
        now: Nanos,
        source: SocketAddrV4,
        own: SocketAddrV4,
        payload: &mut Vec<u8>,
        bits: u8,
    ) -> Handled {
        let is_below = |socket: SocketAddrV4| {
            self.jobs.values().any(|job| job.workers.iter().any(|below| below.ip == socket.ip().to_bits()))
        };
        let is_unheard = self.deaf_to.is_some_and(|sender| sender.ip() == source.ip());
        if self.is_dead || is_unheard || self.is_cut && !is_below(source) {
            return Handled::UNSEEN;
        }
        let Some(shard) = self.shards.get_mut(usize::from(own.port() - PORT)) else { return Handled::UNSEEN };
        shard.set_now((now / MILLI) as u32);
        if let Some(header) = shard.with_zeros(*source.ip(), payload).filter(|_| self.has_room) {
            *payload = header.to_bytes().to_vec();
            payload.resize(HEADER_LEN + usize::from(header.elements) * size_of::<u32>(), 0);
        }
        let header = Header::read(&**payload, 0, payload.len()).ok();
        // An exponent round and a question carry no elements.
        let carries = |header: &Header| !header.has(flag::EXPONENT | flag::QUERY);
        let before = added(shard, header.as_ref());
        let answer = match bits == ecn::MARKED {
            true => shard.on_marked_packet(*source.ip(), payload),
            false => shard.on_packet(*source.ip(), payload),
        };
        let destinations = match answer {
            Answer::None(_) => Vec::new(),
            Answer::One(_, destination, _) if self.is_cut && !is_below(destination) => Vec::new(),
            Answer::One(_, destination, _) => vec![destination],
            Answer::All(_, job) => shard.workers(job).to_vec(),
        };
        Handled {
            destinations,
            ecn: if bits == ecn::NOT_CAPABLE { ecn::NOT_CAPABLE } else { ecn::CAPABLE },
            reason: Some(answer.reason()),
            added: header.as_ref().is_some_and(carries) && added(shard, header.as_ref()) > before,
        }
    }
}

fn shards(capacity: &Capacity) -> Result<Vec<HostAggregator>, NoMemory> {
    let shard = |shard| {
        let one = HostAggregator::of_shard(shard, capacity.shards, capacity.slots, capacity.elements)?;
        let mut one = one.with_dynamic(capacity.dynamic_slots)?;
        one.set_slot_timeout((capacity.slot_timeout / MILLI) as u32);
        Ok(one)
    };
    (0..capacity.shards).map(shard).collect()
}

/// Contributions of a packet's sender that were added so far.
fn added(shard: &HostAggregator, header: Option<&Header>) -> u64 {
    let rank = header.and_then(|header| admit::sender(header, shard.job(header.job)?).ok());
    let (Some(header), Some(rank)) = (header, rank) else { return 0 };
    shard.watch.worker(header.job, rank).counters.added
}
