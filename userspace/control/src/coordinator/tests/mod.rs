//! The state machine by tables; [`random`] and [`random_dynamic`] by random sequences. Here is the world that all of them play in.

mod dynamic;
mod hosts;
mod joins;
mod life;
mod outlived;
mod posts;
mod racks;
mod random;
mod random_dynamic;
mod renewal;
mod resume;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::*;
use sumac_transport::{NonFinitePolicy, PathMeasure, Scale, WireFormat};

use crate::{OperationOrder, failure::FailureKind, refusal::RefusalKind};

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
        address: None,
        kept: Vec::new(),
    }
}

/// Wants 32 slots in each of two lanes.
fn wishes(world: u16) -> Wishes {
    Wishes {
        world,
        elements: Some(256),
        max_elements: 352,
        slots: Some(32),
        shards: Some(1),
        max_shards: 2,
        scaling: Scale::Block,
        wire: WireFormat::Int32,
        not_finite: NonFinitePolicy::Error,
        order: OperationOrder::Submission,
        checksum: true,
        mode: Mode::Static,
    }
}

fn request(job: &str, rank: u16, world: u16) -> JoinRequest {
    JoinRequest {
        job: job.into(),
        rank,
        wishes: wishes(world),
        worker: WorkerInstall {
            ip: Ipv4Addr::new(10, 77, rank as u8, 2),
            port: 48700,
            mac: [2; 6],
            local_ip: Ipv4Addr::new(10, 77, rank as u8, 1),
        },
        rack: None,
        deadline: seconds(30),
        resumes: None,
    }
}

/// The same with other wishes.
fn wanting(job: &str, rank: u16, world: u16, change: impl FnOnce(&mut Wishes)) -> JoinRequest {
    let mut request = request(job, rank, world);
    change(&mut request.wishes);
    request
}

fn doors(workers: &[WorkerInstall]) -> Vec<Door> {
    let world = workers.len() as u16;
    let door = |(rank, worker): (u16, &WorkerInstall)| Door {
        aggregator_ip: worker.local_ip,
        base_port: 48700,
        plane: PlaneKind::Host,
        result_group: None,
        rack_rank: rank,
        rack_world: world,
    };
    (0..).zip(workers).map(door).collect()
}

/// A coordinator, its clock, and a plane that does as it is told.
struct World {
    coordinator: Coordinator,
    now: Time,
    /// Jobs on the plane, with their first slot and number of slots.
    plane: BTreeMap<u16, (RunId, u32, u32)>,
    used: Vec<(u16, u16)>,
    forgotten: Vec<MemberId>,
    refuse_removal: bool,
    /// Dynamic jobs that were installed again, and where.
    restored: Vec<(RunId, Option<RackId>)>,
    refuse_restore: bool,
    /// What comes of going on with other workers.
    renewed: Result<Renewed, String>,
    /// Jobs that were an earlier control plane's, and what parameter hosts say to them.
    resumed: Vec<JobOrder>,
    refuse_resume: bool,
}

impl World {
    fn new() -> World {
        World::with(INFO)
    }

    fn with(plane: PlaneInfo) -> World {
        let random = Box::new(ChaCha8Rng::seed_from_u64(1));
        World {
            coordinator: Coordinator::new(Time::ZERO, plane, 0xa, &[], random),
            now: Time::ZERO,
            plane: BTreeMap::new(),
            used: Vec::new(),
            forgotten: Vec::new(),
            refuse_removal: false,
            restored: Vec::new(),
            refuse_restore: false,
            renewed: Ok(Renewed { doors: Vec::new(), resume: vec![3; 8], lost: Vec::new() }),
            resumed: Vec::new(),
            refuse_resume: false,
        }
    }

