//! Attach, detach, attach again: jobs that are kept, programs that are replaced, options that are refused,
//! and removal.
//!
//! ```text
//!   [w0]==p0 [aggregator]
//!   [w1]==p1
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use std::{
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::Duration,
};

use sumac_agg::{
    AddJobError, Aggregator, AttachError, AttachOptions, attach, clean, detach, job::worker_entry,
};
use sumac_agg_job::{JobError, NewJob};
use sumac_loader::{AttachError as LoaderError, BoundXdpMode, Interface, XdpMode};
use sumac_netutil::{Steer, neighbour};
use sumac_wire::{
    DEFAULT_BASE_PORT, Header,
    header::{HEADER_LEN, flag},
    tables::{JobEntry, job_flag},
};
use support::{
    dynamic,
    frames::{header, sum},
    job_of, needs_privileges,
    net::{Namespace, cable},
    with_entry,
};

const ELEMENTS: u16 = 64;

struct Lab {
    middle: Namespace,
    sockets: Vec<UdpSocket>,
    _workers: Vec<Namespace>,
}

impl Lab {
    fn new() -> Lab {
        let middle = Namespace::new("agg");
        let (mut sockets, mut workers) = (Vec::new(), Vec::new());
        for rank in 0..2u8 {
            let worker = Namespace::new("w");
            let (own, peer) = (format!("10.78.{rank}.2/24"), format!("10.78.{rank}.1/24"));
            cable((&middle, &format!("p{rank}"), Some(&peer)), (&worker, "w", Some(&own)));
            sockets.push(worker.socket(Ipv4Addr::new(10, 78, rank, 2), DEFAULT_BASE_PORT));
            workers.push(worker);
        }
        Lab { middle, sockets, _workers: workers }
    }

    fn options(&self) -> AttachOptions {
        let both = vec!["p0".to_owned(), "p1".to_owned()];
        AttachOptions {
            slots: 64,
            elements: Some(256),
            pin_root: self.middle.pins.clone(),
            ..AttachOptions::new(both)
        }
    }

    fn attach(&self, options: &AttachOptions) -> Result<Aggregator, AttachError> {
        self.middle.inside(|| attach(options).map(|attached| attached.aggregator))
    }

    fn job(&self) -> NewJob {
        let way = |rank: u8| {
            let ip = Ipv4Addr::new(10, 78, rank, 2);
            let neighbour = self.middle.inside(|| neighbour::resolve(ip).unwrap());
            worker_entry(SocketAddrV4::new(ip, DEFAULT_BASE_PORT), &neighbour)
        };
        let job = with_entry(job_of(2, ELEMENTS), |entry| JobEntry { slot_base: 0, epoch: 1, ..entry });
        NewJob { job: 9, workers: (0..2).map(way).collect(), ..job }
    }

    fn contribute(&self, job: &NewJob, rank: usize, seq: u32) {
        let header = header(job, rank, seq, ELEMENTS);
        self.send(job, rank, &header, &dynamic::values(&header, rank));
    }

    fn send(&self, job: &NewJob, rank: usize, header: &Header, values: &[i32]) {
        let values = values.iter().flat_map(|value| value.to_be_bytes());
        let payload: Vec<u8> = header.to_bytes().into_iter().chain(values).collect();
        let to = SocketAddrV4::new(job.workers[rank].aggregator_ip.into(), DEFAULT_BASE_PORT);
        self.sockets[rank].send_to(&payload, to).unwrap();
    }

    fn expect_result(&self, seq: u32) {
        for (rank, socket) in self.sockets.iter().enumerate() {
            let mut bytes = [0; 2000];
            let len =
                socket.recv(&mut bytes).unwrap_or_else(|error| panic!("rank {rank}, chunk {seq}: {error}"));
            assert_eq!(Header::read(&bytes[..len], 0, len).unwrap().seq, seq, "rank {rank}");
            let values =
                bytes[HEADER_LEN..len].as_chunks::<4>().0.iter().map(|chunk| i32::from_be_bytes(*chunk));
            assert_eq!(values.collect::<Vec<_>>(), sum(0..2, seq, ELEMENTS.into()), "rank {rank}");
        }
    }

    /// Returns the modes of the programs on both interfaces.
    fn bound(&self) -> Vec<Vec<BoundXdpMode>> {
        let modes = |name| Interface::by_name(name).unwrap().xdp.iter().map(|program| program.mode).collect();
        self.middle.inside(|| ["p0", "p1"].map(modes).to_vec())
    }
}

const DRIVER: [BoundXdpMode; 1] = [BoundXdpMode::Driver];
const GENERIC: [BoundXdpMode; 1] = [BoundXdpMode::Generic];

