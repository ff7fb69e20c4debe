//! `lookup.p4`: jobs, tokens, senders and their addresses, parents, and the slots of lanes.

use sumac_agg_job::NewJob;
use sumac_wire::{
    MAX_LANES,
    header::NO_SLOT,
    tables::{JobEntry, job_flag, parent_index},
};

use super::numbers::{parent, worker};
use crate::{sizes::Sizes, target::Entry};

/// A job's table, written last: with its entry the job begins.
pub const JOBS: &str = "jobs";
const ALL_32: u64 = u32::MAX as u64;
const ALL_16: u64 = u16::MAX as u64;

/// Returns a job's entries, that of [`JOBS`] last.
pub fn entries(new: &NewJob, program: Sizes) -> Vec<Entry> {
    let job = new.active_entry();
    let mut entries = lanes(new.job, &job, program.dynamic_slots);
    // Also of shards that the job does not use: a packet there comes from the parent, and names a wrong slot.
    entries.extend((0..program.shards).flat_map(|shard| parent_of(new, &job, shard)));
    for rank in 0..new.workers.len() {
        entries.extend(member(new, &job, rank));
    }
    entries.extend(tokens(new.job, &job));
    entries.push(active(new.job, &job));
    entries
}

fn is(job: &JobEntry, flag: u16) -> bool {
    job.flags & flag != 0
}

fn active(number: u16, job: &JobEntry) -> Entry {
    let is_rack = is(job, job_flag::CHILD);
    let flag = |flag| u64::from(is(job, flag));
    Entry::new(JOBS, "set_job")
        .exact("job", number)
        .parameter("dynamic", flag(job_flag::DYNAMIC))
        .parameter("child", flag(job_flag::CHILD))
        .parameter("root", flag(job_flag::ROOT))
        .parameter("reassigns", flag(job_flag::STEALING))
        .parameter("epoch", job.epoch)
        .parameter("all", job.all())
        .parameter("world", job.world)
        .parameter("elements", job.elements)
        .parameter("contributors", job.contributors)
        .parameter("rack_bit", if is_rack { 1_u32 << (job.rack & 31) } else { 0 })
        .parameter("racks", job.racks)
        .parameter("result_token", job.result_token)
        .parameter("is_bounded", flag(job_flag::LANE_BUDGET))
}

/// Returns the entry of a job that was removed: its members are notified, and its number keeps its last
/// epoch.
pub fn former(number: u16, job: &JobEntry) -> Entry {
    Entry::new(JOBS, "set_former_job")
        .exact("job", number)
        .parameter("epoch", job.epoch)
        .parameter("result_token", job.result_token)
}

/// Whether a job's entries of a table stay when it has been removed, so that its members are notified.
pub fn outlives_job(table: &str) -> bool {
    matches!(table, "tokens" | "senders" | "sources" | "sides" | "ways" | "addresses")
}

fn tokens(number: u16, job: &JobEntry) -> [Entry; 2] {
    let token = |token: u64, is_result: u64| {
        Entry::new("tokens", "set_token")
            .exact("job", number)
            .exact("token", token)
            .parameter("is_result", is_result)
    };
    [token(job.token, 0), token(job.result_token, 1)]
}

/// Returns the entries of a worker, or of a rack at a root.
fn member(new: &NewJob, job: &JobEntry, rank: usize) -> [Entry; 4] {
    let (number, hop, bit) = (new.job, &new.workers[rank], 1_u64 << (rank & 31));
    let is_root = is(job, job_flag::ROOT);
    let of_job = |table, action| Entry::new(table, action).exact("job", number);
    // At the root a rack has its bit at the second level.
    let with_bit = |entry: Entry| entry.ternary(if is_root { "bitmap_1" } else { "bitmap_0" }, bit, ALL_32);
    let sender = with_bit(of_job("senders", "set_sender"))
        .ternary("level", u64::from(is_root), 1_u64)
        .ternary(if is_root { "fan_in_1" } else { "fan_in_0" }, job.world, 0xff_u64);
    let sender = match () {
        () if is_root => sender,
        () if is(job, job_flag::DYNAMIC) => {
            let rack_bit = if is(job, job_flag::CHILD) { 1_u64 << (job.rack & 31) } else { 0 };
            sender.ternary("fan_in_1", job.racks, 0xff_u64).ternary("bitmap_1", rack_bit, ALL_32)
        }
        // 0 or 1.
        () => sender.ternary("fan_in_1", 0_u64, 0xfe_u64).ternary("bitmap_1", 0_u64, ALL_32),
    };
    let destination = worker(rank);
    [
        sender.parameter("destination", destination).parameter("bit_", bit),
        with_bit(of_job("sources", "bound").exact("src", hop.ip)),
        of_job("sides", "ours").exact("src", hop.ip).exact("dst", hop.aggregator_ip),
        with_bit(of_job("receivers", "set_receiver")).parameter("destination", destination),
    ]
}

