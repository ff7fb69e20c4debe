//! `ways.p4` and `egress.p4`: the port towards each worker and parent of a job, and the addresses of packets
//! to it.

use sumac_agg_job::NewJob;
use sumac_wire::tables::WorkerEntry;

use super::numbers::{mac, parent, worker};
use crate::target::Entry;

pub fn entries(new: &NewJob) -> Vec<Entry> {
    let workers = new.workers.iter().enumerate().map(|(rank, hop)| (worker(rank), hop));
    let parents = new.parents.iter().enumerate().map(|(number, hop)| (parent(number), hop));
    workers.chain(parents).flat_map(|(destination, hop)| towards(new.job, destination, hop)).collect()
}

fn towards(job: u16, destination: u64, hop: &WorkerEntry) -> [Entry; 2] {
    let of = |table, action| Entry::new(table, action).exact("job", job).exact("destination", destination);
    [
        of("ways", "set_way").parameter("port", hop.ifindex),
        of("addresses", "set_addresses")
            .parameter("dst_mac", mac(hop.mac))
            .parameter("src_mac", mac(hop.aggregator_mac))
            .parameter("dst_ip", hop.ip)
            .parameter("src_ip", hop.aggregator_ip)
            .parameter("port", hop.port),
    ]
}
