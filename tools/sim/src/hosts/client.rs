//! A trainer: it opens a job, sums tensors, checks the sums, and closes the job. Some lie, hang or die.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use sumac_api::{Code, Event, Failure, Outbound, Request};
use sumac_host::{Handled, Message};
use sumac_memory::SharedRegion;

use super::host::SimHost;
use crate::events::Nanos;

/// The bytes of each operation's range in the region.
const RANGE: usize = 16 << 10;
/// The operations that are outstanding at once.
const OUTSTANDING: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Honest,
    /// Sends invalid commands between valid ones; each is refused.
    Lies,
    /// Submits one operation with another count than the other workers.
    Diverges,
    /// Submits nothing from some operation on.
    Hangs,
    /// Its connection ends at some operation.
    Dies,
}

/// The work of a job: the same on all its ranks.
#[derive(Clone, Debug)]
pub struct Work {
    pub job: String,
    pub world: u16,
    pub shards: u16,
    pub slots: u32,
    pub is_by_name: bool,
    /// Ranks of each host, where hosts have several.
    pub local_world: Option<u16>,
    /// The elements of each operation, and whether they are floats.
    pub operations: Vec<(usize, bool)>,
}

#[derive(Debug)]
enum Asked {
    Hello,
    Register,
    Open,
    Submit(usize),
    Wait,
    Invalid,
    Close,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// All sums were right, and the job was closed.
    Done,
    /// The job has ended with this failure.
    Failed(Failure),
    /// Its connection has ended.
    Gone,
}

pub struct Client {
    pub rank: u16,
    pub host: usize,
    pub behaviour: Behaviour,
    /// The operation at which it begins to misbehave.
    turn: usize,
    work: Work,
    rng: ChaCha8Rng,
    connection: u64,
    region: SharedRegion,
    asked: BTreeMap<u64, Asked>,
    next_request: u64,
    handle: u64,
    job: Option<u64>,
    /// The order in which it submits, which differs between ranks in a job by names.
    order: Vec<usize>,
    submitted: usize,
    /// The outstanding operations by their handles.
    outstanding: BTreeMap<u64, usize>,
    completed: usize,
    pub ending: Option<Ending>,
    pub since: Nanos,
}

fn value(rank: u16, operation: usize, element: usize) -> i32 {
    (usize::from(rank) * 31 + operation * 7 + element * 3) as i32 % 1000 - 300
}

impl Client {
    /// Connects to a host. `None`: it is refused.
    pub fn connect(
        now: Nanos,
        (index, host): (usize, &mut SimHost),
        rank: u16,
        work: &Work,
        behaviour: Behaviour,
        mut rng: ChaCha8Rng,
    ) -> Option<Client> {
        let uid = 1000 + if work.local_world.is_some() { 0 } else { u32::from(rank) % 2 };
        let credentials = sumac_host::Credentials { pid: 1, uid, groups: vec![uid] };
        let connection = host.call(now, |core, _, _| core.connect(now, credentials, 64)).ok()?;
        let (region, _) = SharedRegion::create(RANGE * OUTSTANDING).expect("memory for a region");
        let mut order: Vec<usize> = (0..work.operations.len()).collect();
        if work.is_by_name {
            // Neighbours in pairs, so that all names are met while few operations are outstanding.
            order.chunks_mut(2).for_each(|pair| pair.rotate_left(usize::from(rank) % pair.len()));
        }
        let turn = rng.random_range(0..work.operations.len());
        let mut client = Client {
            rank,
            host: index,
            behaviour,
            turn,
            work: work.clone(),
            rng,
            connection,
            region,
            asked: BTreeMap::new(),
            next_request: 1,
            handle: 0,
            job: None,
            order,
            submitted: 0,
            outstanding: BTreeMap::new(),
            completed: 0,
            ending: None,
            since: now,
        };
        client.ask(now, host, Asked::Hello, json!({"cmd": "hello", "version": sumac_api::VERSION}));
        client.ask(now, host, Asked::Register, json!({"cmd": "register", "size": RANGE * OUTSTANDING}));
        Some(client)
    }

    #[must_use]
    pub fn is_of(&self, host: usize, connection: u64) -> bool {
        (self.host, self.connection) == (host, connection)
    }

    fn ask(&mut self, now: Nanos, host: &mut SimHost, asked: Asked, mut command: Value) {
        let id = self.next_request;
        self.next_request += 1;
        command["id"] = id.into();
        let has_file = matches!(asked, Asked::Register);
        self.asked.insert(id, asked);
        let request = Request::parse(command.to_string().as_bytes());
        let request = request.unwrap_or_else(|rejected| panic!("{command}: {}", rejected.failure));
        let connection = self.connection;
        let handled = host
            .call(now, |core, handles, out| core.command(now, connection, request, has_file, handles, out));
        if let Handled::Register { id, region, size } = handled {
            // As the daemon does: the mapping is made without the core.
            let (mine, file) = SharedRegion::create(RANGE * OUTSTANDING).expect("memory for a region");
            let mapped = SharedRegion::from_fd(file.as_fd(), size as usize);
            self.region = mine;
            host.call(now, |core, handles, out| {
                let mapped = mapped.map(|mapped| drop(handles.regions.insert(region, mapped)));
                let mapped = mapped.map_err(|error| Failure::new(Code::BadRegion, error.to_string()));
                core.registered(connection, id, region, mapped, handles, out);
            });
        }
    }