/// Returns the entries of the parent that a shard has.
fn parent_of(new: &NewJob, job: &JobEntry, shard: u16) -> Vec<Entry> {
    let number = parent_index(0, shard, job.hosts) as usize;
    let Some(hop) = new.parents.get(number) else { return Vec::new() };
    let of_shard = |table, action| Entry::new(table, action).exact("job", new.job).exact("shard", shard);
    vec![
        of_shard("parents", "set_parent").parameter("destination", parent(number)),
        of_shard("parent_sources", "from_parent").exact("src", hop.ip),
        of_shard("uplinks", "set_uplink").exact("dst", hop.aggregator_ip),
        of_shard("uplinks", "set_past").exact("dst", hop.ip),
    ]
}

fn lanes(number: u16, job: &JobEntry, dynamic_slots: u32) -> Vec<Entry> {
    let lane_slots = job.lane_slots();
    let at = |action, shard: u16| Entry::new("lanes", action).exact("job", number).exact("shard", shard);
    if !is(job, job_flag::DYNAMIC) {
        let lane = |lane: u32| {
            let shard = lane % u32::from(job.shards.max(1));
            at("set_static", shard as u16)
                .ternary("slot", lane * lane_slots, u64::from(!(lane_slots - 1)))
                .parameter("first", job.slot_base + lane * lane_slots)
                .parameter("mask", lane_slots - 1)
                .parameter("lane_slots", lane_slots)
                .parameter("lane", u32::from(number) * 64 + lane)
        };
        return (0..job.slots / lane_slots).map(lane).collect();
    }
    let mut entries = Vec::new();
    for shard in 0..job.shards {
        for (lane, lane_mask) in lanes_of(shard, job.shards) {
            let shared = |(slot, mask): (u32, u32)| {
                at("set_shared", shard)
                    .ternary("slot", slot, mask)
                    .ternary("lane", lane, lane_mask)
                    .parameter("first", u64::from(shard) * u64::from(dynamic_slots))
            };
            entries.extend(prefixes(job.slots).into_iter().map(shared));
            let none = at("set_no_slot", shard).ternary("slot", NO_SLOT, ALL_32);
            entries.push(none.ternary("lane", lane, lane_mask));
        }
    }
    entries
}

/// Returns the lanes of a shard as values and masks: `lane % shards == shard`, below [`MAX_LANES`].
fn lanes_of(shard: u16, shards: u16) -> Vec<(u64, u64)> {
    let most = MAX_LANES as u64;
    if shards.is_power_of_two() && u64::from(shards) <= most {
        return vec![(shard.into(), ALL_16 & !(most - 1) | u64::from(shards - 1))];
    }
    let mine = |lane: &u64| lane % u64::from(shards.max(1)) == u64::from(shard);
    (0..most).filter(mine).map(|lane| (lane, ALL_16)).collect()
}

/// Returns the values below `end` as prefixes: values and masks.
fn prefixes(end: u32) -> Vec<(u32, u32)> {
    let bits = (0..u32::BITS).rev().filter(|bit| end >> bit & 1 == 1);
    // All bits of `end` above the prefix's size.
    bits.map(|bit| (end & !(u32::MAX >> (u32::BITS - 1 - bit)), !((1 << bit) - 1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_cover_what_is_below_and_nothing_else() {
        for end in [1, 2, 3, 64, 100, 255, 2048] {
            let prefixes = prefixes(end);
            for value in 0..4096 {
                let matching = prefixes.iter().filter(|(prefix, mask)| value & mask == *prefix).count();
                assert_eq!(matching, usize::from(value < end), "{value} of {end}");
            }
        }
        assert_eq!(prefixes(0), []);
    }

    #[test]
    fn a_shard_has_its_lanes_and_no_others() {
        for shards in [1, 2, 3, 4] {
            for lane in 0..200_u64 {
                let of = |shard| {
                    let matches = lanes_of(shard, shards);
                    matches.iter().filter(|(value, mask)| lane & mask == *value).count()
                };
                let counts: Vec<_> = (0..shards).map(of).collect();
                let expected =
                    |shard: &u16| usize::from(lane < 32 && lane % u64::from(shards) == u64::from(*shard));
                assert_eq!(
                    counts,
                    (0..shards).map(|shard| expected(&shard)).collect::<Vec<_>>(),
                    "{lane} {shards}"
                );
            }
        }
    }
}
