//! Jobs on a switch: their entries, what a restart of either side leaves, and what happens when a call fails.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends by panicking")]

#[path = "plane/played.rs"]
mod played;
#[path = "plane/refusals.rs"]
mod refusals;
#[allow(dead_code, reason = "each test file uses a part")]
mod support;
#[path = "plane/two_control_planes.rs"]
mod two_control_planes;

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_agg_job::plane::AggregatorPlane as _;
use sumac_agg_layout::Drops;
use sumac_agg_p4::{
    SwitchPlane,
    target::{Change, Entry, Group, Match, Replica, Target, Update},
    wiring::Wiring,
};
use sumac_control::plane::{DataPlane as _, JobInstall, KnownJob, LastEpoch, Level, WorkerInstall};
use sumac_job::{JobTerms, Mode, result_token};
use sumac_wire::Reason;

use support::{memory::Memory, model, runtime};

const TOKEN: u64 = 0xfeed_0000_0001;

/// Four ports with a worker each, and a parameter host or root behind the last.
fn wiring() -> Wiring {
    let port = |number: u8| {
        let host = |last: u8| {
            format!("{{ ip = '10.77.{number}.{last}', mac = '02:00:00:00:{number:02}:{last:02}' }}")
        };
        let ports = format!(
            "[[ports]]\nnumber = {number}\nip = '10.77.{number}.1'\nmac = '02:00:00:00:{number:02}:01'\n"
        );
        format!("{ports}hosts = [{}, {}]\n", host(2), host(3))
    };
    let ports: String = (1..5).map(port).collect();
    Wiring::parse(&format!("[program]\nelements = 256\n{ports}"), "switch.toml").unwrap()
}

fn worker(number: u8) -> WorkerInstall {
    let ip = Ipv4Addr::new(10, 77, number, 2);
    WorkerInstall { ip, port: 48700, mac: [0; 6], local_ip: ip, paths: 1 }
}

fn address(number: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 77, number, 3), 48800)
}

/// Two workers, two shards, lanes of eight slots.
fn job(number: u16, epoch: u16) -> JobInstall {
    let terms = JobTerms::new(number, epoch, TOKEN + u64::from(number), 2);
    JobInstall {
        terms: JobTerms { slots: 8, shards: 2, elements: 64, checksum: false, ..terms },
        first_slot: u32::from(number) * 32,
        stealing: true,
        level: Level::Only,
        workers: vec![worker(1), worker(2)],
        ranks: Vec::new(),
        contributors: Vec::new(),
        upstream: Vec::new(),
    }
}

fn dynamic(number: u16, epoch: u16) -> JobInstall {
    let job = job(number, epoch);
    let terms = JobTerms {
        mode: Mode::Dynamic,
        slots: 100,
        parameter_hosts: vec![address(3), address(4)],
        ..job.terms
    };
    JobInstall { terms, first_slot: 0, ..job }
}

fn rack(job: JobInstall) -> JobInstall {
    let level = Level::Rack {
        rack: 2,
        racks: 3,
        contributors: 5,
        parent: SocketAddrV4::new(*address(4).ip(), 48700),
        has_racks: false,
    };
    JobInstall { level, ..job }
}

fn root(job: JobInstall) -> JobInstall {
    JobInstall { level: Level::Root { contributors: 9 }, ..job }
}

fn known(job: &JobInstall) -> KnownJob {
    KnownJob { job: job.terms.job, epoch: job.terms.epoch, token: job.terms.token, next_epoch: None }
}

fn plane() -> (Memory, SwitchPlane<Memory>) {
    let memory = Memory::default();
    let plane = SwitchPlane::start(memory.clone(), wiring()).unwrap();
    (memory, plane)
}

/// The entries of a table as text, without their table.
fn table(memory: &Memory, name: &str) -> Vec<String> {
    let number = |(name, value): (&String, &u64)| format!("{name}={value:#x}");
    let entry = |entry: &Entry| {
        let key: Vec<_> = entry.key.0.iter().map(|(name, value)| format!("{name}:{value:x?}")).collect();
        let parameters: Vec<_> = entry.parameters.iter().map(number).collect();
        format!("{} {}({})", key.join(" "), entry.action, parameters.join(" "))
    };
    memory.all().0.iter().filter(|entry| entry.table == name).map(entry).collect()
}