    /// Handles a message of its daemon.
    pub fn receive(&mut self, now: Nanos, host: &mut SimHost, message: Message) {
        self.since = now;
        match message.outbound {
            Outbound::Reply { id, result } => self.replied(now, host, id, result),
            Outbound::Event(Event::Completed { op, error, .. }) => self.completed(now, host, op, error),
            Outbound::Event(Event::JobFailed { error, .. }) => {
                assert!(self.outstanding.is_empty(), "operations end before their job");
                self.ending.get_or_insert(Ending::Failed(error));
            }
            Outbound::Event(Event::Waiting { .. } | Event::Left { .. }) => {}
        }
    }

    fn replied(&mut self, now: Nanos, host: &mut SimHost, id: Option<u64>, result: Result<Value, Failure>) {
        let asked = id.and_then(|id| self.asked.remove(&id)).expect("a reply has a request");
        match (asked, result) {
            (Asked::Hello | Asked::Wait, Ok(_)) => {}
            (Asked::Register, Ok(reply)) => {
                self.handle = reply["region"].as_u64().expect("a handle");
                let Work { job, world, shards, slots, is_by_name, local_world, .. } = &self.work;
                let order = if *is_by_name { "name" } else { "submission" };
                let mut open = json!({"cmd": "open",
                    "job": job, "rank": self.rank, "world": world, "shards": shards,
                    "slots": slots, "order": order, "timeout_s": 5.0});
                if let Some(local) = local_world {
                    open["local_world"] = (*local).into();
                }
                self.ask(now, host, Asked::Open, open);
            }
            (Asked::Open, Ok(reply)) => {
                self.job = reply["job"].as_u64();
                self.submit(now, host);
            }
            (Asked::Submit(operation), Ok(reply)) => {
                let op = reply["op"].as_u64().expect("a handle");
                self.outstanding.insert(op, operation);
                if self.rng.random_bool(0.2) {
                    let wait = json!({"cmd": "wait", "op": op, "timeout_ms": self.rng.random_range(1..500)});
                    self.ask(now, host, Asked::Wait, wait);
                }
            }
            (Asked::Close, Ok(_)) => {
                self.ending.get_or_insert(Ending::Done);
            }
            (Asked::Invalid, Err(failure)) => assert_ne!(failure.code, Code::Internal, "{failure}"),
            // The operation has failed, or the time is up; its end comes by itself.
            (Asked::Wait, Err(_)) => {}
            (Asked::Submit(_) | Asked::Open | Asked::Close, Err(failure)) => {
                self.ending.get_or_insert(Ending::Failed(failure));
            }
            (asked, result) => panic!("{asked:?}: {result:?}"),
        }
    }

    fn completed(&mut self, now: Nanos, host: &mut SimHost, op: u64, error: Option<Failure>) {
        let operation = self.outstanding.remove(&op).expect("an operation ends once");
        let word = self.region.word(operation % OUTSTANDING * RANGE).map(|word| word.load());
        let expected = if error.is_none() { sumac_api::WORD_COMPLETE } else { sumac_api::WORD_FAILED };
        assert_eq!(word.ok(), Some(expected), "the completion word is set before the message");
        if let Some(failure) = error {
            self.ending.get_or_insert(Ending::Failed(failure));
            return;
        }
        self.check(operation);
        self.completed += 1;
        if self.completed == self.order.len() {
            let close = json!({"cmd": "close", "job": self.job});
            return self.ask(now, host, Asked::Close, close);
        }
        self.submit(now, host);
    }

    fn bytes(&self, operation: usize) -> (usize, usize, bool) {
        let (count, is_float) = self.work.operations[operation];
        (operation % OUTSTANDING * RANGE + 64, count * 4, is_float)
    }

    fn check(&self, operation: usize) {
        let (at, len, is_float) = self.bytes(operation);
        let lease = self.region.lease(at..at + len, 0..0).expect("its own memory");
        let bytes = lease.input(0, len).expect("its own memory");
        for (element, bytes) in bytes.chunks_exact(4).enumerate() {
            let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
            let sum: i32 = (0..self.work.world).map(|rank| value(rank, operation, element)).sum();
            if is_float {
                let found = f32::from_ne_bytes(bytes);
                assert!((found - sum as f32).abs() <= 0.01, "element {element}: {found}, not {sum}");
            } else {
                assert_eq!(i32::from_ne_bytes(bytes), sum, "element {element} of operation {operation}");
            }
        }
    }