#[test]
fn a_job_goes_on_after_detach_and_attach() {
    needs_privileges!("a_job_goes_on_after_detach_and_attach");
    let lab = Lab::new();
    let aggregator = lab.attach(&lab.options()).unwrap();
    let instance = lab.middle.inside(|| aggregator.state().unwrap().instance);
    let job = lab.job();
    lab.middle.inside(|| aggregator.add_job(&job).unwrap());
    lab.contribute(&job, 0, 0);
    let detached = lab.middle.inside(|| detach(&lab.middle.pins, &[]).unwrap());
    assert_eq!(detached.interfaces, ["p0", "p1"]);
    assert_eq!(detached.kept_jobs, [9]);
    assert_eq!(lab.bound(), [[], []]);
    assert!(!lab.middle.inside(|| aggregator.is_bound().unwrap()));
    lab.attach(&lab.options()).unwrap();
    assert_eq!(lab.middle.inside(|| aggregator.state().unwrap().instance), instance, "the same slots");
    lab.contribute(&job, 1, 0);
    lab.expect_result(0);
    // The same with programs that are replaced while attached.
    lab.contribute(&job, 1, 1);
    lab.attach(&lab.options()).unwrap();
    lab.contribute(&job, 0, 1);
    lab.expect_result(1);
}

#[test]
fn a_dynamic_job_goes_on_after_detach_and_attach() {
    needs_privileges!("a_dynamic_job_goes_on_after_detach_and_attach");
    let lab = Lab::new();
    let aggregator = lab.attach(&lab.options()).unwrap();
    let job = lab.job();
    // The second worker is the parameter host as well, with the same socket.
    let parents = vec![job.workers[1]];
    let dynamic = |entry: JobEntry| JobEntry {
        flags: entry.flags | job_flag::DYNAMIC,
        slots: 16,
        lane_slots_log2: 0,
        ..entry
    };
    let fixed = job.clone();
    let job = NewJob { parents, ..with_entry(job, dynamic) };
    lab.middle.inside(|| aggregator.add_job(&job).unwrap());
    let contribute = |rank: usize, seq: u32| {
        let header = dynamic::header(&job, rank, seq, 3);
        lab.send(&job, rank, &header, &dynamic::values(&header, rank));
    };
    for seq in 0..2 {
        contribute(0, seq);
        if seq == 0 {
            lab.middle.inside(|| detach(&lab.middle.pins, &[]).unwrap());
        }
        lab.attach(&lab.options()).unwrap();
        contribute(1, seq);
        let mut bytes = [0; 2000];
        let len = lab.sockets[1].recv(&mut bytes).unwrap();
        let got = Header::read(&bytes[..len], 0, len).unwrap();
        assert_eq!((got.seq, got.bitmap_0, got.flags), (seq, 0b11, flag::LEVEL));
        let result = dynamic::result(&got);
        lab.send(&job, 1, &result, &sum(0..2, seq, ELEMENTS.into()));
        lab.expect_result(seq);
    }
    // A restarted control plane installs it again unchanged; a static job needs another epoch.
    lab.middle.inside(|| {
        assert!(aggregator.remove_job(job.job).unwrap());
        aggregator.add_job(&job).unwrap();
        assert!(aggregator.remove_job(job.job).unwrap());
        let another = with_entry(job.clone(), |entry| JobEntry { token: entry.token ^ 1, ..entry });
        let refused = aggregator.add_job(&another).unwrap_err();
        assert!(matches!(refused, AddJobError::Job(JobError::EpochUsed { .. })), "{refused}");
        let refused = aggregator.add_job(&fixed).unwrap_err();
        assert!(matches!(refused, AddJobError::Job(JobError::EpochUsed { .. })), "{refused}");
    });
}

#[test]
fn a_pool_with_jobs_is_not_replaced() {
    needs_privileges!("a_pool_with_jobs_is_not_replaced");
    let lab = Lab::new();
    let aggregator = lab.attach(&lab.options()).unwrap();
    let instance = || lab.middle.inside(|| aggregator.state().unwrap().instance);
    let first = instance();
    let job = lab.job();
    lab.middle.inside(|| aggregator.add_job(&job).unwrap());
    let larger = AttachOptions { slots: 128, ..lab.options() };
    let refused = lab.attach(&larger).unwrap_err();
    assert!(matches!(&refused, AttachError::PoolInUse { jobs, .. } if jobs[..] == [9]), "{refused}");
    let have = "--slots 64 --dynamic-slots 1024 --elements 256 --base-port 48700";
    assert!(refused.to_string().contains(have), "{refused}");
    let fewer = AttachOptions { dynamic_slots: 512, ..lab.options() };
    assert!(matches!(lab.attach(&fewer), Err(AttachError::PoolInUse { .. })));
    assert_eq!(lab.bound(), [DRIVER, DRIVER], "a refusal detaches nothing");
    let patient = AttachOptions { slot_timeout: Duration::from_secs(9), ..lab.options() };
    lab.attach(&patient).unwrap();
    assert_eq!(lab.middle.inside(|| aggregator.state().unwrap().slot_timeout), 9000);
    assert_eq!(instance(), first);
    assert!(lab.middle.inside(|| aggregator.remove_job(9).unwrap()));
    assert!(!lab.middle.inside(|| aggregator.remove_job(9).unwrap()), "twice");
    lab.attach(&larger).unwrap();
    assert_ne!(instance(), first, "other slots, another instance");
    assert_eq!(lab.middle.inside(|| aggregator.state().unwrap().slots), 128);
}