#[test]
fn a_static_job_in_its_tables() {
    let (memory, plane) = plane();
    memory.writes();
    let installed = plane.install(&job(3, 7)).unwrap();
    assert_eq!(installed.aggregator_ips, [Ipv4Addr::new(10, 77, 1, 1), Ipv4Addr::new(10, 77, 2, 1)]);
    assert_eq!((installed.host_sides.len(), installed.result_group), (0, None));
    let last = memory.writes().pop().unwrap();
    assert!(
        matches!(&last[..], [Update::Entry(_, entry)] if entry.table == "jobs"),
        "it begins when all is there: {last:?}"
    );
    let result = result_token(TOKEN + 3);
    let expected = [
        ("jobs", vec![format!(
            "job:Exact(3) set_job(all=0x3 child=0x0 contributors=0x2 dynamic=0x0 elements=0x40 epoch=0x7 \
             is_bounded=0x1 rack_bit=0x0 racks=0x0 reassigns=0x1 result_token={result:#x} root=0x0 world=0x2)"
        )]),
        ("senders", (0..2).map(|rank| format!(
            "bitmap_0:Ternary {{ value: {0:x}, mask: ffffffff }} bitmap_1:Ternary {{ value: 0, mask: ffffffff }} \
             fan_in_0:Ternary {{ value: 2, mask: ff }} fan_in_1:Ternary {{ value: 0, mask: fe }} job:Exact(3) \
             level:Ternary {{ value: 0, mask: 1 }} set_sender(bit_={0:#x} destination={1:#x})", 1 << rank, 1 + rank
        )).collect()),
        ("lanes", (0..4).map(|lane: u32| format!(
            "job:Exact(3) shard:Exact({}) slot:Ternary {{ value: {:x}, mask: fffffff8 }} \
             set_static(first={:#x} lane={:#x} lane_slots=0x8 mask=0x7)", lane % 2, lane * 8, 96 + lane * 8, 192 + lane
        )).collect()),
        ("addresses", (1..3).map(|side| format!(
            "destination:Exact({side}) job:Exact(3) set_addresses(dst_ip={:#x} dst_mac={:#x} port=0xbe3c src_ip={:#x} src_mac={:#x})",
            Ipv4Addr::new(10, 77, side, 2).to_bits(), 0x0200_0000_0002_u64 | u64::from(side) << 8,
            Ipv4Addr::new(10, 77, side, 1).to_bits(), 0x0200_0000_0001_u64 | u64::from(side) << 8
        )).collect()),
        ("parents", vec![]),
    ];
    for (name, mut expected) in expected {
        let mut found = table(&memory, name);
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{name}");
    }
    let counts =
        ["tokens", "sources", "sides", "receivers", "ways", "uplinks"].map(|name| table(&memory, name).len());
    assert_eq!(counts, [2, 2, 2, 2, 2, 0]);
    let groups = memory.all().1;
    assert_eq!(groups[0].id, 3);
    assert_eq!(groups[0].replicas, [Replica { port: 1, instance: 1 }, Replica { port: 2, instance: 2 }]);
}

#[test]
fn levels_and_dynamic_jobs_in_their_tables() {
    let (memory, plane) = plane();
    let sides = plane.install(&dynamic(1, 1)).unwrap().host_sides;
    assert_eq!(sides, [Ipv4Addr::new(10, 77, 3, 1), Ipv4Addr::new(10, 77, 4, 1)]);
    let parents = table(&memory, "parents");
    assert_eq!(
        parents,
        [
            "job:Exact(1) shard:Exact(0) set_parent(destination=0x21)",
            "job:Exact(1) shard:Exact(1) set_parent(destination=0x22)"
        ]
    );
    let lanes = table(&memory, "lanes");
    // 100 slots are 64 + 32 + 4; and none.
    assert_eq!(lanes.len(), 2 * 4, "{lanes:?}");
    assert!(
        lanes.iter().any(|entry| entry.contains("shard:Exact(1)")
            && entry.contains("lane:Ternary { value: 1, mask: ffe1 }")
            && entry.contains("set_shared(first=0x800)")),
        "{lanes:?}"
    );
    assert_eq!(table(&memory, "uplinks").len(), 4);

    assert!(plane.install(&rack(job(2, 1))).unwrap().host_sides.is_empty());
    let of = |name, job: u16| {
        table(&memory, name)
            .into_iter()
            .filter(|entry| entry.contains(&format!("job:Exact({job})")))
            .collect::<Vec<_>>()
    };
    assert!(
        of("jobs", 2)[0].contains("child=0x1 contributors=0x5")
            && of("jobs", 2)[0].contains("is_bounded=0x0 rack_bit=0x4 racks=0x3")
    );
    assert!(of("jobs", 1)[0].contains("is_bounded=0x0"), "the parameter hosts bound a dynamic job's loss");
    assert_eq!(of("parents", 2).len(), 2, "one parent for both shards");

    plane.install(&rack(dynamic(3, 1))).unwrap();
    assert!(
        of("senders", 3)[0].contains("bitmap_1:Ternary { value: 4, mask: ffffffff }"),
        "{:?}",
        of("senders", 3)
    );
    assert!(of("senders", 3)[0].contains("fan_in_1:Ternary { value: 3, mask: ff }"));

    plane.install(&root(dynamic(4, 1))).unwrap();
    let sender = &of("senders", 4)[0];
    assert!(
        sender.contains("level:Ternary { value: 1, mask: 1 }")
            && sender.contains("bitmap_1")
            && !sender.contains("bitmap_0"),
        "{sender}"
    );
    assert!(of("sources", 4)[0].starts_with("bitmap_1"));
}

