//! The source of a packet, and the path of results: each worker is at the source of its last packet, behind
//! an aggregator or beside all of them (fate sharing).

use std::net::SocketAddrV4;

use sumac_wire::{
    MAX_WORKERS, Reason,
    dynamic::host::{Bits, MAX_RACKS},
};

use crate::job::{HostError, HostJob, Worker};

pub(crate) const NOBODY: Bits = [0; MAX_RACKS];
/// The rank of a place without a worker.
const NONE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// From this worker itself.
    Worker(u16),
    /// Through this aggregator.
    Upstream(u8),
}

/// The workers of a job and the aggregators before them.
#[derive(Debug)]
pub(crate) struct Members {
    workers: Vec<Worker>,
    upstream: Vec<SocketAddrV4>,
    all: Bits,
    /// `[rack][bit]`: the worker's rank.
    ranks: Vec<[u16; MAX_WORKERS]>,
    /// The workers whose last packet came through each aggregator; the last entry: without one.
    heard: Vec<Bits>,
}

impl Members {
    pub(crate) fn new(job: &HostJob) -> Result<Members, HostError> {
        let mut all = NOBODY;
        let mut ranks = Vec::new();
        for (rank, worker) in job.workers.iter().enumerate() {
            let Worker { rack, bit, .. } = *worker;
            let refused = HostError::Place { job: job.job, rank, rack, bit };
            let (index, mask) = (usize::from(rack), 1u32.checked_shl(bit.into()));
            let Some((bits, mask)) = all.get_mut(index).zip(mask) else { return Err(refused) };
            if *bits & mask != 0 {
                return Err(refused);
            }
            *bits |= mask;
            if ranks.len() <= index {
                ranks.resize(index + 1, [NONE; MAX_WORKERS]);
            }
            ranks[index][usize::from(bit)] = rank as u16;
        }
        Ok(Members {
            workers: job.workers.clone(),
            upstream: job.upstream.clone(),
            all,
            ranks,
            heard: vec![NOBODY; job.upstream.len() + 1],
        })
    }

    /// Takes new addresses of the same workers; nobody has been heard at them yet.
    pub(crate) fn renew(&mut self, job: u16, workers: Vec<Worker>) -> Result<(), HostError> {
        let place = |worker: &Worker| (worker.rack, worker.bit);
        if !workers.iter().map(place).eq(self.workers.iter().map(place)) {
            return Err(HostError::Places { job });
        }
        self.workers = workers;
        self.heard.fill(NOBODY);
        Ok(())
    }

    pub(crate) fn world(&self) -> u16 {
        self.workers.len() as u16
    }

    /// Returns the number of racks up to the last one that has workers.
    pub(crate) fn racks(&self) -> usize {
        self.ranks.len()
    }

    pub(crate) fn all(&self) -> &Bits {
        &self.all
    }

    /// Returns the workers behind each aggregator, and those without one.
    fn ways(&self) -> (&[Bits], &Bits) {
        self.heard.split_last().map_or((&[][..], &NOBODY), |(direct, behind)| (behind, direct))
    }

    pub(crate) fn direct(&self) -> u32 {
        count(self.ways().1)
    }

    /// Returns whether some workers' last packets came without an aggregator and others' through one: no slot
    /// has them all.
    pub(crate) fn are_split(&self) -> bool {
        let (behind, direct) = self.ways();
        *direct != NOBODY && behind.iter().any(|bits| *bits != NOBODY)
    }

    pub(crate) fn only(&self, bits: &Bits) -> Option<u16> {
        let mut racks = self.ranks.iter().zip(bits).filter(|(_, bits)| **bits != 0);
        let (ranks, bits) = racks.next()?;
        if racks.next().is_some() || !bits.is_power_of_two() {
            return None;
        }
        ranks.get(bits.trailing_zeros() as usize).copied().filter(|rank| *rank != NONE)
    }

    /// Returns the ranks of these workers, in order.
    pub(crate) fn ranks(&self, bits: &Bits) -> Vec<u16> {
        let is_in = |worker: &Worker| bits[usize::from(worker.rack)] >> worker.bit & 1 == 1;
        (0..).zip(&self.workers).filter(|(_, worker)| is_in(worker)).map(|(rank, _)| rank).collect()
    }