    fn join(&mut self, request: &JoinRequest) -> Result<MemberId, Refusal> {
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

    /// Does what the coordinator orders, and holds it against what a plane can do.
    fn work(&mut self) {
        while let Some(action) = self.coordinator.poll_action() {
            match action {
                Action::Forget(member) => self.forgotten.push(member),
                Action::Install(run, order) => {
                    self.check_install(run, &order.install);
                    self.coordinator.on_installed(run, Ok(doors(&order.install.workers)));
                }
                Action::Restore { run, order, at } => {
                    let held = self.plane.entry(order.install.job).or_insert((run, 0, 0));
                    assert_eq!(held.0, run, "another run has the number");
                    self.restored.push((run, at));
                    let result = if self.refuse_restore { Err("busy".into()) } else { Ok(()) };
                    self.coordinator.on_restored(self.now, run, at, result);
                }
                Action::Resume(run, order) => {
                    let result = if self.refuse_resume { Err("another job".into()) } else { Ok(()) };
                    self.resumed.push(order);
                    self.coordinator.on_resumed(self.now, run, result);
                }
                Action::Renew(run, order) => {
                    assert!(!self.used.contains(&(order.install.job, order.install.epoch)), "an epoch twice");
                    self.used.push((order.install.job, order.install.epoch));
                    self.plane.insert(order.install.job, (run, 0, 0));
                    let result = self.renewed.clone();
                    self.coordinator.on_renewed(self.now, run, result);
                }
                Action::Withdraw(run, job) => {
                    self.plane.remove(&job);
                    self.coordinator.on_removed(self.now, run, Ok(()));
                }
                Action::Resize { run, job, lane_slots, reason } => {
                    assert!(!reason.is_empty());
                    // Nothing is there when the plane has lost its memory meanwhile.
                    if let Some(held) = self.plane.get_mut(&job).filter(|held| held.0 == run) {
                        assert!(lane_slots * 2 <= held.2, "a job only shrinks");
                        held.2 = lane_slots * 2;
                    }
                    self.coordinator.on_resized(run, Ok(()));
                }
                Action::Remove(run, _) if self.refuse_removal => {
                    self.coordinator.on_removed(self.now, run, Err("busy".into()));
                }
                Action::Remove(run, job) => {
                    // Nothing is there when the plane has lost its memory meanwhile.
                    if let Some(held) = self.plane.remove(&job) {
                        assert_eq!(held.0, run);
                    }
                    self.coordinator.on_removed(self.now, run, Ok(()));
                }
            }
        }
    }

    fn check_install(&mut self, run: RunId, job: &JobInstall) {
        assert!(!self.used.contains(&(job.job, job.epoch)), "an incarnation is used twice");
        self.used.push((job.job, job.epoch));
        if job.dynamic.is_some() {
            assert_eq!(
                (job.first_slot, job.slots(), job.stealing),
                (0, 0, false),
                "it has no slots of its own"
            );
            let replaced = self.plane.insert(job.job, (run, 0, 0));
            return assert_eq!(replaced, None, "the earlier incarnation is still there");
        }
        let end = job.first_slot + job.slots();
        assert!(end <= INFO.slots && job.lane_slots.is_power_of_two());
        for (_, first, slots) in self.plane.values().filter(|(.., slots)| *slots > 0) {
            assert!(end <= *first || first + slots <= job.first_slot, "slots overlap");
        }
        let replaced = self.plane.insert(job.job, (run, job.first_slot, job.slots()));
        assert_eq!(replaced, None, "the earlier incarnation is still there");
    }

    /// Time passes in small steps, with heartbeats of `alive`.
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
            Status::Failed(failure) => failure,
            other => panic!("{other:?}"),
        }
    }

    fn refusal(&self, member: MemberId) -> Refusal {
        match self.status(member) {
            Status::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }

    fn running(&self, member: MemberId) -> Grant {
        match self.status(member) {
            Status::Running(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    fn grant(&self, member: MemberId) -> Assignment {
        self.running(member).assignment
    }

    fn departed(&self, member: MemberId) -> Vec<u16> {
        self.running(member).departed
    }

    fn post(&mut self, member: MemberId, first: u64, posts: Vec<Post>) {
        self.coordinator.post(self.now, member, first, posts);
        self.work();
    }
}
