//! The state machine by tables; [`random`] and [`random_dynamic`] by random sequences, with restarts from the
//! journal. This file has the world of all of them.

mod disk;
mod dynamic;
mod hosts;
mod isolation;
mod joins;
mod life;
mod members;
mod outlived;
mod posts;
mod racks;
mod random;
mod random_dynamic;
mod replacement;
mod restart;
mod shares;
mod standstill;
mod switch;

use std::{net::Ipv4Addr, path::Path};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use sumac_job::{
    JobSpec, JobTerms, NonFinitePolicy, OperationOrder, PathMeasure, Placement, Scale, WireFormat,
};

use super::*;
use crate::{
    events::Post,
    failure::{FailureKind, JobFailure},
    journal::{self, Journal, simulated::Simulated},
    message::{Attempt, JoinRequest, WorkerHost},
    plane::{KnownJob, LastEpoch, TakenOver, WorkerInstall},
    server::recorder::Recorder,
};

const fn seconds(seconds: u64) -> Time {
    Time::from_secs(seconds)
}

const fn millis(millis: u64) -> Time {
    Time::from_millis(millis)
}

const INFO: PlaneInfo = plane(256, 360);

const fn plane(slots: u32, max_elements: u16) -> PlaneInfo {
    PlaneInfo {
        kind: PlaneKind::Host,
        slots,
        max_elements,
        narrowest: None,
        base_port: 48700,
        shards: 2,
        dynamic_slots: 0,
        verifies_checksums: true,
        marks_overflow: true,
        bounds_loss: true,
        socket_bytes: None,
        address: None,
        kept: Vec::new(),
        jobs: sumac_wire::MAX_JOBS as u16 - 1,
    }
}

/// Asks for 32 slots in each of two lanes.
fn request(job: &str, rank: u16, world: u16) -> Join {
    let spec = JobSpec {
        elements: Some(256),
        slots: Some(32),
        shards: Some(1),
        timeout_s: Some(30.0),
        ..JobSpec::new(job, rank, world)
    };
    let host = WorkerHost {
        data_ip: Ipv4Addr::UNSPECIFIED,
        data_port: 48700,
        mac: [2; 6],
        max_elements: 352,
        max_shards: 2,
        checksum: true,
        paths: 1,
        has_udp: false,
        user: 0,
    };
    let worker = WorkerInstall {
        ip: Ipv4Addr::new(10, 77, rank as u8, 2),
        port: 48700,
        mac: [2; 6],
        local_ip: Ipv4Addr::new(10, 77, rank as u8, 1),
        paths: 1,
    };
    Join { asked: JoinRequest::new(spec, host), worker, rack: None, holders: Vec::new() }
}

/// The same with another request.
fn wanting(job: &str, rank: u16, world: u16, change: impl FnOnce(&mut JoinRequest)) -> Join {
    let mut request = request(job, rank, world);
    change(&mut request.asked);
    request
}

/// The same with so many seconds to wait for the others.
fn within(seconds: f64, mut request: Join) -> Join {
    request.asked.spec.timeout_s = Some(seconds);
    request
}

fn placements(order: &JobOrder) -> Vec<Placement> {
    let of = |(rank, worker): (u16, &WorkerInstall)| {
        let position = order.layout.position(rank.into()).unwrap();
        Placement {
            rank,
            aggregator_ip: worker.local_ip,
            base_port: 48700,
            aggregator: PlaneKind::Host,
            result_group: None,
            rack_rank: position.bit as u16,
            rack_world: position.fan_in as u16,
            bitmap_1: order.layout.bitmap_1(position),
            beside_root: order.layout.is_beside_racks(position),
        }
    };
    (0..).zip(&order.workers).map(of).collect()
}

/// A coordinator, its clock, its journal, and a plane that does as commanded.
struct World {
    coordinator: Coordinator,
    now: Time,
    info: PlaneInfo,
    instance: u64,
    /// The journal's bytes.
    journal: Vec<u8>,
    /// In place of those, a disk with faults, and the server's part that writes to it.
    disk: Option<(Simulated, Recorder)>,
    seed: u64,
    /// Jobs on the plane, with their run, first slot and number of slots.
    plane: BTreeMap<u16, (RunId, u32, u32)>,
    used: Vec<(u16, u16)>,
    refuse_removal: bool,
    /// Dynamic jobs that were installed again, and where.
    restored: Vec<(RunId, Option<RackId>)>,
    refuse_restore: bool,
    /// The outcome of going on with other workers.
    replaced: Result<Replaced, String>,
}

