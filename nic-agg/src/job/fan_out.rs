//! The fan-out of results: an interface for each worker, one for all, or both.

use std::{collections::BTreeMap, net::Ipv4Addr};

use sumac_agg_job::NewJob;
use sumac_wire::{MAX_WORKERS, tables::WorkerEntry};

use super::error::AddJobError;

pub fn ranks_by_interface(new: &NewJob) -> BTreeMap<u32, Vec<usize>> {
    let mut interfaces: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (rank, worker) in new.workers.iter().enumerate() {
        interfaces.entry(worker.ifindex).or_default().push(rank);
    }
    interfaces
}

/// Returns the multicast group for the workers that share an interface; `None` when none do.
pub fn group(new: &NewJob, interfaces: &BTreeMap<u32, Vec<usize>>) -> Result<Option<Ipv4Addr>, AddJobError> {
    let shared: Vec<_> = interfaces.values().filter(|ranks| ranks.len() > 1).collect();
    let given = (new.entry.group_ip != 0).then(|| Ipv4Addr::from_bits(new.entry.group_ip));
    if let Some(group) = given {
        if !group.is_multicast() {
            return Err(AddJobError::Group { group });
        }
        if shared.is_empty() && interfaces.len() > 1 {
            return Err(AddJobError::NoneShared { group });
        }
    } else if shared.is_empty() {
        return Ok(None);
    }
    let same = |a: usize, b: usize| {
        let of = |rank: usize| new.workers.get(rank).map(|worker| (worker.port, worker.aggregator_ip));
        of(a) == of(b)
    };
    for pair in shared.iter().flat_map(|ranks| ranks.windows(2)) {
        if let [a, b] = *pair
            && !same(a, b)
        {
            return Err(AddJobError::GroupPorts { ranks: [a, b] });
        }
    }
    let (world, shared) = (new.workers.len(), shared.len());
    if interfaces.len() > 1 && world + shared > MAX_WORKERS {
        return Err(AddJobError::Mixed { world, shared, own: interfaces.len() - shared });
    }
    // From the administratively scoped block (RFC 2365).
    let chosen = Ipv4Addr::new(239, 77, (new.job >> 8) as u8, new.job as u8);
    Ok(Some(given.unwrap_or(chosen)))
}

/// Returns the addresses that the egress program writes into the copy for an interface that several workers
/// share.
pub fn group_entry(group: Ipv4Addr, member: &WorkerEntry) -> WorkerEntry {
    let [_, b, c, d] = group.octets();
    // RFC 1112, 6.4.
    let mac = [0x01, 0x00, 0x5e, b & 0x7f, c, d];
    // A path of one member may be dead to another.
    WorkerEntry { ip: group.to_bits(), mac, paths: 0, ..*member }
}
