//! An aggregator in threads, one for each shard's port: the slot decision of `sumac-wire` over ordinary UDP sockets, with
//! losses on request.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use sumac_wire::{
    Header, Kind, Reason,
    header::HEADER_LEN,
    slot::{Action, SlotMeta, Then, answer, decide},
    tables::{JobEntry, job_flag},
};

/// The threads; they end when this is dropped.
pub struct Aggregator {
    pub port: u16,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// The faults of an aggregator.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Drops every n-th packet in and out; 0: none.
    pub lose_every: u64,
    /// Answers no probe.
    pub is_silent: bool,
}

impl Aggregator {
    /// Listens on `ip`. Results go to the worker's address at `result_port`, or where its packets came from.
    pub fn start(ip: Ipv4Addr, port: u16, result_port: Option<u16>, faults: Faults) -> Aggregator {
        Aggregator::serve(vec![UdpSocket::bind((ip, port)).unwrap()], result_port, faults)
    }

    /// Listens on the loopback interface at consecutive ports, one for each shard.
    pub fn start_shards(shards: u16) -> Aggregator {
        let sockets = (0..64).find_map(|_| {
            let first = UdpSocket::bind("127.0.0.1:0").unwrap();
            let next = first.local_addr().unwrap().port();
            let others =
                (1..shards).map(|shard| UdpSocket::bind(("127.0.0.1", next.checked_add(shard)?)).ok());
            std::iter::once(Some(first)).chain(others).collect()
        });
        Aggregator::serve(sockets.expect("a stretch of free ports"), None, Faults::default())
    }

    fn serve(sockets: Vec<UdpSocket>, result_port: Option<u16>, faults: Faults) -> Aggregator {
        let port = sockets[0].local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let shards = sockets.len() as u16;
        let core = Arc::new(Mutex::new(Core { shards, result_port, faults, ..Core::default() }));
        let threads = sockets.into_iter().enumerate().map(|(shard, socket)| {
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let (core, stop) = (core.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while !stop.load(Ordering::Relaxed) {
                    if let Ok((len, from)) = socket.recv_from(&mut bytes) {
                        let mut core = core.lock().unwrap();
                        core.on_packet(
                            &Link { socket: &socket, shard: shard as u16 },
                            from,
                            &mut bytes[..len],
                        );
                    }
                }
            })
        });
        Aggregator { port, threads: threads.collect(), stop }
    }
}

impl Drop for Aggregator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The socket and the shard of a packet.
struct Link<'a> {
    socket: &'a UdpSocket,
    shard: u16,
}

#[derive(Default)]
struct Slot {
    meta: SlotMeta,
    values: [Vec<i32>; 2],
}

#[derive(Default)]
struct Core {
    shards: u16,
    result_port: Option<u16>,
    faults: Faults,
    packets: u64,
    slots: BTreeMap<(u16, u32), Slot>,
    /// By job, shard and the worker's bit.
    workers: BTreeMap<(u16, u16, u32), SocketAddr>,
}

impl Core {
    fn is_lost(&mut self) -> bool {
        self.packets += 1;
        self.faults.lose_every > 0 && self.packets.is_multiple_of(self.faults.lose_every)
    }

    fn send(&mut self, link: &Link<'_>, to: SocketAddr, bytes: &[u8]) {
        if !self.is_lost() {
            link.socket.send_to(bytes, to).unwrap();
        }
    }

    fn on_packet(&mut self, link: &Link<'_>, mut from: SocketAddr, bytes: &mut [u8]) {
        let header = Header::read(&*bytes, 0, bytes.len()).expect("workers send whole packets");
        if let Some(port) = self.result_port {
            from.set_port(port);
        }
        self.workers.insert((header.job, link.shard, header.bitmap_0), from);
        if self.is_lost() {
            return;
        }
        if header.kind == Kind::Probe as u8 {
            let report = Header { kind: Kind::Report as u8, ..header };
            bytes[..HEADER_LEN].copy_from_slice(&report.to_bytes());
            if !self.faults.is_silent {
                self.send(link, from, bytes);
            }
        } else {
            self.contribute(link, from, &header, bytes);
        }
    }

    fn contribute(&mut self, link: &Link<'_>, from: SocketAddr, header: &Header, bytes: &[u8]) {
        let world = u16::from(header.fan_in_0);
        let job = JobEntry {
            slots: super::job::SLOTS * 2 * u32::from(self.shards),
            lane_slots_log2: super::job::SLOTS.ilog2() as u16,
            world,
            contributors: world,
            elements: u16::MAX,
            shards: self.shards,
            flags: job_flag::ACTIVE,
            ..JobEntry::default()
        };
        let contribution =
            sumac_wire::admit::request(header, &job, link.shard).unwrap().expect("probes are answered");
        let version = contribution.version;
        let slot = self.slots.entry((header.job, header.slot)).or_default();
        let (mut meta, action) = decide(&slot.meta, &contribution);
        let values = &mut slot.values[usize::from(version)];
        let elements =
            bytes[HEADER_LEN..].chunks_exact(4).map(|b| i32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        match action {
            Action::Store(_) => *values = elements.collect(),
            Action::Add(_) => values.iter_mut().zip(elements).for_each(|(sum, value)| *sum += value),
            Action::Want => return self.send(link, from, &answer::wanted(header, &job).to_bytes()),
            Action::Reply | Action::Ignore(Reason::Duplicate | Reason::Stale) => {}
            other => unreachable!("{other:?}"),
        }
        let is_complete = matches!(action, Action::Store(Then::Complete) | Action::Add(Then::Complete));
        if is_complete {
            meta.set_next(version, header.seq.wrapping_add(2 * contribution.slots));
        }
        slot.meta = meta;
        let result = answer::result(header, &meta.version(version), &job);
        let mut packet = result.to_bytes().to_vec();
        packet.extend(values.iter().flat_map(|value| value.to_be_bytes()));
        if is_complete {
            let job = self.workers.range((header.job, link.shard, 0)..=(header.job, link.shard, u32::MAX));
            for to in job.map(|(_, to)| *to).collect::<Vec<_>>() {
                self.send(link, to, &packet);
            }
        } else if action == Action::Reply {
            self.send(link, from, &packet);
        }
    }
}