/// All that a control plane that is started again has to know is on the switch.
#[test]
fn jobs_are_taken_over_by_the_next_control_plane() {
    let (memory, first) = plane();
    let kinds: [fn(JobInstall) -> JobInstall; 3] = [|job| job, rack, root];
    let static_jobs = (1..).zip(kinds).map(|(number, kind)| kind(job(number, 5)));
    let all: Vec<_> =
        static_jobs.chain((4..).zip(kinds).map(|(number, kind)| kind(dynamic(number, 5)))).collect();
    for job in &all {
        first.install(job).unwrap();
    }
    first.remove(2).unwrap();
    first.set_drops(6..7, Drops { up: 5, down: 6 }).unwrap();
    let (jobs, contents) = (first.jobs(), memory.all());
    memory.writes();
    let second = SwitchPlane::start(memory.clone(), wiring()).unwrap();
    assert_eq!((second.jobs(), memory.all()), (jobs, contents));
    assert!(memory.writes().iter().all(Vec::is_empty), "nothing changes");
    let taken = second.take_over(&[known(&all[0]), known(&all[5])]).unwrap();
    assert_eq!(taken.jobs, [1, 6]);
    assert_eq!(taken.last_epochs.len(), 6);
    assert_eq!(taken.last_epochs[1], LastEpoch { job: 2, epoch: 5 });
    let active: Vec<_> = second
        .entries()
        .into_iter()
        .filter(|(_, entry)| sumac_agg_p4::plane::is_active(entry))
        .map(|(job, _)| job)
        .collect();
    assert_eq!(active, [1, 6]);
    assert_eq!(second.drops(6), Drops { up: 5, down: 6 });
    let used = second.install(&all[1]).unwrap_err().to_string();
    assert!(used.contains("job 2 had epoch 5 before"), "{used}");
    second.install(&job(2, 6)).unwrap();
}

#[test]
fn a_removed_job_leaves_what_tells_its_members() {
    let (memory, plane) = plane();
    plane.install(&dynamic(1, 1)).unwrap();
    plane.remove(1).unwrap();
    let result = result_token(TOKEN + 1);
    assert_eq!(
        table(&memory, "jobs"),
        [format!("job:Exact(1) set_former_job(epoch=0x1 result_token={result:#x})")]
    );
    let left = [
        "tokens",
        "senders",
        "sources",
        "sides",
        "ways",
        "addresses",
        "lanes",
        "parents",
        "uplinks",
        "receivers",
    ];
    assert_eq!(left.map(|name| table(&memory, name).len()), [2, 2, 2, 2, 4, 4, 0, 0, 0, 0]);
    assert_eq!(memory.all().1, []);
    plane.remove(1).unwrap();
    plane.remove(9).unwrap();
}

#[test]
fn entries_of_removed_jobs_make_room() {
    let (memory, plane) = plane();
    memory.limit("senders", 3);
    plane.install(&job(1, 1)).unwrap();
    plane.remove(1).unwrap();
    plane.install(&job(2, 1)).unwrap();
    assert_eq!(table(&memory, "senders").len(), 2, "the former's are gone");
    let before = memory.all();
    let full = plane.install(&job(3, 1)).unwrap_err().to_string();
    assert!(full.contains("table `senders` of the switch is full"), "{full}");
    assert_eq!(memory.all(), before, "nothing of it stays");
    assert_eq!(plane.take_over(&[known(&job(2, 1))]).unwrap().last_epochs.len(), 2, "epochs are kept");
    // Of `uplinks` removed jobs have no entries.
    plane.remove(2).unwrap();
    memory.limit("senders", 100);
    memory.limit("uplinks", 3);
    let full = plane.install(&dynamic(3, 1)).unwrap_err().to_string();
    assert!(full.contains("table `uplinks` of the switch is full"), "{full}");
    assert_eq!(table(&memory, "senders").len(), 2, "those of job 2 stay");
}

