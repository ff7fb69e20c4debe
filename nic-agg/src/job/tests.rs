//! Checks, fan-out and placement of a new job, without a kernel.

use sumac_agg_job::{JobError, log2};

use super::*;

const STATE: State = State {
    instance: 1,
    slots: 64,
    elements: 256,
    base_port: 48700,
    shards: 2,
    flags: 0,
    own_ip: 0,
    dynamic_slots: 64,
    slot_timeout: 1000,
    jobs: 1024,
    reserved: 0,
};

fn worker(last: u8, ifindex: u32) -> WorkerEntry {
    WorkerEntry {
        ip: Ipv4Addr::new(10, 0, 0, last).to_bits(),
        port: 48700,
        mac: [2, 0, 0, 0, 0, last],
        ifindex,
        aggregator_ip: Ipv4Addr::new(10, 0, 0, 254).to_bits(),
        aggregator_mac: [2, 0, 0, 0, 0, 254],
        ..WorkerEntry::default()
    }
}

fn job(workers: Vec<WorkerEntry>) -> NewJob {
    let entry = JobEntry {
        epoch: 1,
        token: 1,
        slots: 8,
        lane_slots_log2: 3,
        shards: 1,
        elements: 256,
        flags: job_flag::STEALING | job_flag::CHECKSUM,
        ..JobEntry::default()
    };
    NewJob { job: 258, entry, workers, parents: Vec::new() }
}

fn with(new: NewJob, change: impl Fn(&mut NewJob)) -> NewJob {
    let mut new = new;
    change(&mut new);
    new
}

/// Returns the first error of a job on an empty aggregator.
fn refusal(new: &NewJob, state: &State) -> Result<(), AddJobError> {
    new.check(state, &JobEntry::default())?;
    check_addresses(new)
}

#[test]
fn fan_out_follows_the_interfaces() {
    let group = |new: &NewJob| group(new, &ranks_by_interface(new));
    let chosen = Some(Ipv4Addr::new(239, 77, 1, 2));
    let mine = Some(Ipv4Addr::new(239, 1, 1, 1));
    let given = |ip: Option<Ipv4Addr>, workers: Vec<WorkerEntry>| {
        with(job(workers), |new| new.entry.group_ip = ip.map_or(0, Ipv4Addr::to_bits))
    };
    let each = vec![worker(1, 1), worker(2, 2)];
    let one = vec![worker(1, 7), worker(2, 7)];
    let mixed = vec![worker(1, 7), worker(2, 7), worker(3, 8)];
    assert_eq!(group(&job(each.clone())).unwrap(), None, "a port each");
    assert_eq!(group(&job(one.clone())).unwrap(), chosen, "one port for all");
    assert_eq!(group(&given(mine, one.clone())).unwrap(), mine, "a group given");
    assert_eq!(group(&job(vec![worker(1, 7)])).unwrap(), None, "one worker");
    assert_eq!(group(&job(mixed.clone())).unwrap(), chosen, "one port for two of three");
    assert_eq!(group(&given(mine, mixed.clone())).unwrap(), mine);
    assert!(matches!(group(&given(mine, each)), Err(AddJobError::NoneShared { .. })));
    let unicast = Some(Ipv4Addr::new(10, 0, 0, 1));
    assert!(matches!(group(&given(unicast, one.clone())), Err(AddJobError::Group { .. })));
    let ports = vec![one[0], WorkerEntry { port: 1, ..one[1] }];
    assert!(matches!(group(&job(ports)), Err(AddJobError::GroupPorts { ranks: [0, 1] })));
    let addresses = vec![mixed[2], mixed[0], WorkerEntry { aggregator_ip: 0x0a00_0101, ..mixed[1] }];
    assert!(matches!(group(&job(addresses)), Err(AddJobError::GroupPorts { ranks: [1, 2] })));
    let own_port = vec![mixed[0], mixed[1], WorkerEntry { port: 1, ..mixed[2] }];
    assert_eq!(group(&job(own_port)).unwrap(), chosen, "only those behind one port must agree");
    let pairs = |world: u8| (0..world).map(|rank| worker(rank, u32::from(rank) / 2)).collect();
    assert_eq!(group(&job(pairs(21))).unwrap(), chosen);
    let refused = group(&job(pairs(22))).unwrap_err().to_string();
    assert!(refused.contains("22 workers, with 11 interfaces that several"), "{refused}");
    let one_port = (0..32).map(|rank| worker(rank, 7)).collect();
    assert_eq!(group(&job(one_port)).unwrap(), chosen, "as many as one likes behind one port");
}

