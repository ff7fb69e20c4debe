//! How results reach the workers: a port each, one port for all, or some of either.

use std::{collections::BTreeMap, net::Ipv4Addr};

use sumac_wire::{MAX_WORKERS, tables::WorkerEntry};

use super::{JobError, NewJob, NewWorker};

/// The ranks behind each port, by its interface's index.
pub fn ranks_by_port(new: &NewJob) -> BTreeMap<u32, Vec<usize>> {
    let mut ports: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (rank, worker) in new.workers.iter().enumerate() {
        ports.entry(worker.ifindex).or_default().push(rank);
    }
    ports
}

/// The multicast group for the workers that share a port, or none when each has a port of its own.
pub fn group(new: &NewJob, ports: &BTreeMap<u32, Vec<usize>>) -> Result<Option<Ipv4Addr>, JobError> {
    let shared: Vec<_> = ports.values().filter(|ranks| ranks.len() > 1).collect();
    if let Some(group) = new.group {
        if !group.is_multicast() {
            return Err(JobError::Group { group });
        }
        if shared.is_empty() && ports.len() > 1 {
            return Err(JobError::NoneShared { group });
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
            return Err(JobError::GroupPorts { ranks: [a, b] });
        }
    }
    let (world, shared) = (new.workers.len(), shared.len());
    if ports.len() > 1 && world + shared > MAX_WORKERS {
        return Err(JobError::Mixed { world, shared, own: ports.len() - shared });
    }
    // Of the block for one administration's own use (RFC 2365).
    let chosen = Ipv4Addr::new(239, 77, (new.job >> 8) as u8, new.job as u8);
    Ok(Some(new.group.unwrap_or(chosen)))
}

/// What the egress program writes into the copy for a port that several workers share: the addresses of their group.
pub fn group_entry(group: Ipv4Addr, member: &NewWorker) -> WorkerEntry {
    let [_, b, c, d] = group.octets();
    // RFC 1112, 6.4.
    let mac = [0x01, 0x00, 0x5e, b & 0x7f, c, d];
    NewWorker { ip: group, mac, ..*member }.entry()
}
