//! Trainers that a test drives, on simulated hosts.

use serde_json::{Value, json};
use sumac_api::{Failure, Outbound, Request};
use sumac_host::{ConnectionId, Credentials, Handled};
use sumac_memory::SharedRegion;
use sumac_sim::events::{MILLI, Nanos};
use sumac_sim::hosts::cluster::{Cluster, Network};

pub const SECOND: Nanos = 1000 * MILLI;
pub const REGION: usize = 1 << 20;

/// A trainer's connection to the daemon of a host.
#[derive(Clone, Copy)]
pub struct Trainer {
    pub host: usize,
    pub connection: ConnectionId,
}

/// A trainer with a job open and a region registered, by their handles.
pub struct Rank {
    pub trainer: Trainer,
    pub job: Value,
    pub region: Value,
}

/// Hosts, and the trainers that a test drives.
pub struct World {
    pub cluster: Cluster,
    pub requests: u64,
}

/// Returns an object with further fields.
pub fn with(mut object: Value, more: Value) -> Value {
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object
}

pub fn json(outbound: &Outbound) -> Value {
    serde_json::from_slice(&outbound.encode().unwrap()).unwrap()
}

/// Returns the code of an error reply.
pub fn code(reply: &Value) -> &str {
    reply["error"]["code"].as_str().unwrap_or("none")
}

impl World {
    pub fn new(hosts: usize, shards: u16) -> World {
        World { cluster: Cluster::new(7, hosts, shards, Network::default(), Vec::new()), requests: 0 }
    }

    pub fn connect(&mut self, host: usize) -> Trainer {
        self.connect_as(host, 1000)
    }

    pub fn connect_as(&mut self, host: usize, uid: u32) -> Trainer {
        let (now, credentials) = (self.cluster.now(), Credentials { pid: 1, uid, groups: vec![uid] });
        let found = self.cluster.hosts[host].as_mut().unwrap();
        let connection = found.call(now, |core, _, _| core.connect(now, credentials, 256)).unwrap();
        Trainer { host, connection }
    }

    /// Connects, and sends `hello`.
    pub fn trainer(&mut self, host: usize) -> Trainer {
        let trainer = self.connect(host);
        assert_eq!(code(&self.ask(trainer, json!({"cmd": "hello", "version": sumac_api::VERSION}))), "none");
        trainer
    }

    /// Sends a command and returns its id.
    pub fn send(&mut self, Trainer { host, connection }: Trainer, mut command: Value) -> u64 {
        self.requests += 1;
        let (id, now) = (self.requests, self.cluster.now());
        command["id"] = id.into();
        let request = match Request::parse(command.to_string().as_bytes()) {
            Ok(request) => request,
            Err(rejected) => {
                self.cluster.mail.push((host, connection, Outbound::failed(Some(id), *rejected.failure)));
                return id;
            }
        };
        let (found, has_file) = (self.cluster.hosts[host].as_mut().unwrap(), command["cmd"] == "register");
        let handled = found
            .call(now, |core, handles, out| core.command(now, connection, request, has_file, handles, out));
        if let Handled::Register { id, region, size } = handled {
            let (mapped, _) = SharedRegion::create(size as usize).unwrap();
            found.call(now, |core, handles, out| {
                handles.regions.insert(region, mapped);
                core.registered(connection, id, region, Ok(()), handles, out);
            });
        }
        id
    }

    /// Returns the next message to a trainer that is wanted.
    pub fn next(&mut self, Trainer { host, connection }: Trainer, wanted: impl Fn(&Value) -> bool) -> Value {
        let is_wanted = |mail: &(usize, ConnectionId, Outbound)| {
            (mail.0, mail.1) == (host, connection) && wanted(&json(&mail.2))
        };
        let end = self.cluster.now() + 60 * SECOND;
        let has_come = self.cluster.mail.iter().any(is_wanted)
            || self.cluster.run(end, |cluster| cluster.mail.iter().any(is_wanted));
        assert!(has_come, "no such message: {:?}", self.cluster.mail);
        let at = self.cluster.mail.iter().position(is_wanted).unwrap();
        json(&self.cluster.mail.remove(at).2)
    }