impl World {
    fn new() -> World {
        World::with(INFO)
    }

    fn with(info: PlaneInfo) -> World {
        let random = Box::new(ChaCha8Rng::seed_from_u64(1));
        let taken = TakenOver::default();
        let coordinator =
            Coordinator::restore(Time::ZERO, info.clone(), 0xa, &taken, Restart::default(), random);
        World {
            coordinator,
            now: Time::ZERO,
            info,
            instance: 0xa,
            journal: Vec::new(),
            disk: None,
            seed: 1,
            plane: BTreeMap::new(),
            used: Vec::new(),
            refuse_removal: false,
            restored: Vec::new(),
            refuse_restore: false,
            replaced: Ok(Replaced { placements: Vec::new(), resume: vec![3; 8], lost: Vec::new() }),
        }
    }

    fn join(&mut self, request: &Join) -> Result<MemberId, Refusal> {
        if let Some((_, recorder)) = &mut self.disk {
            recorder.repair(self.now, &mut self.coordinator).map_err(|why| Refusal::journal(&why))?;
        }
        let result = self.coordinator.join(self.now, request);
        self.work();
        result
    }

    /// All ranks of a job join.
    fn start(&mut self, job: &str, world: u16) -> Vec<MemberId> {
        (0..world).map(|rank| self.join(&request(job, rank, world)).unwrap()).collect()
    }

    fn leave(&mut self, member: MemberId, outcome: Outcome) {
        self.coordinator.leave(member, &outcome);
        self.work();
    }

    /// Writes the journal.
    fn record(&mut self) {
        match &mut self.disk {
            None => self.journal.extend(journal::encode(&self.coordinator.poll_records())),
            Some((_, recorder)) => recorder.record(self.now, &mut self.coordinator),
        }
    }

    /// Executes the coordinator's commands, and checks that a plane can.
    fn work(&mut self) {
        self.record();
        while let Some(action) = self.coordinator.poll_action() {
            match action {
                Action::Install(run, order) => {
                    self.check_install(run, &order);
                    let installed = InstalledJob { placements: placements(&order), parents: Vec::new() };
                    self.coordinator.on_installed(run, Ok(installed));
                }
                Action::Restore { run, order, at } => {
                    let held = self.plane.entry(order.terms.job).or_insert((run, 0, 0));
                    assert_eq!(held.0, run, "another run has the number");
                    self.restored.push((run, at));
                    let result = if self.refuse_restore { Err("busy".into()) } else { Ok(()) };
                    self.coordinator.on_restored(self.now, run, at, result);
                }
                Action::Renew(run, order) => {
                    assert!(!self.used.contains(&(order.terms.job, order.terms.epoch)), "an epoch twice");
                    self.used.push((order.terms.job, order.terms.epoch));
                    self.plane.insert(order.terms.job, (run, 0, 0));
                    let result = self.replaced.clone();
                    self.coordinator.on_replaced(self.now, run, result);
                }
                Action::Resize(run, order) => {
                    assert!(!order.terms.slots_reason.is_empty());
                    // The plane may have lost its memory meanwhile.
                    if let Some(held) = self.plane.get_mut(&order.terms.job).filter(|held| held.0 == run) {
                        assert!(order.terms.slots * 2 <= held.2, "a job only shrinks");
                        held.2 = order.terms.slots * 2;
                    }
                    self.coordinator.on_resized(run, Ok(()));
                }
                Action::Remove { run, .. } if self.refuse_removal => {
                    self.coordinator.on_removed(self.now, run, Err("busy".into()));
                }
                Action::Remove { run, job, .. } => {
                    if let Some(held) = self.plane.remove(&job) {
                        assert_eq!(held.0, run);
                    }
                    self.coordinator.on_removed(self.now, run, Ok(()));
                }
            }
            self.record();
        }
    }

