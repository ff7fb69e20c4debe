//! Checks, fan-out and placement of a new job, without a kernel.

use sumac_agg_layout::State;

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
};

fn worker(last: u8, ifindex: u32) -> NewWorker {
    NewWorker {
        ip: Ipv4Addr::new(10, 0, 0, last),
        port: 48700,
        mac: [2, 0, 0, 0, 0, last],
        ifindex,
        aggregator_ip: Ipv4Addr::new(10, 0, 0, 254),
        aggregator_mac: [2, 0, 0, 0, 0, 254],
    }
}

fn job(workers: Vec<NewWorker>) -> NewJob {
    NewJob {
        job: 258,
        epoch: 1,
        token: 1,
        dynamic: None,
        first_slot: None,
        slots: 8,
        lane_slots: 8,
        shards: 1,
        stealing: true,
        level: Level::Only,
        elements: 256,
        checksum: true,
        group: None,
        workers,
    }
}

#[test]
fn fan_out_follows_the_interfaces() {
    let group = |new: &NewJob| group(new, &ranks_by_interface(new));
    let chosen = Some(Ipv4Addr::new(239, 77, 1, 2));
    let mine = Some(Ipv4Addr::new(239, 1, 1, 1));
    let each = vec![worker(1, 1), worker(2, 2)];
    let one = vec![worker(1, 7), worker(2, 7)];
    let mixed = vec![worker(1, 7), worker(2, 7), worker(3, 8)];
    assert_eq!(group(&job(each.clone())).unwrap(), None, "a port each");
    assert_eq!(group(&job(one.clone())).unwrap(), chosen, "one port for all");
    assert_eq!(group(&NewJob { group: mine, ..job(one.clone()) }).unwrap(), mine, "a group given");
    assert_eq!(group(&job(vec![worker(1, 7)])).unwrap(), None, "one worker");
    assert_eq!(group(&job(mixed.clone())).unwrap(), chosen, "one port for two of three");
    assert_eq!(group(&NewJob { group: mine, ..job(mixed.clone()) }).unwrap(), mine);
    assert!(matches!(group(&NewJob { group: mine, ..job(each) }), Err(JobError::NoneShared { .. })));
    let unicast = Some(Ipv4Addr::new(10, 0, 0, 1));
    assert!(matches!(group(&NewJob { group: unicast, ..job(one.clone()) }), Err(JobError::Group { .. })));
    let ports = vec![one[0], NewWorker { port: 1, ..one[1] }];
    assert!(matches!(group(&job(ports)), Err(JobError::GroupPorts { ranks: [0, 1] })));
    let addresses = vec![mixed[2], mixed[0], NewWorker { aggregator_ip: [10, 0, 1, 1].into(), ..mixed[1] }];
    assert!(matches!(group(&job(addresses)), Err(JobError::GroupPorts { ranks: [1, 2] })));
    let own_port = vec![mixed[0], mixed[1], NewWorker { port: 1, ..mixed[2] }];
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
    let eight = job(vec![worker(1, 1)]);
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
        assert_eq!(place(&NewJob { first_slot, ..eight.clone() }, taken, pool), expected, "{what}");
    }
}

#[test]
fn an_impossible_job_is_refused_by_name() {
    let good = NewJob { job: 1, ..job(vec![worker(1, 1), worker(2, 2)]) };
    assert!(check(&good, &STATE).is_ok());
    type Case = (&'static str, fn(&mut NewJob), &'static str);
    let table: [Case; 12] = [
        ("job 0", |j| j.job = 0, "job number 0"),
        ("job 64", |j| j.job = 64, "job number 64"),
        ("no workers", |j| j.workers.clear(), "0 workers"),
        ("twins", |j| j.workers[1].ip = j.workers[0].ip, "10.0.0.1"),
        ("no slots", |j| j.slots = 0, "0 slots"),
        ("lanes of twelve slots", |j| j.lane_slots = 12, "power of two"),
        ("half a lane", |j| j.slots = 12, "12 slots in lanes of 8"),
        ("33 lanes", |j| j.slots = 33 * 8, "1 to 32 lanes"),
        ("no shards", |j| j.shards = 0, "over 0 shards"),
        ("three shards", |j| (j.slots, j.shards) = (24, 3), "has 2 shards"),
        ("three lanes on two shards", |j| (j.slots, j.shards) = (24, 2), "as many in each"),
        ("long chunks", |j| j.elements = 257, "257 elements"),
    ];
    for (what, change, expected) in table {
        let mut bad = good.clone();
        change(&mut bad);
        let text = check(&bad, &STATE).unwrap_err().to_string();
        assert!(text.contains(expected), "{what}: {text}");
    }
}

/// Changes what only a dynamic job has.
fn of(job: &mut NewJob, change: fn(&mut NewDynamic)) {
    job.dynamic.as_mut().into_iter().for_each(change);
}

#[test]
fn dynamic_jobs_are_checked_too() {
    let dynamic = NewDynamic { slots: 64, hosts: vec![worker(9, 9)] };
    let workers = vec![worker(1, 1), worker(2, 2)];
    let good = NewJob { job: 1, slots: 0, lane_slots: 0, dynamic: Some(dynamic.clone()), ..job(workers) };
    assert!(check(&good, &STATE).is_ok());
    type Case = (&'static str, fn(&mut NewJob), &'static str);
    let table: [Case; 6] = [
        ("no slots", |j| of(j, |d| d.slots = 0), "0 slots of each shard"),
        ("too many slots", |j| of(j, |d| d.slots = 65), "aggregator has 64"),
        ("no hosts", |j| of(j, |d| d.hosts.clear()), "0 parameter hosts"),
        ("five hosts", |j| of(j, |d| d.hosts = vec![d.hosts[0]; 5]), "5 parameter hosts"),
        ("three shards", |j| j.shards = 3, "this aggregator has 2"),
        ("long chunks", |j| j.elements = 257, "257 elements"),
    ];
    for (what, change, expected) in table {
        let mut bad = good.clone();
        change(&mut bad);
        let text = check(&bad, &STATE).unwrap_err().to_string();
        assert!(text.contains(expected), "{what}: {text}");
    }
    let long = State { elements: 2000, ..STATE };
    let refused = check(&NewJob { elements: 833, ..good.clone() }, &long).unwrap_err().to_string();
    assert!(refused.contains("1 to 832"), "{refused}");
    let level = Level::Rack { rack: 0, racks: 2, contributors: 4, parent: worker(9, 9) };
    let below = NewDynamic { hosts: Vec::new(), ..dynamic };
    assert!(check(&NewJob { level, dynamic: Some(below), ..good.clone() }, &STATE).is_ok(), "a rack's go up");
    let entry = entry(&good, Placed { first_slot: 0, group: None, is_copied: true });
    assert_eq!((entry.slots, entry.hosts, entry.flags & job_flag::DYNAMIC), (64, 1, job_flag::DYNAMIC));
    assert!(ranges(&[(1, JobEntry { flags: entry.flags | job_flag::ACTIVE, ..entry })]).is_empty());
}