    pub fn reply(&mut self, trainer: Trainer, id: u64) -> Value {
        self.next(trainer, |message| message["id"] == id)
    }

    pub fn ask(&mut self, trainer: Trainer, command: Value) -> Value {
        let id = self.send(trainer, command);
        self.reply(trainer, id)
    }

    pub fn event(&mut self, trainer: Trainer, name: &str) -> Value {
        self.next(trainer, |message| message["event"] == name)
    }

    pub fn disconnect(&mut self, Trainer { host, connection }: Trainer) {
        let (now, found) = (self.cluster.now(), self.cluster.hosts[host].as_mut().unwrap());
        found.call(now, |core, handles, out| core.disconnect(connection, "went away", handles, out));
    }

    pub fn region(&mut self, trainer: Trainer) -> Value {
        self.ask(trainer, json!({"cmd": "register", "size": REGION}))["ok"]["region"].clone()
    }

    /// Opens the job "j" on all hosts.
    pub fn open(&mut self, more: &Value) -> Vec<Rank> {
        let world = self.cluster.hosts.len();
        let trainers: Vec<Trainer> = (0..world).map(|host| self.trainer(host)).collect();
        let open = |rank| json!({"cmd": "open", "job": "j", "rank": rank, "world": world, "slots": 16});
        let asked: Vec<u64> = (0..world)
            .zip(&trainers)
            .map(|(rank, trainer)| self.send(*trainer, with(open(rank), more.clone())))
            .collect();
        let ranks = trainers.into_iter().zip(asked).map(|(trainer, id)| {
            let opened = self.reply(trainer, id);
            assert_eq!(code(&opened), "none", "{opened}");
            Rank { trainer, job: opened["ok"]["job"].clone(), region: self.region(trainer) }
        });
        ranks.collect()
    }

    /// Attaches another trainer to the job "j" of a host.
    pub fn attach(&mut self, host: usize) -> Rank {
        let trainer = self.trainer(host);
        let job = self.ask(trainer, json!({"cmd": "attach", "job": "j"}))["ok"]["job"].clone();
        Rank { trainer, job, region: self.region(trainer) }
    }

    /// Submits a sum of 10 floats, with the fields of `more` instead.
    pub fn submit(&mut self, rank: &Rank, more: Value) -> Value {
        self.ask(rank.trainer, allreduce(rank, more))
    }

    pub fn close(&mut self, rank: &Rank) -> Value {
        self.ask(rank.trainer, json!({"cmd": "close", "job": rank.job}))
    }

    /// Waits for the end of a submitted operation; returns its failure, also one of the submission.
    pub fn end(&mut self, rank: &Rank, submitted: &Value) -> Option<Failure> {
        let mut error = submitted["error"].clone();
        if let Some(op) = submitted["ok"]["op"].as_u64() {
            let is_end = |message: &Value| message["event"] == "completed" && message["op"] == op;
            error = self.next(rank.trainer, is_end)["error"].clone();
        }
        serde_json::from_value(error).unwrap()
    }

    /// Sums on all ranks.
    pub fn sums(&mut self, ranks: &[Rank], more: &Value) {
        let submitted: Vec<Value> = ranks.iter().map(|rank| self.submit(rank, more.clone())).collect();
        for (rank, submitted) in ranks.iter().zip(submitted) {
            assert_eq!(self.end(rank, &submitted), None, "{submitted}");
        }
    }
}

pub fn allreduce(Rank { job, region, .. }: &Rank, more: Value) -> Value {
    let command = json!({"cmd": "allreduce", "job": job, "region": region, "dtype": "float32", "offset": 0,
        "count": 10});
    with(command, more)
}
