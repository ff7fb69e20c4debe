//! Jobs that share slots (ATP): what their packets do to slots, and where they go on to.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_agg_job::{endpoint, seen::WorkerSeen};
use sumac_wire::{
    Header, Kind, Reason,
    admit::{self, dynamic::Down},
    dynamic::{Contribution, passed},
    header::{HEADER_LEN, flag},
    tables::{JobEntry, worker_index},
};

use super::{Answer, HostAggregator};
use crate::{shared::Taken, watch::Chunk};

impl HostAggregator {
    pub fn held(&self) -> u32 {
        self.shared.held()
    }

    /// Sets the time by which shared slots age, in milliseconds from any start; it wraps.
    pub fn set_now(&mut self, now: u32) {
        self.shared.now = now;
    }

    /// Sets the milliseconds after which a shared slot that nobody adds to is reclaimed.
    pub fn set_slot_timeout(&mut self, timeout: u32) {
        self.shared.timeout = timeout;
    }

    pub(super) fn take_dynamic(
        &mut self,
        entry: &JobEntry,
        header: &Header,
        source: Ipv4Addr,
        parent: SocketAddrV4,
        packet: &mut [u8],
    ) -> Result<Answer, Reason> {
        // A parameter host may have a worker's address: the kind of packet distinguishes them.
        if header.kind == Kind::Result as u8 || header.kind == Kind::Report as u8 {
            return self.take_from_above(entry, header, source, parent, packet);
        }
        let (rank, _) = self.sender(entry, header, source)?;
        let request = admit::dynamic::request(header, entry, self.shard)?;
        if self.watch.loses_arriving(header.job) {
            return Err(Reason::Injected);
        }
        let Some(contribution) = request else {
            // The answer shall show the whole way.
            write(packet, &passed(header));
            return Ok(Answer::One(Reason::Passed, parent, None));
        };
        let taken = self.shared.contribute(header, &contribution, packet);
        self.see(header, rank, &contribution, taken);
        Ok(match taken? {
            Taken::In(reason) => Answer::None(reason),
            Taken::On(reason) => Answer::One(reason, parent, None),
        })
    }

    fn take_from_above(
        &mut self,
        entry: &JobEntry,
        header: &Header,
        source: Ipv4Addr,
        parent: SocketAddrV4,
        packet: &mut [u8],
    ) -> Result<Answer, Reason> {
        let down = admit::dynamic::result(header, source.to_bits(), entry, &endpoint(parent), self.shard)?;
        if self.watch.loses_arriving(header.job) {
            return Err(Reason::Injected);
        }
        match down {
            Down::All => {
                self.shared.release(header);
                write(packet, header);
                Ok(Answer::All(Reason::Concluded, header.job))
            }
            Down::One(rank) => {
                // It was marked on its way up.
                write(packet, &Header { flags: header.flags & !flag::LEVEL, ..*header });
                let worker = self.workers(header.job).get(usize::from(rank));
                Ok(Answer::One(Reason::Probed, *worker.ok_or(Reason::Internal)?, Some(rank)))
            }
        }
    }

    /// Counts what became of a worker's contribution, and how long its chunk took.
    fn see(&mut self, header: &Header, rank: u16, contribution: &Contribution, taken: Result<Taken, Reason>) {
        let index = worker_index(header.job, rank) as usize;
        let Some(WorkerSeen { counters, .. }) = self.watch.worker_mut(index) else { return };
        let is_last = match taken {
            Ok(Taken::In(_)) => false,
            Ok(Taken::On(Reason::Forwarded)) => true,
            Err(Reason::Duplicate) => return counters.duplicates += 1,
            Ok(Taken::On(_)) | Err(_) => return,
        };
        counters.added += 1;
        counters.last += u64::from(is_last);
        let chunk = Chunk::shared(header.slot, self.pool.slots(), contribution);
        self.watch.look(header.job, index, chunk, is_last);
    }
}

fn write(packet: &mut [u8], header: &Header) {
    packet[..HEADER_LEN].copy_from_slice(&header.to_bytes());
}