#[test]
fn the_bound_mode_is_the_one_asked_for() {
    needs_privileges!("the_bound_mode_is_the_one_asked_for");
    let lab = Lab::new();
    lab.attach(&AttachOptions { mode: XdpMode::Generic, ..lab.options() }).unwrap();
    assert_eq!(lab.bound(), [GENERIC, GENERIC]);
    lab.attach(&lab.options()).unwrap();
    assert_eq!(lab.bound(), [GENERIC, GENERIC], "auto keeps what is there");
    lab.attach(&AttachOptions { mode: XdpMode::Driver, ..lab.options() }).unwrap();
    assert_eq!(lab.bound(), [DRIVER, DRIVER]);
    let detached = lab.middle.inside(|| detach(&lab.middle.pins, &["p1".to_owned()]).unwrap());
    assert_eq!(detached.interfaces, ["p1"]);
    assert_eq!(lab.bound(), [DRIVER.to_vec(), vec![]]);
}

#[test]
fn an_interface_of_another_aggregator_is_refused() {
    needs_privileges!("an_interface_of_another_aggregator_is_refused");
    let lab = Lab::new();
    let other = Namespace::new("other");
    lab.attach(&AttachOptions {
        interfaces: vec!["p1".into()],
        pin_root: other.pins.clone(),
        ..lab.options()
    })
    .unwrap();
    let refused = lab.attach(&lab.options()).unwrap_err();
    let is_occupied =
        matches!(&refused, AttachError::Attach(LoaderError::Occupied { interface, .. }) if interface == "p1");
    assert!(is_occupied, "{refused}");
    assert_eq!(lab.bound(), [vec![], DRIVER.to_vec()], "p0 was not touched either");
    assert!(!lab.middle.pins.exists(), "nothing is left of what failed");
}

/// A bridge has no XDP in its driver: the interface before it is detached again, the one attached earlier
/// stays.
#[test]
fn a_failed_attachment_detaches_what_it_added() {
    needs_privileges!("a_failed_attachment_detaches_what_it_added");
    let lab = Lab::new();
    let on = |names: &[&str], mode| {
        let interfaces = names.iter().map(|name| (*name).to_owned()).collect();
        lab.attach(&AttachOptions { interfaces, mode, ..lab.options() })
    };
    let aggregator = on(&["p1"], XdpMode::Driver).unwrap();
    lab.middle.run("ip link add b0 type bridge");
    let refused = on(&["p0", "b0"], XdpMode::Driver).unwrap_err();
    assert!(matches!(refused, AttachError::Attach(LoaderError::Bind { .. })), "{refused}");
    assert!(refused.to_string().contains("its driver has no XDP"), "{refused}");
    assert_eq!(lab.bound(), [vec![], DRIVER.to_vec()]);
    assert_eq!(lab.middle.inside(|| aggregator.interfaces().unwrap()), ["p1"]);
}

/// A change of mode that fails attaches the former program again.
#[test]
fn a_failed_change_of_mode_keeps_the_former_program() {
    needs_privileges!("a_failed_change_of_mode_keeps_the_former_program");
    let lab = Lab::new();
    lab.middle.run("ip link add b0 type bridge");
    let on_bridge = AttachOptions { interfaces: vec!["b0".into()], ..lab.options() };
    lab.attach(&AttachOptions { mode: XdpMode::Generic, ..on_bridge.clone() }).unwrap();
    let refused = lab.attach(&AttachOptions { mode: XdpMode::Driver, ..on_bridge }).unwrap_err();
    assert!(matches!(refused, AttachError::Attach(LoaderError::Bind { .. })), "{refused}");
    let bound = lab.middle.inside(|| Interface::by_name("b0").unwrap().xdp);
    assert_eq!(bound.iter().map(|program| program.mode).collect::<Vec<_>>(), GENERIC);
    assert_eq!(lab.middle.inside(|| detach(&lab.middle.pins, &[]).unwrap()).interfaces, ["b0"]);
}

