//! An aggregator in a thread: the slot decision of `sumac-wire` over an ordinary UDP socket, with losses on request.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
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

/// The thread; it ends when this is dropped.
pub struct Aggregator {
    pub port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What it does to packets.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Every how many packets, in and out, one is lost; 0: none.
    pub lose_every: u64,
    /// Answer no probe.
    pub is_deaf: bool,
}

impl Aggregator {
    /// Listens on `ip`. Results go to the worker's address at `result_port`, or where its packets came from.
    pub fn start(ip: Ipv4Addr, port: u16, result_port: Option<u16>, faults: Faults) -> Aggregator {
        let socket = UdpSocket::bind((ip, port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let port = socket.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let mut core = Core { socket, result_port, faults, ..Core::new() };
        let thread = {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while !stop.load(Ordering::Relaxed) {
                    if let Ok((len, from)) = core.socket.recv_from(&mut bytes) {
                        core.on_packet(from, &mut bytes[..len]);
                    }
                }
            })
        };
        Aggregator { port, stop, thread: Some(thread) }
    }
}

impl Drop for Aggregator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Default)]
struct Slot {
    meta: SlotMeta,
    values: [Vec<i32>; 2],
}

struct Core {
    socket: UdpSocket,
    result_port: Option<u16>,
    faults: Faults,
    packets: u64,
    slots: BTreeMap<(u16, u32), Slot>,
    workers: BTreeMap<(u16, u32), SocketAddr>,
}

impl Core {
    fn new() -> Core {
        Core {
            socket: UdpSocket::bind("127.0.0.1:0").unwrap(),
            result_port: None,
            faults: Faults::default(),
            packets: 0,
            slots: BTreeMap::new(),
            workers: BTreeMap::new(),
        }
    }

    fn is_lost(&mut self) -> bool {
        self.packets += 1;
        self.faults.lose_every > 0 && self.packets.is_multiple_of(self.faults.lose_every)
    }

    fn send(&mut self, to: SocketAddr, bytes: &[u8]) {
        if !self.is_lost() {
            self.socket.send_to(bytes, to).unwrap();
        }
    }

    fn on_packet(&mut self, mut from: SocketAddr, bytes: &mut [u8]) {
        let header = Header::read(&*bytes, 0, bytes.len()).expect("workers send whole packets");
        if let Some(port) = self.result_port {
            from.set_port(port);
        }
        self.workers.insert((header.job, header.bitmap_0), from);
        if self.is_lost() {
            return;
        }
        if header.kind == Kind::Probe as u8 {
            let report = Header { kind: Kind::Report as u8, ..header };
            bytes[..HEADER_LEN].copy_from_slice(&report.to_bytes());
            if !self.faults.is_deaf {
                self.send(from, bytes);
            }
        } else {
            self.contribute(from, &header, bytes);
        }
    }

    fn contribute(&mut self, from: SocketAddr, header: &Header, bytes: &[u8]) {
        let world = u16::from(header.fan_in_0);
        let job = JobEntry {
            slots: super::job::SLOTS,
            lane_slots_log2: super::job::SLOTS.ilog2() as u16,
            world,
            contributors: world,
            elements: u16::MAX,
            shards: 1,
            flags: job_flag::ACTIVE,
            ..JobEntry::default()
        };
        let contribution = sumac_wire::admit::request(header, &job, 0).unwrap().expect("probes are answered");
        let version = contribution.version;
        let slot = self.slots.entry((header.job, header.slot)).or_default();
        let (mut meta, action) = decide(&slot.meta, &contribution);
        let values = &mut slot.values[usize::from(version)];
        let elements =
            bytes[HEADER_LEN..].chunks_exact(4).map(|b| i32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        match action {
            Action::Store(_) => *values = elements.collect(),
            Action::Add(_) => values.iter_mut().zip(elements).for_each(|(sum, value)| *sum += value),
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
            let job = self.workers.range((header.job, 0)..=(header.job, u32::MAX));
            for to in job.map(|(_, to)| *to).collect::<Vec<_>>() {
                self.send(to, &packet);
            }
        } else if action == Action::Reply {
            self.send(from, &packet);
        }
    }
}