#[test]
fn after_a_restart_of_the_switch_all_is_written_again() {
    let (memory, plane) = plane();
    plane.install(&job(1, 1)).unwrap();
    let (before, instance) = (memory.all(), plane.instance().unwrap());
    memory.restart();
    assert_ne!(memory.all(), before);
    assert_ne!(plane.instance().unwrap(), instance);
    assert_eq!(memory.all(), before);
}

/// Whatever step of a removal is the last: the next control plane completes it.
#[test]
fn a_removal_that_was_cut_short_is_completed_at_the_next_start() {
    let (memory, plane) = plane();
    plane.install(&dynamic(1, 1)).unwrap();
    let before = memory.all();
    plane.remove(1).unwrap();
    let (whole, updates) = (memory.all(), memory.writes().into_iter().rev().take(4).flatten().count());
    for done in 1..updates {
        memory.replace(before.clone());
        let dying = SwitchPlane::start(memory.clone(), wiring()).unwrap();
        memory.lose_after(Some(done));
        dying.remove(1).unwrap();
        memory.lose_after(None);
        assert_ne!(memory.all(), whole, "{done} of {updates}");
        SwitchPlane::start(memory.clone(), wiring()).unwrap();
        assert_eq!(memory.all(), whole, "{done} of {updates}");
    }
}

#[test]
fn groups_of_the_switchs_owner_stay() {
    let memory = Memory::default();
    let group = |id| Group::new(id, [Replica { port: 9, instance: 5 }]);
    let insert = |id| Update::Group(Change::Insert, group(id));
    memory.write(&[insert(7), insert(64), insert(40000)]).unwrap();
    let plane = SwitchPlane::start(memory.clone(), wiring()).unwrap();
    plane.install(&job(1, 1)).unwrap();
    plane.remove(1).unwrap();
    assert_eq!(memory.all().1, [group(64), group(40000)], "but that of a job's number");
    memory.write(&[insert(100), Update::Group(Change::Delete, group(64))]).unwrap();
    memory.rebind();
    plane.instance().unwrap();
    assert_eq!(memory.all().1, [group(100), group(40000)], "as its owner changes them");
}

/// Whatever a server sends: its numbers end no control plane.
#[test]
fn numbers_that_no_switch_has_end_nothing() {
    let (memory, plane) = plane();
    for job in 0..64 {
        for counter in ["reasons", "decided_reasons", "egress_reasons"] {
            memory.count(counter, job * 64 + Reason::Added as u32, u64::MAX);
        }
    }
    let seen = plane.counters().unwrap();
    assert!(seen.iter().map(|seen| seen.counters[Reason::Added as usize]).sum::<u64>() > 1 << 48);
    for (job, install) in [(1, job(1, 1)), (2, dynamic(2, 1))] {
        plane.install(&install).unwrap();
        let lanes: Vec<_> = memory.all().0.into_iter().filter(|entry| entry.table == "lanes").collect();
        let of_job = lanes.into_iter().filter(|entry| entry.exact_field("job") == Some(job));
        for lane in of_job {
            let changed = lane.clone().ternary("slot", u64::MAX, u64::MAX - 1).parameter("first", u32::MAX);
            let updates = [(Change::Delete, lane), (Change::Insert, changed)];
            // The lanes of a shard have one key now, so that the second insertion is refused.
            let _ = memory.write(&updates.map(|(change, entry)| Update::Entry(change, entry)));
        }
    }
    let next = SwitchPlane::start(memory.clone(), wiring()).unwrap();
    assert_eq!(next.jobs(), [], "they are no jobs");
    assert_eq!(table(&memory, "lanes"), [""; 0]);
}

