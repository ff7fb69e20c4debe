//! A job reconstructed from its entries on the switch, for a control plane that has been started again.

use std::collections::BTreeSet;

use sumac_agg_job::NewJob;
use sumac_wire::tables::{JobEntry, WorkerEntry, job_flag};

use super::{
    admission::JOBS,
    numbers::{parent, worker},
};
use crate::target::{Entry, Key, Match};

/// More slots than any pool has.
const MOST_SLOTS: u32 = 1 << 24;

/// A job number on the switch.
#[derive(Clone, Debug, PartialEq)]
pub enum HeldJob {
    Active(NewJob),
    /// The last that had the number: epoch, token and result token.
    Former(JobEntry),
}

impl HeldJob {
    /// Returns the entry as other planes' tables of jobs have it.
    pub fn entry(&self) -> JobEntry {
        match self {
            HeldJob::Active(new) => new.active_entry(),
            HeldJob::Former(entry) => *entry,
        }
    }
}

/// Returns the job of a number from its entries; none where those of a whole job are not there.
pub fn recall(number: u16, entries: &[&Entry]) -> Option<HeldJob> {
    let of = |table: &'static str| entries.iter().filter(move |entry| entry.table == table);
    let job = of(JOBS).next()?;
    let tokens = of("tokens").find(|entry| get(entry, "is_result") == Some(0));
    let identity = JobEntry {
        token: tokens.and_then(|entry| entry.exact_field("token")).unwrap_or(0),
        result_token: get(job, "result_token")?,
        epoch: small(job, "epoch")?,
        ..JobEntry::default()
    };
    if job.action != "set_job" {
        return Some(HeldJob::Former(identity));
    }
    let hop = |destination: u64| {
        let find = |table| of(table).find(|entry| entry.exact_field("destination") == Some(destination));
        let (way, addresses) = (find("ways")?, find("addresses")?);
        Some(WorkerEntry {
            ip: small(addresses, "dst_ip")?,
            aggregator_ip: small(addresses, "src_ip")?,
            ifindex: small(way, "port")?,
            port: small(addresses, "port")?,
            mac: mac(get(addresses, "dst_mac")?),
            aggregator_mac: mac(get(addresses, "src_mac")?),
            ..WorkerEntry::default()
        })
    };
    let (world, rack_bit): (u16, u32) = (small(job, "world")?, small(job, "rack_bit")?);
    let workers = (0..usize::from(world)).map(|rank| hop(worker(rank))).collect::<Option<Vec<_>>>()?;
    let parents: Vec<_> = (0..).map_while(|number| hop(parent(number))).collect();
    let flags = [
        ("dynamic", job_flag::DYNAMIC),
        ("child", job_flag::CHILD),
        ("root", job_flag::ROOT),
        ("reassigns", job_flag::STEALING),
        ("is_bounded", job_flag::LANE_BUDGET),
    ];
    let is_set = |name: &str| get(job, name) == Some(1);
    let flags = flags.iter().filter(|(name, _)| is_set(name)).fold(0, |flags, (_, flag)| flags | flag);
    let is_only = flags & (job_flag::ROOT | job_flag::CHILD) == 0;
    let lanes: Vec<_> = of("lanes").filter(|entry| entry.action != "set_no_slot").collect();
    let shards: BTreeSet<_> = lanes.iter().filter_map(|entry| entry.exact_field("shard")).collect();
    let (slot_base, slots, lane_slots_log2) = if flags & job_flag::DYNAMIC != 0 {
        (0, lanes.iter().filter_map(|entry| slots_end(&entry.key)).max()?, 0)
    } else {
        let lane_slots: u32 = small(lanes.first()?, "lane_slots")?;
        let first: u32 = lanes.iter().filter_map(|entry| small(entry, "first")).min()?;
        let slots = lane_slots.checked_mul(u32::try_from(lanes.len()).ok()?)?;
        first.checked_add(slots).filter(|end| *end <= MOST_SLOTS)?;
        (first, slots, lane_slots.checked_ilog2()?)
    };
    let entry = JobEntry {
        slot_base,
        slots,
        elements: small(job, "elements")?,
        flags,
        // As `NewJob` has it, which knows its workers.
        contributors: if is_only { 0 } else { small(job, "contributors")? },
        shards: shards.len() as u16,
        lane_slots_log2: lane_slots_log2 as u16,
        rack: rack_bit.checked_ilog2().unwrap_or(0) as u16,
        racks: small(job, "racks")?,
        result_token: 0,
        ..identity
    };
    Some(HeldJob::Active(NewJob { job: number, entry, workers, parents }))
}

/// Returns the first slot behind those of a prefix.
fn slots_end(key: &Key) -> Option<u32> {
    match key.0.get("slot") {
        Some(Match::Ternary { value, mask }) => {
            let last = value.checked_add(!mask & u64::from(u32::MAX))?;
            u32::try_from(last.checked_add(1)?).ok()
        }
        _ => None,
    }
}

fn get(entry: &Entry, name: &str) -> Option<u64> {
    entry.parameters.get(name).copied()
}

fn small<T: TryFrom<u64>>(entry: &Entry, name: &str) -> Option<T> {
    T::try_from(get(entry, name)?).ok()
}

fn mac(number: u64) -> [u8; 6] {
    let [_, _, mac @ ..] = number.to_be_bytes();
    mac
}
