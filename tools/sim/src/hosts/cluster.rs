//! The cluster: hosts, their trainers, a lossy network, the coordinator with its journal, and the aggregator.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use sumac_agg_host::{Answer, HostAggregator};
use sumac_agg_job::NewJob;
use sumac_api::Outbound;
use sumac_control::PlaneKind;
use sumac_control::coordinator::{Action, Coordinator, InstalledJob, JobOrder, Record, Restart};
use sumac_control::plane::{JobInstall, Level, PlaneInfo, TakenOver};
use sumac_host::ConnectionId;
use sumac_job::Placement;

use super::client::{Behaviour, Client, Ending, Work};
use super::host::{AGGREGATOR, SimHost};
use crate::events::{MILLI, Nanos};

const STEP: Nanos = 10 * MILLI;
/// The time after which a silent connection to the control plane ends.
const SILENCE: Nanos = 2000 * MILLI;
const SLOTS: u32 = 512;
/// The number of elements of the aggregator's slots.
const ELEMENTS: u16 = 352;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Step,
    Timer(usize),
    ToAggregator { host: usize, shard: u16, payload: Vec<u8> },
    ToHost { host: usize, payload: Vec<u8> },
}

/// The faults of a run, each with its time.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    KillHost(usize),
    RestartAggregator,
    RestartCoordinator,
    /// The host does not reach the control plane until this time.
    CutControl(usize, Nanos),
    /// Both ends of a host's connection to the control plane notice the other's silence, if it lasts.
    Silent(usize),
}

/// The probabilities of a packet's fates.
#[derive(Clone, Copy, Debug, Default)]
pub struct Network {
    pub loss: f64,
    pub duplication: f64,
    /// The longest additional delay, by which packets overtake each other.
    pub jitter: Nanos,
}

pub struct Cluster {
    now: Nanos,
    rng: ChaCha8Rng,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    sequence: u64,
    network: Network,
    /// `None`: dead.
    pub hosts: Vec<Option<SimHost>>,
    cut_until: Vec<Nanos>,
    timers: Vec<Nanos>,
    pub clients: Vec<Client>,
    coordinator: Coordinator,
    records: Vec<Record>,
    shards: Vec<HostAggregator>,
    installed: Vec<u16>,
    instance: u64,
    faults: Vec<(Nanos, Fault)>,
    /// The probability of a live upgrade of each host in each step.
    pub upgrades: f64,
    /// Messages to connections of no client, by host and connection: those of a test's own.
    pub mail: Vec<(usize, ConnectionId, Outbound)>,
    /// Packets by fate: sent, delivered, lost, addressed to a dead host.
    pub packets: [u64; 4],
}

fn info(shards: u16) -> PlaneInfo {
    PlaneInfo {
        kind: PlaneKind::Host,
        slots: SLOTS,
        max_elements: ELEMENTS,
        base_port: AGGREGATOR.port(),
        shards,
        ..PlaneInfo::NONE
    }
}

fn aggregator(shards: u16) -> Vec<HostAggregator> {
    let shard = |shard| HostAggregator::of_shard(shard, shards, SLOTS, ELEMENTS);
    (0..shards).map(|number| shard(number).expect("memory for slots")).collect()
}

fn time(now: Nanos) -> Duration {
    Duration::from_nanos(now)
}

impl Cluster {
    #[must_use]
    pub fn new(
        seed: u64,
        hosts: usize,
        shards: u16,
        network: Network,
        faults: Vec<(Nanos, Fault)>,
    ) -> Cluster {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let random = Box::new(ChaCha8Rng::seed_from_u64(rng.random()));
        let ip = |number: usize| Ipv4Addr::new(10, 0, 1, number as u8 + 1);
        let coordinator = Coordinator::restore(
            Duration::ZERO,
            info(shards),
            1,
            &TakenOver::default(),
            Restart::default(),
            random,
        );
        let mut cluster = Cluster {
            now: 0,
            rng,
            events: BinaryHeap::new(),
            sequence: 0,
            network,
            hosts: (0..hosts).map(|number| Some(SimHost::new(ip(number)))).collect(),
            cut_until: vec![0; hosts],
            timers: vec![Nanos::MAX; hosts],
            clients: Vec::new(),
            coordinator,
            records: Vec::new(),
            shards: aggregator(shards),
            installed: Vec::new(),
            instance: 1,
            faults,
            upgrades: 0.0,
            mail: Vec::new(),
            packets: [0; 4],
        };
        cluster.schedule(0, Event::Step);
        cluster
    }

    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Connects a trainer to a host.
    pub fn connect(&mut self, host: usize, rank: u16, work: &Work, behaviour: Behaviour) {
        let rng = ChaCha8Rng::seed_from_u64(self.rng.random());
        let Some(found) = &mut self.hosts[host] else { return };
        let client = Client::connect(self.now, (host, found), rank, work, behaviour, rng);
        self.clients.push(client.expect("a host admits its trainers"));
    }