/// A veth has no rules: one shard needs none, for several the queues' choice is reported, or an error.
#[test]
fn shards_are_steered_where_the_driver_can() {
    needs_privileges!("shards_are_steered_where_the_driver_can");
    let lab = Lab::new();
    lab.middle.run("ip link add q0 numrxqueues 2 type veth peer name q1 numtxqueues 2");
    lab.middle.run("ethtool -L q0 rx 2");
    let on = |shards, steer| {
        let options = AttachOptions { interfaces: vec!["q0".into()], shards, steer, ..lab.options() };
        lab.middle.inside(|| attach(&options).map(|attached| attached.ports[0].steering.clone()))
    };
    let refused = on(2, Steer::Ntuple).unwrap_err();
    assert!(matches!(refused, AttachError::Steer(_)), "{refused}");
    assert!(!lab.middle.pins.exists(), "nothing is left of what failed");
    assert_eq!(on(1, Steer::Ntuple).unwrap(), None);
    let report = on(2, Steer::Auto).unwrap().unwrap();
    assert!(report.contains("no rules: the queue is that of the CPU"), "{report}");
    assert_eq!(lab.middle.inside(|| detach(&lab.middle.pins, &[]).unwrap()).interfaces, ["q0"]);
}

#[test]
fn jobs_need_ports_slots_and_a_new_epoch() {
    needs_privileges!("jobs_need_ports_slots_and_a_new_epoch");
    let lab = Lab::new();
    let aggregator = lab.attach(&lab.options()).unwrap();
    let add = |job: &NewJob| {
        let placed = lab.middle.inside(|| aggregator.add_job_anywhere(job.clone()));
        placed.map(|placed| placed.first_slot)
    };
    let job = lab.job();
    assert_eq!(add(&job).unwrap(), 0);
    assert!(matches!(add(&job), Err(AddJobError::Job(JobError::Taken { job: 9, epoch: 1 }))));
    let large = with_entry(job.clone(), |entry| JobEntry { slots: 32, ..entry });
    let second = NewJob { job: 10, ..large.clone() };
    assert_eq!(add(&second).unwrap(), 8);
    let third = NewJob { job: 11, ..large };
    assert!(matches!(add(&third), Err(AddJobError::PoolFull { slots: 32, pool: 64 })));
    let long = with_entry(job.clone(), |entry| JobEntry { elements: 257, ..entry });
    let long = NewJob { job: 12, ..long };
    assert!(matches!(add(&long), Err(AddJobError::Job(JobError::Elements { max: 256, .. }))));
    lab.middle.inside(|| aggregator.remove_job(9).unwrap());
    let used = add(&job);
    assert!(
        matches!(used, Err(AddJobError::Job(JobError::EpochUsed { epoch: 1, .. }))),
        "slots hold epoch 1"
    );
    let of_epoch = |epoch| with_entry(job.clone(), |entry| JobEntry { epoch, ..entry });
    assert_eq!(add(&of_epoch(2)).unwrap(), 0);
    lab.middle.inside(|| aggregator.remove_job(9).unwrap());
    let earlier = add(&of_epoch(1)).unwrap_err().to_string();
    assert!(earlier.contains("had epoch 2 before"), "{earlier}");
    assert_eq!(add(&of_epoch(3)).unwrap(), 0);
    lab.middle.inside(|| detach(&lab.middle.pins, &["p1".to_owned()]).unwrap());
    assert!(matches!(add(&NewJob { job: 13, ..job }), Err(AddJobError::NoPort { rank: 1, .. })));
}

#[test]
fn nothing_is_left() {
    needs_privileges!("nothing_is_left");
    let lab = Lab::new();
    let aggregator = lab.attach(&lab.options()).unwrap();
    lab.middle.inside(|| detach(&lab.middle.pins, &[]).unwrap());
    assert!(!lab.middle.pins.exists(), "without jobs nothing is kept");
    assert!(lab.middle.inside(|| aggregator.state().is_err()));
    assert_eq!(lab.middle.inside(|| detach(&lab.middle.pins, &[]).unwrap()).interfaces, [""; 0], "twice");
    lab.attach(&lab.options()).unwrap();
    let job = lab.job();
    lab.middle.inside(|| aggregator.add_job(&job).unwrap());
    let removed = lab.middle.inside(|| clean(&lab.middle.pins, false).unwrap());
    assert_eq!(removed.len(), 2 + 2 + sumac_agg_layout::name::KEPT.len() + 2, "{removed:?}");
    assert!(!lab.middle.pins.exists());
    assert_eq!(lab.bound(), [[], []]);
}
