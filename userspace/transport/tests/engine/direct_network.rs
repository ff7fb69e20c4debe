//! Engines of a direct job on a network that loses, duplicates, delays and reorders packets, from a seed.

use std::{collections::BTreeMap, net::Ipv4Addr};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_transport::{
    Completion, DirectParams, Engine, JobParams, Operation, Peer, PeerId, PeerRole, PeerTable, Time, Tuning,
};

const US: u64 = 1_000;

pub struct Network {
    pub engines: Vec<Engine>,
    /// Packets under way by the time of arrival: from, to, payload.
    pub packets: BTreeMap<(u64, u64), (usize, usize, Vec<u8>)>,
    number: u64,
    pub now: Time,
    random: ChaCha8Rng,
    loss: f64,
    /// The loss on some paths besides, in both directions.
    pub path_loss: BTreeMap<u16, f64>,
    /// A path from one worker to another that loses everything.
    pub dead: Option<(usize, usize, u16)>,
    /// Packets that were sent, by sender, receiver and path.
    pub by_path: BTreeMap<(usize, usize, u16), u64>,
    /// A delay on some paths besides.
    pub path_delay: BTreeMap<u16, u64>,
    pub completions: Vec<Vec<Completion>>,
    sent: u64,
}

pub fn params(world: u16) -> JobParams {
    let direct = Some(DirectParams { line_rate: 1_000_000_000, ..DirectParams::new(64) });
    JobParams { token: 77, rack_world: 1, slots: 0, elements: 64, direct, ..JobParams::new(1, world, 1, 64) }
}

impl Network {
    pub fn new(world: u16, seed: u64, loss: f64) -> Network {
        Network::with_tuning(world, seed, loss, &Tuning::default())
    }

    pub fn with_tuning(world: u16, seed: u64, loss: f64, tuning: &Tuning) -> Network {
        Network::with_params(&params(world), seed, loss, tuning)
    }

    pub fn with_params(params: &JobParams, seed: u64, loss: f64, tuning: &Tuning) -> Network {
        let world = params.world;
        let address =
            |rank: u16| std::net::SocketAddrV4::new(Ipv4Addr::from(0x0a00_0001 + u32::from(rank)), 48_700);
        let peers =
            PeerTable::new((0..world).map(|rank| Peer { role: PeerRole::Worker, address: address(rank) }));
        let engine = |rank| {
            Engine::starting_at(JobParams { rank, ..params.clone() }, &peers, tuning, 0).expect("parameters")
        };
        println!("seed {seed}");
        Network {
            engines: (0..world).map(engine).collect(),
            packets: BTreeMap::new(),
            number: 0,
            now: Time(0),
            random: ChaCha8Rng::seed_from_u64(seed),
            loss,
            path_loss: BTreeMap::new(),
            dead: None,
            by_path: BTreeMap::new(),
            path_delay: BTreeMap::new(),
            completions: (0..world).map(|_| Vec::new()).collect(),
            sent: 0,
        }
    }

    pub fn submit(&mut self, rank: usize, operation: Operation) {
        self.engines[rank].submit(self.now, operation).map_err(|(error, _)| error).expect("accepted");
    }

    pub fn send(&mut self) {
        for from in 0..self.engines.len() {
            let mut out = vec![0; self.engines[from].frame_len()];
            while let Some(packet) = self.engines[from].poll_transmit(self.now, &mut out) {
                self.sent += 1;
                let way = (from, usize::from(packet.to.0), packet.path);
                *self.by_path.entry(way).or_default() += 1;
                if self.dead == Some(way) {
                    continue;
                }
                let copies = if self.random.random_bool(0.01) { 2 } else { 1 };
                for _ in 0..copies {
                    let path_loss = self.path_loss.get(&packet.path).copied().unwrap_or(0.0);
                    if self.random.random_bool(self.loss) || self.random.random_bool(path_loss) {
                        continue;
                    }
                    let path_delay = self.path_delay.get(&packet.path).copied().unwrap_or(0);
                    let delay = 40 * US + self.random.random_range(0..30 * US) + path_delay;
                    self.number += 1;
                    let at = (self.now.0 + delay, self.number);
                    self.packets.insert(at, (from, usize::from(packet.to.0), out[..packet.len].to_vec()));
                }
            }
            self.completions[from].extend(std::iter::from_fn(|| self.engines[from].poll_completion()));
        }
    }

    /// Runs until every worker has so many completions.
    pub fn run(&mut self, completions: usize) {
        while self.completions.iter().any(|ended| ended.len() < completions) {
            self.advance();
            assert!(self.now.0 < 60_000_000_000, "it takes longer than a minute");
        }
    }

    /// Sends what is due, and goes on to the next event.
    pub fn advance(&mut self) {
        self.step();
        self.send();
    }

    pub fn step(&mut self) {
        self.send();
        let arrival = self.packets.keys().next().map(|(at, _)| Time(*at));
        let timers = self.engines.iter().filter_map(Engine::poll_timeout).min();
        let Some(next) = arrival.into_iter().chain(timers).min() else { return };
        self.now = self.now.max(next);
        while let Some(entry) = self.packets.first_entry() {
            if entry.key().0 > self.now.0 {
                break;
            }
            let (from, to, payload) = entry.remove();
            self.engines[to].on_payload(self.now, PeerId(from as u16), &payload);
        }
        for engine in &mut self.engines {
            if engine.poll_timeout().is_some_and(|at| at <= self.now) {
                engine.on_timeout(self.now);
                let next = engine.poll_timeout();
                assert!(next.is_none_or(|at| at > self.now), "a timer that has expired is due again");
            }
        }
    }
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

pub fn floats(completion: &mut Completion, count: usize) -> Vec<f32> {
    let bytes = completion.buffer.output(0, count * 4);
    bytes.chunks_exact(4).map(|word| f32::from_ne_bytes(word.try_into().expect("four bytes"))).collect()
}