    fn schedule(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    /// Runs until `is_done` after a step, at most until `end`. Returns whether it is done.
    pub fn run(&mut self, end: Nanos, is_done: impl Fn(&Cluster) -> bool) -> bool {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            if at > end {
                self.schedule(at, event);
                return false;
            }
            let is_step = event == Event::Step;
            self.handle(event);
            if is_step && is_done(self) {
                return true;
            }
        }
        false
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Step => {
                self.step();
                self.schedule(self.now + STEP, Event::Step);
            }
            Event::Timer(host) => {
                self.timers[host] = Nanos::MAX;
                if let Some(found) = &mut self.hosts[host] {
                    found.expire(self.now);
                }
                self.pump(host);
            }
            Event::ToAggregator { host, shard, payload } => self.at_aggregator(host, shard, payload),
            Event::ToHost { host, payload } => match &mut self.hosts[host] {
                Some(found) => {
                    self.packets[1] += 1;
                    found.deliver(self.now, &payload);
                    self.pump(host);
                }
                None => self.packets[3] += 1,
            },
        }
    }

    fn step(&mut self) {
        let now = self.now;
        let (due, later) = self.faults.iter().partition::<Vec<_>, _>(|(at, _)| *at <= now);
        self.faults = later;
        due.into_iter().for_each(|(_, fault)| self.strike(fault));
        self.coordinator.on_plane(time(now), Ok((self.instance, info(self.shards.len() as u16))));
        self.coordinator.tick(time(now));
        self.execute_actions();
        self.shards.iter_mut().for_each(|shard| shard.set_now((now / MILLI) as u32));
        for client in &mut self.clients {
            if client.is_to_die()
                && client.ending.is_none()
                && let Some(host) = &mut self.hosts[client.host]
            {
                client.disconnect(now, host);
            }
        }
        for host in 0..self.hosts.len() {
            let is_connected = self.cut_until[host] <= now;
            let is_upgraded = self.rng.random_bool(self.upgrades);
            if let Some(found) = &mut self.hosts[host] {
                found.tick(now, &mut self.coordinator, is_connected);
                if is_upgraded {
                    found.upgrade();
                }
            }
            self.pump(host);
        }
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::KillHost(host) => {
                if let Some(mut killed) = self.hosts[host].take() {
                    killed.disconnect_control(&mut self.coordinator);
                }
                let lost = self.clients.iter_mut().filter(|client| client.host == host);
                lost.for_each(Client::lose_host);
            }
            Fault::RestartAggregator => {
                self.shards = aggregator(self.shards.len() as u16);
                self.installed.clear();
                self.instance += 1;
            }
            Fault::RestartCoordinator => {
                let taken = TakenOver { jobs: self.installed.clone(), last_epochs: Vec::new() };
                let random = Box::new(ChaCha8Rng::seed_from_u64(self.rng.random()));
                let restart = Restart::new(std::mem::take(&mut self.records));
                let info = info(self.shards.len() as u16);
                self.coordinator =
                    Coordinator::restore(time(self.now), info, self.instance, &taken, restart, random);
                self.records = self.coordinator.all_records();
                self.hosts.iter_mut().flatten().for_each(SimHost::lose_control);
            }
            Fault::CutControl(host, until) => {
                self.cut_until[host] = until;
                self.faults.push((self.now + SILENCE, Fault::Silent(host)));
            }
            Fault::Silent(host) if self.cut_until[host] <= self.now => {}
            Fault::Silent(host) => {
                if let Some(found) = &mut self.hosts[host] {
                    found.disconnect_control(&mut self.coordinator);
                }
            }
        }
    }

    /// Lets a host and all that it has caused go on until nothing changes.
    fn pump(&mut self, host: usize) {
        let mut touched = vec![host];
        while let Some(host) = touched.pop() {
            if self.go_on(host) {
                // Its posts may be others' events.
                touched = (0..self.hosts.len()).collect();
            }
            self.transmit(host);
        }
    }

    /// Returns whether the control plane's state may have changed.
    fn go_on(&mut self, host: usize) -> bool {
        let (now, is_connected) = (self.now, self.cut_until[host] <= self.now);
        let mut has_changed = false;
        loop {
            let Some(found) = &mut self.hosts[host] else { return has_changed };
            found.collect(now);
            while let Some((connection, message)) = found.outbox.pop_front() {
                let mut clients = self.clients.iter_mut();
                match clients.find(|client| client.is_of(host, connection)) {
                    Some(client) => client.receive(now, found, message),
                    None => self.mail.push((host, connection, message.outbound)),
                }
            }
            let changed = found.synchronize(now, &mut self.coordinator, is_connected);
            self.execute_actions();
            if !changed && self.hosts[host].as_ref().is_none_or(|found| found.outbox.is_empty()) {
                return has_changed;
            }
            has_changed |= changed;
        }
    }

    fn execute_actions(&mut self) {
        self.records.extend(self.coordinator.poll_records());
        while let Some(action) = self.coordinator.poll_action() {
            match action {
                Action::Install(run, order) => {
                    let installed = self.install(&order);
                    self.coordinator.on_installed(run, installed);
                }
                Action::Remove { run, job, .. } => {
                    for shard in &mut self.shards {
                        shard.remove(job);
                    }
                    self.installed.retain(|other| *other != job);
                    self.coordinator.on_removed(time(self.now), run, Ok(()));
                }
                Action::Resize(run, _) => self.coordinator.on_resized(run, Ok(())),
                Action::Restore { .. } | Action::Renew(..) => panic!("only for dynamic jobs: {action:?}"),
            }
            self.records.extend(self.coordinator.poll_records());
        }
    }

    fn install(&mut self, order: &JobOrder) -> Result<InstalledJob, String> {
        let install = JobInstall {
            terms: order.terms.clone(),
            first_slot: order.first_slot,
            stealing: order.stealing,
            level: Level::Only,
            workers: order.workers.clone(),
            ranks: Vec::new(),
            contributors: Vec::new(),
            upstream: Vec::new(),
        };
        let address = |ip: Ipv4Addr, port| SocketAddrV4::new(ip, port);
        let workers = order.workers.iter().map(|worker| address(worker.ip, worker.port));
        let workers = NewJob::at(0, sumac_wire::tables::JobEntry::default(), workers, []).workers;
        let new = NewJob::of(&install, workers, Vec::new()).map_err(|error| error.to_string())?;
        for shard in &mut self.shards {
            shard.install(&new).map_err(|error| error.to_string())?;
        }
        self.installed.push(new.job);
        let world = order.workers.len() as u16;
        let placement = |rank| Placement {
            rank,
            aggregator_ip: *AGGREGATOR.ip(),
            base_port: AGGREGATOR.port(),
            aggregator: PlaneKind::Host,
            result_group: None,
            rack_rank: rank,
            rack_world: world,
            bitmap_1: 0,
            beside_root: false,
        };
        Ok(InstalledJob { placements: (0..world).map(placement).collect(), parents: Vec::new() })
    }

    fn at_aggregator(&mut self, host: usize, shard: u16, mut payload: Vec<u8>) {
        self.packets[1] += 1;
        let Some(found) = self.shards.get_mut(usize::from(shard)) else { return };
        let source = Ipv4Addr::new(10, 0, 1, host as u8 + 1);
        let destinations = match found.on_packet(source, &mut payload) {
            Answer::None(_) => Vec::new(),
            Answer::One(_, destination, _) => vec![destination],
            Answer::All(_, job) => found.workers(job).to_vec(),
        };
        for destination in destinations {
            let host = usize::from(destination.ip().octets()[3]) - 1;
            let payload = payload.clone();
            self.send(Event::ToHost { host, payload });
        }
    }

    fn transmit(&mut self, host: usize) {
        let mut frame = vec![0; sumac_wire::admit::payload_len(ELEMENTS)];
        while let Some((shard, payload)) =
            self.hosts[host].as_mut().and_then(|found| found.transmit(self.now, &mut frame))
        {
            self.send(Event::ToAggregator { host, shard, payload });
        }
        let due = self.hosts[host].as_ref().and_then(SimHost::deadline);
        if let Some(due) = due.filter(|due| *due < self.timers[host]) {
            let due = due.max(self.now + 1);
            self.timers[host] = due;
            self.schedule(due, Event::Timer(host));
        }
    }

    fn send(&mut self, event: Event) {
        self.packets[0] += 1;
        if self.rng.random_bool(self.network.loss) {
            self.packets[2] += 1;
            return;
        }
        if self.rng.random_bool(self.network.duplication)
            && let Event::ToHost { host, payload } = &event
        {
            self.packets[0] += 1;
            let at = self.arrival();
            self.schedule(at, Event::ToHost { host: *host, payload: payload.clone() });
        }
        let at = self.arrival();
        self.schedule(at, event);
    }

    fn arrival(&mut self) -> Nanos {
        self.now + 20_000 + self.rng.random_range(0..=self.network.jitter)
    }

    /// Packets that are under way.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        let is_packet = |event: &Event| !matches!(event, Event::Step | Event::Timer(_));
        self.events.iter().filter(|Reverse((_, _, event))| is_packet(event)).count() as u64
    }

    /// Whether all trainers have ended, and all their requests and operations with them.
    #[must_use]
    pub fn are_clients_done(&self) -> bool {
        !self.clients.iter().any(Client::has_open_ends)
    }

    /// Ends all connections.
    pub fn disconnect_all(&mut self) {
        for client in &mut self.clients {
            if let Some(host) = &mut self.hosts[client.host]
                && client.ending != Some(Ending::Gone)
            {
                client.disconnect(self.now, host);
            }
        }
    }

    /// Whether hosts and control plane hold nothing any more.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let is_free = |host: &SimHost| {
            let totals = host.core.totals();
            (totals.connections, totals.regions, totals.jobs, totals.operations) == (0, 0, 0, 0)
                && totals.are_quotas_free
                && host.handles.are_free()
        };
        self.hosts.iter().flatten().all(is_free) && self.coordinator.is_idle()
    }

    /// Describes the hosts' remaining state, for messages.
    #[must_use]
    pub fn leftovers(&self) -> String {
        let totals: Vec<_> =
            self.hosts.iter().flatten().map(|host| (host.core.totals(), &host.handles)).collect();
        format!("{totals:?}, coordinator: {:?}", self.coordinator.overview())
    }
}