    fn check_install(&mut self, run: RunId, order: &JobOrder) {
        let terms = &order.terms;
        assert!(!self.used.contains(&(terms.job, terms.epoch)), "an incarnation is used twice");
        self.used.push((terms.job, terms.epoch));
        if terms.is_dynamic() || terms.is_direct() {
            let steals = order.stealing && terms.is_dynamic();
            assert_eq!((order.first_slot, steals), (0, false), "it has no slots of its own");
            let before = self.plane.insert(terms.job, (run, 0, 0));
            return assert_eq!(before, None, "the earlier incarnation is still there");
        }
        let slots = terms.slots * u32::from(terms.lanes());
        let end = order.first_slot + slots;
        assert!(end <= INFO.slots && terms.slots.is_power_of_two());
        for (_, first, slots) in self.plane.values().filter(|(.., slots)| *slots > 0) {
            assert!(end <= *first || first + slots <= order.first_slot, "slots overlap");
        }
        let before = self.plane.insert(terms.job, (run, order.first_slot, slots));
        assert_eq!(before, None, "the earlier incarnation is still there");
    }

    /// The coordinator is killed, and another one takes up what the journal has. `torn`: so many bytes of its
    /// end are lost.
    fn restart(&mut self, torn: usize) {
        let kept = self.journal.len().saturating_sub(torn);
        let (mut records, len) = journal::read(&self.journal[..kept]);
        self.journal.truncate(len);
        let opened = self.disk.take().map(|(disk, _)| {
            let (journal, read) = Journal::read(Path::new("disk"), Box::new(disk.clone())).unwrap();
            records = read;
            (disk, journal)
        });
        let restart = Restart::new(records);
        let known = restart.known_jobs();
        let used = &self.used;
        let has = |job: u16, known: &KnownJob| {
            let epoch = used.iter().rev().find(|(other, _)| *other == job).map_or(0, |(_, epoch)| *epoch);
            known.is(job, epoch, known.token)
        };
        self.plane.retain(|job, _| known.iter().any(|known| has(*job, known)));
        let taken = TakenOver {
            jobs: self.plane.keys().copied().collect(),
            // The slots remember what was installed.
            last_epochs: self
                .used
                .iter()
                .map(|(job, epoch)| LastEpoch { job: *job, epoch: *epoch })
                .collect(),
        };
        self.seed += 1;
        let random = Box::new(ChaCha8Rng::seed_from_u64(self.seed));
        let (grace, limits) = (self.coordinator.rejoin_grace, self.coordinator.join_limits);
        self.coordinator =
            Coordinator::restore(self.now, self.info.clone(), self.instance, &taken, restart, random);
        (self.coordinator.rejoin_grace, self.coordinator.join_limits) = (grace, limits);
        self.disk = opened.map(|(disk, journal)| {
            let recorder = Recorder::new(journal, self.now, &mut self.coordinator);
            (disk, recorder)
        });
        self.work();
    }

    fn lose_state(&mut self) {
        self.instance += 1;
        self.plane.clear();
        self.coordinator.on_plane(self.now, Ok((self.instance, self.info.clone())));
        self.work();
    }

    /// Time passes in small steps, with messages of `alive`.
    fn pass(&mut self, time: Time, alive: &[MemberId]) {
        let end = self.now + time;
        while self.now < end {
            self.now += millis(100);
            for member in alive {
                self.coordinator.heartbeat(self.now, *member);
            }
            self.coordinator.tick(self.now);
            self.work();
        }
    }

    fn status(&self, member: MemberId) -> Status {
        self.coordinator.status(member).expect("a member").1
    }

    fn failure(&self, member: MemberId) -> JobFailure {
        match self.status(member) {
            Status::Over(End::Failed(failure)) => failure,
            other => panic!("{other:?}"),
        }
    }

    fn refusal(&self, member: MemberId) -> Refusal {
        match self.status(member) {
            Status::Over(End::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    }

    fn running(&self, member: MemberId) -> (Grant, Vec<u16>) {
        match self.status(member) {
            Status::Running { grant, departed } => (*grant, departed),
            other => panic!("{other:?}"),
        }
    }

    fn terms(&self, member: MemberId) -> JobTerms {
        self.running(member).0.terms
    }

    fn placement(&self, member: MemberId) -> Placement {
        self.running(member).0.placement
    }

    fn departed(&self, member: MemberId) -> Vec<u16> {
        self.running(member).1
    }

    fn post(&mut self, member: MemberId, first: u64, posts: Vec<Post>) {
        self.coordinator.post(self.now, member, first, posts);
        self.work();
    }
}