    /// Returns these workers as a bit for each rank; none where there are more workers than bits.
    pub(crate) fn rank_bits(&self, bits: &Bits) -> Option<u32> {
        if self.workers.len() > MAX_WORKERS {
            return None;
        }
        Some(self.ranks(bits).into_iter().fold(0, |ranks, rank| ranks | 1 << rank))
    }

    /// Returns the source of a packet with the values of `bits`.
    ///
    /// A worker sends its own values only. Packets through an aggregator are marked (`is_passed`), but so are
    /// those of a worker beside the root: then ports tell senders of one address apart. They need not match:
    /// AF_XDP varies its own.
    pub(crate) fn source(
        &self,
        from: SocketAddrV4,
        shard: u16,
        bits: &Bits,
        is_passed: bool,
    ) -> Result<Source, Reason> {
        let itself = self.only(bits).and_then(|rank| Some((rank, self.workers.get(usize::from(rank))?)));
        let upstream =
            |found: &dyn Fn(SocketAddrV4) -> bool| self.upstream.iter().position(|address| found(*address));
        let is_at = |address: SocketAddrV4| here(address, shard) == from;
        let is_of = |address: SocketAddrV4| address.ip() == from.ip();
        if let Some((rank, _)) = itself.filter(|(_, worker)| is_at(worker.address)) {
            return Ok(Source::Worker(rank));
        }
        if let Some(index) = upstream(&is_at).or_else(|| upstream(&is_of)).filter(|_| is_passed) {
            return Ok(Source::Upstream(index as u8));
        }
        match itself.filter(|(_, worker)| is_of(worker.address)) {
            Some((rank, _)) => Ok(Source::Worker(rank)),
            None => Err(Reason::WrongSource),
        }
    }

    /// Notes the path of these workers' last packet.
    pub(crate) fn heard(&mut self, bits: &Bits, source: Source) {
        let index = match source {
            Source::Worker(_) => self.upstream.len(),
            Source::Upstream(index) => index.into(),
        };
        // Mostly nothing changes.
        if self.heard.get(index).is_none_or(|known| is_within(bits, known)) {
            return;
        }
        for (at, heard) in self.heard.iter_mut().enumerate() {
            let note = |(heard, bits): (&mut u32, &u32)| {
                *heard = if at == index { *heard | bits } else { *heard & !bits }
            };
            heard.iter_mut().zip(bits).for_each(note);
        }
    }

    pub(crate) fn address(&self, source: Source, shard: u16) -> Option<SocketAddrV4> {
        let address = match source {
            Source::Worker(rank) => self.workers.get(usize::from(rank))?.address,
            Source::Upstream(index) => *self.upstream.get(usize::from(index))?,
        };
        Some(here(address, shard))
    }

    /// Returns one path of a packet for all workers, and the number to ask for the next with; the first has
    /// zero.
    pub(crate) fn way(&self, from: usize) -> Option<(Source, usize)> {
        let (behind, direct) = self.ways();
        let mut aggregators = behind.iter().enumerate().skip(from);
        if let Some((index, _)) = aggregators.find(|(_, bits)| **bits != NOBODY) {
            return Some((Source::Upstream(index as u8), index + 1));
        }
        if *direct == NOBODY {
            return None;
        }
        let first = from.saturating_sub(behind.len());
        let mut workers = self.workers.iter().enumerate().skip(first);
        let is_direct = |worker: &Worker| {
            direct.get(usize::from(worker.rack)).is_some_and(|bits| bits >> worker.bit & 1 == 1)
        };
        let (rank, _) = workers.find(|(_, worker)| is_direct(worker))?;
        Some((Source::Worker(rank as u16), behind.len() + rank + 1))
    }
}

pub(crate) fn count(bits: &Bits) -> u32 {
    bits.iter().map(|bits| bits.count_ones()).sum()
}

fn is_within(bits: &Bits, others: &Bits) -> bool {
    bits.iter().zip(others).all(|(bits, others)| bits & !others == 0)
}

fn here(address: SocketAddrV4, shard: u16) -> SocketAddrV4 {
    SocketAddrV4::new(*address.ip(), address.port().wrapping_add(shard))
}