    /// Submits operations up to its window.
    fn submit(&mut self, now: Nanos, host: &mut SimHost) {
        while self.submitted < self.order.len() && self.ending.is_none() {
            let operation = self.order[self.submitted];
            // Its range may still be in use: ranges are taken in turns.
            let first = self.outstanding.values().chain(self.unanswered()).min().copied();
            if first.is_some_and(|first| operation >= first + OUTSTANDING) {
                return;
            }
            if self.submitted >= self.turn && matches!(self.behaviour, Behaviour::Hangs | Behaviour::Dies) {
                return;
            }
            self.submitted += 1;
            self.submit_one(now, host, operation);
            if self.behaviour == Behaviour::Lies && self.rng.random_bool(0.5) {
                let lie = self.lie();
                self.ask(now, host, Asked::Invalid, lie);
            }
        }
    }

    fn unanswered(&self) -> impl Iterator<Item = &usize> {
        self.asked
            .values()
            .filter_map(|asked| if let Asked::Submit(operation) = asked { Some(operation) } else { None })
    }

    fn submit_one(&mut self, now: Nanos, host: &mut SimHost, operation: usize) {
        let (at, len, is_float) = self.bytes(operation);
        if let Ok(word) = self.region.word(at - 64) {
            word.store(0);
        }
        let mut lease = self.region.lease(0..0, at..at + len).expect("its own memory");
        let bytes = lease.output(0, len).expect("its own memory");
        for (element, bytes) in bytes.chunks_exact_mut(4).enumerate() {
            let value = value(self.rank, operation, element);
            let value = if is_float { (value as f32).to_ne_bytes() } else { value.to_ne_bytes() };
            bytes.copy_from_slice(&value);
        }
        drop(lease);
        let diverges = self.behaviour == Behaviour::Diverges && operation == self.turn;
        let count = if diverges { len / 4 + 1 } else { len / 4 };
        let mut command = json!({"cmd": "allreduce", "job": self.job, "region": self.handle, "offset": at,
            "dtype": if is_float { "float32" } else { "int32" }, "count": count, "completion_word": at - 64});
        if self.work.is_by_name {
            command["name"] = format!("t{operation}").into();
        }
        self.ask(now, host, Asked::Submit(operation), command);
    }

    /// Returns a command that is refused.
    fn lie(&mut self) -> Value {
        let (job, region) = (self.job, self.handle);
        let lies = [
            json!({"cmd": "allreduce",
                "job": 99, "region": region, "dtype": "int32", "offset": 0, "count": 1}),
            json!({"cmd": "allreduce",
                "job": job, "region": 99, "dtype": "int32", "offset": 0, "count": 1, "name": "x"}),
            json!({"cmd": "allreduce",
                "job": job, "region": region, "dtype": "int32", "offset": 1, "count": 1, "name": "x"}),
            json!({"cmd": "allreduce", "job": job,
                "region": region, "dtype": "int32", "offset": 0, "count": 1_u64 << 40, "name": "x"}),
            json!({"cmd": "allreduce",
                "job": job, "region": region, "dtype": "int32", "offset": 0, "count": 60000, "name": "x"}),
            json!({"cmd": "broadcast", "job": job,
                "region": region, "dtype": "int32", "offset": 0, "count": 1, "root": 77, "name": "x"}),
            json!({"cmd": "wait", "op": 12345}),
            json!({"cmd": "cancel", "op": 12345}),
            json!({"cmd": "unregister", "region": 77}),
            json!({"cmd": "close", "job": 77}),
            json!({"cmd": "attach", "job": self.work.job, "secret": "wrong"}),
            json!({"cmd": "post_send",
                "job": job, "region": region, "dtype": "int32", "offset": 0, "count": 1, "destination": 0}),
            json!({"cmd": "open", "job": "", "rank": 0, "world": 1}),
            json!({"cmd": "hello", "version": 1}),
        ];
        lies[self.rng.random_range(0..lies.len())].clone()
    }

    /// Whether its turn to die has come.
    #[must_use]
    pub fn is_to_die(&self) -> bool {
        self.behaviour == Behaviour::Dies && self.job.is_some() && self.submitted >= self.turn
    }

    /// Ends its connection.
    pub fn disconnect(&mut self, now: Nanos, host: &mut SimHost) {
        let connection = self.connection;
        host.call(now, |core, handles, out| core.disconnect(connection, "went away", handles, out));
        self.ending.get_or_insert(Ending::Gone);
        self.outstanding.clear();
        self.asked.clear();
    }

    /// Its host has died.
    pub fn lose_host(&mut self) {
        self.ending.get_or_insert(Ending::Gone);
        self.outstanding.clear();
        self.asked.clear();
    }

    /// The requests without a reply and the operations without an end, for messages.
    #[must_use]
    pub fn open_ends(&self) -> String {
        format!(
            "rank {} ({:?}): ending {:?}, asked {:?}, outstanding {:?}",
            self.rank, self.behaviour, self.ending, self.asked, self.outstanding
        )
    }

    #[must_use]
    pub fn has_open_ends(&self) -> bool {
        self.ending.is_none() || !self.asked.is_empty() || !self.outstanding.is_empty()
    }
}