/// Whatever update is the first that does not arrive: the job is there as a whole, or no trace of it.
#[test]
fn a_lost_connection_leaves_no_part_of_a_job() {
    let (memory, plane) = plane();
    plane.install(&job(1, 1)).unwrap();
    let before = memory.all();
    let mut epoch = 1;
    for updates in 0.. {
        memory.lose_after(Some(updates));
        let installed = plane.install(&job(2, epoch));
        memory.lose_after(None);
        plane.instance().unwrap();
        if installed.is_ok() {
            break;
        }
        assert_eq!(memory.all(), before, "after {updates} updates");
        epoch += 1;
    }
    assert!(epoch > 20, "{epoch}");
    let whole = memory.all();
    memory.lose_after(Some(3));
    plane.remove(2).unwrap();
    memory.lose_after(None);
    plane.instance().unwrap();
    assert!(memory.all().0.len() < whole.0.len() && table(&memory, "jobs")[1].contains("set_former_job"));
}

#[test]
fn slots_are_reduced_until_a_worker_has_sent() {
    let (memory, plane) = plane();
    plane.install(&job(1, 1)).unwrap();
    plane.resize(1, 2, "measured").unwrap();
    let lanes = table(&memory, "lanes");
    assert!(lanes.len() == 4 && lanes.iter().all(|lane| lane.contains("mask=0x1")), "{lanes:?}");
    assert_eq!(plane.reasons.all()[&1], "measured");
    assert!(plane.resize(1, 4, "").unwrap_err().to_string().contains("cannot be reduced to 4"));
    assert!(plane.resize(2, 1, "").is_err());
    memory.count("worker_events", (32 + 1) * 4, 1);
    assert!(plane.resize(1, 1, "").unwrap_err().to_string().contains("keeps its slots"));
}

#[test]
fn counters_are_of_the_job_that_has_the_number_now() {
    let (memory, plane) = plane();
    memory.count("reasons", 64 + Reason::Added as u32, 2);
    memory.count("decided_reasons", 64 + Reason::Added as u32, 3);
    memory.count("egress_reasons", 64 + Reason::Sent as u32, 6);
    memory.count("egress_reasons", 64 + Reason::Injected as u32, 7);
    memory.count("reasons", Reason::UnknownJob as u32, 8);
    let seen = plane.counters().unwrap();
    assert_eq!((seen[1].counters[Reason::Added as usize], seen[1].counters[Reason::Sent as usize]), (5, 6));
    assert_eq!((seen[1].injected.down, seen[0].counters[Reason::UnknownJob as usize]), (7, 8));
    plane.install(&job(1, 1)).unwrap();
    let seen = plane.counters().unwrap();
    assert_eq!((seen[1].counters[Reason::Added as usize], seen[1].injected.down), (0, 0));
    assert_eq!(seen[0].counters[Reason::UnknownJob as usize], 8);
}

/// The same on the behavioural model with the real program: restarts of both sides.
#[test]
fn jobs_on_the_model() {
    let Some((mut model, program)) = model("jobs_on_the_model") else { return };
    let runtime = runtime();
    let start = |model: &support::Model, election| {
        SwitchPlane::start(model.connect(&runtime, election, &program), wiring()).unwrap()
    };
    let assumed = wiring().program;
    let mut fitted = wiring();
    fitted.fit(&program.compiled_sizes().unwrap()).unwrap();
    assert_eq!(fitted.program, assumed, "the default sizes are what was compiled");
    let plane = start(&model, 1);
    for job in
        [job(1, 1), rack(job(2, 1)), root(job(3, 1)), dynamic(4, 1), rack(dynamic(5, 1)), root(dynamic(6, 1))]
    {
        plane.install(&job).unwrap();
    }
    plane.resize(1, 2, "measured").unwrap();
    plane.set_drops(1..64, Drops { up: 1, down: 2 }).unwrap();
    plane.set_drops(1..64, Drops { up: 0, down: 3 }).unwrap();
    plane.remove(6).unwrap();
    assert_eq!(plane.counters().unwrap().len(), 64);
    let (jobs, instance) = (plane.jobs(), plane.instance().unwrap());
    drop(plane);

    let plane = start(&model, 2);
    assert_eq!(
        (plane.jobs(), plane.instance().unwrap()),
        (jobs.clone(), instance),
        "the control plane was restarted"
    );
    assert_eq!(plane.take_over(&[known(&job(1, 1)), known(&dynamic(4, 1))]).unwrap().jobs, [1, 4]);
    let jobs = plane.jobs();

    model.stop();
    while plane.instance().is_ok() {
        std::thread::yield_now();
    }
    model.start();
    support::until(|| plane.instance().is_ok_and(|now| now != instance));
    let fresh = start(&model, 3);
    assert_eq!(fresh.jobs(), jobs, "all is written again");
    assert_eq!(fresh.switch().groups().unwrap().len(), 2);
}
