//! Workers, their aggregator and their parameter host on a network that loses, doubles, delays and marks packets.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    net::{Ipv4Addr, SocketAddrV4},
};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_parameter::{HostJob, ParameterHost, Worker};
use sumac_transport::{
    Completion, CompletionQueue, DynamicParams, Engine, JobParams, JobState, Operation, Packet, PeerId, Time,
    Tuning,
};

use crate::{
    slots::{Output, Slots},
    support::peers,
};

const PORT: u16 = 48_600;
/// Nanoseconds between two places, at least.
const DELAY: u64 = 10_000;

/// Chances of what befalls a packet on its way between two places, and how much longer some take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub lost: f64,
    pub doubled: f64,
    pub marked: f64,
    pub jitter: u64,
}

/// Where packets come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Worker(usize),
    Aggregator,
    Host,
}

impl Place {
    fn address(self) -> SocketAddrV4 {
        let last = match self {
            Place::Worker(rank) => 10 + rank as u8,
            Place::Aggregator => 1,
            Place::Host => 2,
        };
        SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), PORT)
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    at: u64,
    number: u64,
    from: Place,
    to: Place,
    marked: bool,
    payload: Vec<u8>,
}

pub struct Network {
    pub engines: Vec<Engine>,
    pub aggregator: Slots,
    /// Whether the aggregator's program is attached.
    pub is_up: bool,
    /// Whether nothing gets from the aggregator to the parameter host, and nothing back.
    pub is_cut: bool,
    /// The worker whose packets the aggregator's program does not see.
    pub cut_off: Option<usize>,
    pub host: ParameterHost,
    pub now: u64,
    pub weather: Weather,
    pub completions: Vec<Vec<Completion>>,
    ended: Vec<CompletionQueue>,
    flying: BinaryHeap<Reverse<Flying>>,
    number: u64,
    rng: ChaCha8Rng,
    world: usize,
}

impl Network {
    /// Workers like this one, of rank 0, below one aggregator.
    pub fn new(params: &JobParams, seed: u64) -> Network {
        Network::tuned(params, &Tuning::default(), seed)
    }

    pub fn tuned(params: &JobParams, tuning: &Tuning, seed: u64) -> Network {
        let dynamic = params.dynamic.clone().expect("a dynamic job");
        let world = usize::from(params.world);
        let engine = |rank: u16| {
            let params = JobParams { rank, rack_rank: rank, ..params.clone() };
            Engine::starting_at(params, &peers(), tuning, 0).expect("good parameters")
        };
        let mut host = ParameterHost::new();
        host.install(host_job(params, &dynamic, tuning.linear_placement)).expect("a good job");
        Network {
            engines: (0..params.world).map(engine).collect(),
            aggregator: Slots::new(params, dynamic.slots),
            is_up: dynamic.slots > 0,
            is_cut: false,
            cut_off: None,
            host,
            now: 1_000_000,
            weather: Weather::default(),
            completions: (0..world).map(|_| Vec::new()).collect(),
            ended: (0..world).map(|_| CompletionQueue::default()).collect(),
            flying: BinaryHeap::new(),
            number: 0,
            rng: ChaCha8Rng::seed_from_u64(seed),
            world,
        }
    }

    pub fn submit(&mut self, rank: usize, operation: Operation) {
        self.engines[rank]
            .submit(Time(self.now), operation)
            .map_err(|(why, _)| why)
            .expect("a good operation");
    }

    fn milliseconds(&self) -> u32 {
        (self.now / 1_000_000) as u32
    }

    fn send(&mut self, from: Place, to: Place, payload: &[u8]) {
        let Weather { lost, doubled, marked, jitter } = self.weather;
        let copies = match () {
            () if self.rng.random_bool(lost) => 0,
            () if self.rng.random_bool(doubled) => 2,
            () => 1,
        };
        for _ in 0..copies {
            let at = self.now + DELAY + self.rng.random_range(0..=jitter);
            let marked = self.rng.random_bool(marked);
            self.number += 1;
            let payload = payload.to_vec();
            self.flying.push(Reverse(Flying { at, number: self.number, from, to, marked, payload }));
        }
    }

    /// Sends whatever the workers and the parameter host have; each takes a microsecond for a packet.
    fn pump(&mut self) {
        let mut out = vec![0; 4096];
        for rank in 0..self.world {
            while let Some(sent) = self.engines[rank].poll_transmit(Time(self.now), &mut out) {
                let to = match sent.to {
                    PeerId(0) => Place::Aggregator,
                    _ => Place::Host,
                };
                let payload = out[..sent.len].to_vec();
                self.send(Place::Worker(rank), to, &payload);
                self.now += 100;
            }
            while let Some(completion) = self.engines[rank].poll_completion() {
                self.ended[rank].push(completion);
            }
            let in_order = std::iter::from_fn(|| self.ended[rank].pop());
            self.completions[rank].extend(in_order);
        }
        while let Some(sending) = self.host.poll_transmit(&mut out) {
            let rank = (0..self.world).find(|rank| Place::Worker(*rank).address() == sending.to);
            let to = rank.map_or(Place::Aggregator, Place::Worker);
            let payload = out[..sending.len].to_vec();
            self.send(Place::Host, to, &payload);
        }
    }