#[test]
fn slots_are_found_between_those_of_others() {
    type Case = (&'static str, Option<u32>, Vec<(u32, u32)>, u32, Option<u32>);
    let table: [Case; 9] = [
        ("an empty pool", None, vec![], 8, Some(0)),
        ("a small pool", None, vec![], 7, None),
        ("behind", None, vec![(0, 4)], 16, Some(4)),
        ("between", None, vec![(12, 4), (0, 4)], 16, Some(4)),
        ("too narrow between", None, vec![(11, 4), (0, 4)], 32, Some(15)),
        ("full", None, vec![(0, 16)], 16, None),
        ("where asked", Some(8), vec![(0, 8), (16, 8)], 32, Some(8)),
        ("asked in the way", Some(9), vec![(0, 8), (16, 8)], 32, None),
        ("asked beyond the end", Some(u32::MAX - 3), vec![], 32, None),
    ];
    for (what, first_slot, taken, pool, expected) in table {
        let entry = |(slot_base, slots)| JobEntry {
            slot_base,
            slots,
            flags: job_flag::ACTIVE,
            ..JobEntry::default()
        };
        let jobs: Vec<_> = (1u16..).zip(taken.into_iter().map(entry)).collect();
        let found = match first_slot {
            None => first_gap(8, pool, &jobs),
            Some(first) => {
                let is_free =
                    check_range(first, 8, pool, jobs.iter().map(|(job, entry)| (*job, entry))).is_ok();
                is_free.then_some(first)
            }
        };
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn an_impossible_job_is_refused_by_name() {
    let good = NewJob { job: 1, ..job(vec![worker(1, 1), worker(2, 2)]) };
    assert!(refusal(&good, &STATE).is_ok());
    type Case = (&'static str, fn(&mut NewJob), &'static str);
    assert_eq!(log2(12).unwrap_err().to_string(), "12 slots in a lane: must be a power of two");
    let table: [Case; 11] = [
        ("job 0", |j| j.job = 0, "job number 0"),
        ("job 1024", |j| j.job = 1024, "job number 1024"),
        ("no workers", |j| j.workers.clear(), "0 workers"),
        ("twins", |j| j.workers[1].ip = j.workers[0].ip, "10.0.0.1"),
        ("no slots", |j| j.entry.slots = 0, "0 slots"),
        ("half a lane", |j| j.entry.slots = 12, "12 slots in lanes of 8"),
        ("33 lanes", |j| j.entry.slots = 33 * 8, "1 to 32 lanes"),
        ("no shards", |j| j.entry.shards = 0, "over 0 shards"),
        ("three shards", |j| (j.entry.slots, j.entry.shards) = (24, 3), "has 2 shards"),
        ("three lanes on two shards", |j| (j.entry.slots, j.entry.shards) = (24, 2), "as many in each"),
        ("long chunks", |j| j.entry.elements = 257, "257 elements"),
    ];
    for (what, change, expected) in table {
        let mut bad = good.clone();
        change(&mut bad);
        let text = refusal(&bad, &STATE).unwrap_err().to_string();
        assert!(text.contains(expected), "{what}: {text}");
    }
}

#[test]
fn dynamic_jobs_are_checked_too() {
    let good = with(job(vec![worker(1, 1), worker(2, 2)]), |new| {
        new.job = 1;
        new.entry = JobEntry { flags: job_flag::DYNAMIC, slots: 64, lane_slots_log2: 0, ..new.entry };
        new.parents = vec![worker(9, 9)];
    });
    assert!(refusal(&good, &STATE).is_ok());
    type Case = (&'static str, fn(&mut NewJob), &'static str);
    let table: [Case; 6] = [
        ("no slots", |j| j.entry.slots = 0, "0 slots of each shard"),
        ("too many slots", |j| j.entry.slots = 65, "aggregator has 64"),
        ("no hosts", |j| j.parents.clear(), "0 parameter hosts"),
        ("five hosts", |j| j.parents = vec![j.parents[0]; 5], "5 parameter hosts"),
        ("three shards", |j| j.entry.shards = 3, "this aggregator has 2"),
        ("long chunks", |j| j.entry.elements = 257, "257 elements"),
    ];
    for (what, change, expected) in table {
        let text = refusal(&with(good.clone(), change), &STATE).unwrap_err().to_string();
        assert!(text.contains(expected), "{what}: {text}");
    }
    let long = State { elements: 2000, ..STATE };
    let refused =
        refusal(&with(good.clone(), |new| new.entry.elements = 833), &long).unwrap_err().to_string();
    assert!(refused.contains("1 to 832"), "{refused}");
    let rack = with(good.clone(), |new| {
        (new.entry.flags, new.entry.racks) = (new.entry.flags | job_flag::CHILD, 2);
    });
    assert!(refusal(&rack, &STATE).is_ok(), "a rack's go up");
    let orphan = with(rack, |new| new.parents.clear());
    assert!(matches!(refusal(&orphan, &STATE), Err(AddJobError::Job(JobError::Parents(0)))));
    let entry = good.active_entry();
    assert_eq!((entry.slots, entry.hosts, entry.flags & job_flag::DYNAMIC), (64, 1, job_flag::DYNAMIC));
    assert_eq!(first_gap(64, 64, &[(1, entry)]), Some(0), "its slots are not the pool's");
}