    fn arrive(&mut self, packet: Flying) {
        let Flying { from, to, marked, payload, .. } = packet;
        match to {
            Place::Host if self.is_cut && from == Place::Aggregator => {}
            Place::Aggregator if self.is_cut && from == Place::Host => {}
            Place::Worker(rank) => {
                let now = Time(self.now);
                let packet = Packet::parse(&payload, PeerId(0), marked).expect("a valid packet");
                self.engines[rank].on_packet(now, &packet);
            }
            Place::Host => {
                self.host.on_packet(from.address(), 0, &payload, marked);
            }
            Place::Aggregator if !self.is_up || self.cut_off.map(Place::Worker) == Some(from) => {}
            Place::Aggregator => self.pass(from, &payload, marked),
        }
    }

    /// Lets the aggregator do what a packet wants of it.
    fn pass(&mut self, from: Place, payload: &[u8], marked: bool) {
        let now = self.milliseconds();
        let output = match from {
            Place::Host => self.aggregator.on_host(now, payload).map(Some),
            _ => self.aggregator.on_worker(now, payload, marked),
        };
        let all = 0..self.world;
        let (payload, to): (_, Vec<Place>) = match output {
            Ok(Some(Output::Up(payload))) => (payload, vec![Place::Host]),
            Ok(Some(Output::Down(payload))) => (payload, all.map(Place::Worker).collect()),
            Ok(Some(Output::Back(rank, payload))) => (payload, vec![Place::Worker(usize::from(rank))]),
            Ok(None) | Err(_) => return,
        };
        to.into_iter().for_each(|to| self.send(Place::Aggregator, to, &payload));
    }

    /// The next thing that happens; false when nothing ever will.
    pub fn step(&mut self) -> bool {
        self.pump();
        let arrival = self.flying.peek().map(|Reverse(packet)| packet.at);
        let timer = self.engines.iter().filter_map(Engine::poll_timeout).map(|at| at.0).min();
        let Some(at) = arrival.into_iter().chain(timer).min() else { return false };
        self.now = self.now.max(at);
        while self.flying.peek().is_some_and(|Reverse(packet)| packet.at <= self.now) {
            let packet = self.flying.pop().map(|Reverse(packet)| packet);
            packet.into_iter().for_each(|packet| self.arrive(packet));
        }
        let now = Time(self.now);
        for engine in &mut self.engines {
            if engine.poll_timeout().is_some_and(|due| due <= now) {
                engine.on_timeout(now);
            }
        }
        true
    }

    /// Goes on until all workers have ended `operations` operations; panics when that takes longer than `limit` seconds of
    /// the network's time.
    pub fn run(&mut self, operations: usize, limit: u64) {
        let end = self.now + limit * 1_000_000_000;
        let is_missing = |net: &Network| net.completions.iter().any(|ended| ended.len() < operations);
        while is_missing(self) {
            let goes_on = self.step() && self.now < end;
            assert!(goes_on || !is_missing(self), "stuck at {} ms: {}", self.milliseconds(), self.summary());
        }
    }

    /// Another worker takes the place of `rank`, whose operations are gone with it. Gives the first chunk that is not summed.
    pub fn replace(&mut self, rank: usize) -> u32 {
        let mut params = self.engines[rank].params().clone();
        params.epoch += 1;
        let dynamic = params.dynamic.clone().expect("a dynamic job");
        let workers = host_job(&params, &dynamic, false).workers;
        let resume = self.host.renew(params.job, params.epoch, workers).expect("the same places")[0];
        self.aggregator = Slots::new(&params, dynamic.slots);
        for engine in &mut self.engines {
            engine.renew(Time(self.now), params.epoch, resume);
        }
        self.engines[rank] =
            Engine::taking_over(params, &peers(), &Tuning::default(), resume).expect("good parameters");
        self.completions[rank].clear();
        self.ended[rank] = CompletionQueue::default();
        resume
    }

    /// Lets so many milliseconds pass.
    pub fn idle(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds * 1_000_000;
        while self.now < end && self.step() {}
        self.now = self.now.max(end);
    }

    /// Whether each worker has ended as many operations as it shall.
    pub fn is_done(&self, expected: impl Fn(usize) -> usize) -> bool {
        (0..self.world).all(|rank| self.completions[rank].len() >= expected(rank))
    }

    /// What everybody counted.
    pub fn summary(&self) -> String {
        let workers = self.engines.iter().map(|engine| {
            let stats = serde_json::to_value(engine.stats()).expect("statistics");
            let fields = stats.as_object().expect("an object").iter();
            let fields = fields.filter(|(name, value)| {
                !name.starts_with("elements") && **value != 0 && !value["buckets"].is_array()
            });
            fields.map(|(name, value)| format!("{name}: {value} ")).collect::<String>()
        });
        workers.map(|worker| worker + "\n").collect::<String>() + &format!("{:?}", self.host.stats().jobs)
    }

    /// Goes on until all workers may send chunks.
    pub fn join(&mut self) {
        let end = self.now + 3_000_000_000;
        while self.engines.iter().any(|engine| engine.state() != JobState::Ready) {
            assert!(self.step() && self.now < end, "{:?}", self.engines[0].state());
        }
    }
}

fn host_job(params: &JobParams, dynamic: &DynamicParams, linear: bool) -> HostJob {
    let worker =
        |rank: u16| Worker { address: Place::Worker(usize::from(rank)).address(), rack: 0, bit: rank as u8 };
    HostJob {
        job: params.job,
        epoch: params.epoch,
        token: params.token,
        elements: params.elements,
        window: dynamic.window,
        slots: dynamic.slots,
        linear,
        lanes: 1,
        shards: params.shards,
        checksum: false,
        workers: (0..params.world).map(worker).collect(),
        upstream: if dynamic.slots > 0 { vec![Place::Aggregator.address()] } else { Vec::new() },
    }
}
