//! Workers of a job on data paths, and their events.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, channel},
    },
    time::Duration,
};

use sumac_datapath::{Datapath, Event, FrameIo, Peer, UdpFrameIo, WorkerJob};
use sumac_host::{FragmentKey, OperationKey};
use sumac_transport::{Arithmetic, Buffer, DType, JobParams, Operation, Scale};

/// The timeout of an event on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The slots of every job in these tests.
pub const SLOTS: u32 = 32;

pub fn params(rank: u16, world: u16) -> JobParams {
    JobParams { rank, rack_rank: rank, scaling: Scale::Fixed(1024.0), ..JobParams::new(7, world, SLOTS, 64) }
}

/// Returns the key of an operation's only fragment.
pub fn key(op: u64) -> FragmentKey {
    FragmentKey { operation: OperationKey { connection: 1, op }, fragment: 0 }
}

/// Returns a socket for each thread of a data path with this many shards.
pub fn ios(shards: u16) -> Vec<Box<dyn FrameIo>> {
    boxed(UdpFrameIo::bind_shards(Ipv4Addr::LOCALHOST, 0, shards, 1).unwrap())
}

pub fn boxed<T: FrameIo + 'static>(ios: Vec<T>) -> Vec<Box<dyn FrameIo>> {
    ios.into_iter().map(|io| Box::new(io) as Box<dyn FrameIo>).collect()
}

/// Returns a peer on this machine.
pub fn peer(base_port: u16) -> Peer {
    Peer { ip: Ipv4Addr::LOCALHOST, base_port, mac: [0; 6], checksum: true }
}

/// A data path and its events.
pub struct Worker {
    pub path: Datapath,
    pub events: Receiver<Event>,
}

/// Returns a job with this many lanes of these parameters.
pub fn plan(params: JobParams, lanes: u16, peer: Peer) -> WorkerJob {
    let id = params.job.into();
    let lanes = (0..lanes).map(|lane| JobParams { lane, ..params.clone() }).collect();
    WorkerJob { id, lanes, peer: Some(peer), ..WorkerJob::default() }
}

impl Worker {
    pub fn start(name: &str, ios: Vec<Box<dyn FrameIo>>) -> Worker {
        let (sender, events) = channel();
        let sink = Arc::new(move |event| {
            let _ = sender.send(event);
        });
        Worker { path: Datapath::start(name, ios, Vec::new(), &[], sink).unwrap(), events }
    }

    /// Starts a worker with a job of one lane.
    pub fn join(name: &str, ios: Vec<Box<dyn FrameIo>>, params: JobParams, peer: Peer) -> Worker {
        let worker = Worker::start(name, ios);
        worker.path.add_job(plan(params, 1, peer)).unwrap();
        worker
    }

    /// Returns the address of shard 0.
    pub fn local(&self) -> SocketAddrV4 {
        self.path.stats().unwrap()[0].port.local.unwrap()
    }

    pub fn event(&self) -> Event {
        self.events.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("no event; {:#?}", self.path.stats()))
    }

    pub fn ready(&self) {
        assert!(matches!(self.event(), Event::JobReady { .. }));
    }

    /// Submits a tensor to the first lane. Returns the counters of its copies.
    pub fn submit(&self, tag: u64, values: &[f32]) -> Counters {
        self.submit_to(0, tag, values)
    }

    pub fn submit_to(&self, lane: u16, tag: u64, values: &[f32]) -> Counters {
        let counters = Counters::default();
        let bytes = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let buffer = Box::new(Counted { bytes, counters: counters.clone() });
        let operation =
            Operation::allreduce(tag as u32, DType::Float32, Arithmetic::Sum, values.len(), buffer);
        assert!(self.path.submit(7, lane, key(tag), operation));
        counters
    }

    /// Waits for an operation to succeed. Returns its tag and the sum.
    pub fn sum(&self) -> (u64, Vec<f32>) {
        match self.event() {
            Event::Completed { id, completion, .. } => {
                completion.result.unwrap();
                let bytes = completion.buffer.input(0, usize::MAX);
                let values = bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
                (id.operation.op, values.collect())
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The bytes read from a tensor and written to it.
#[derive(Clone, Default)]
pub struct Counters {
    read: Arc<AtomicUsize>,
    written: Arc<AtomicUsize>,
}

/// Returns the bytes read and written of several tensors.
pub fn copied(counters: &[Counters]) -> (usize, usize) {
    let sum = |of: fn(&Counters) -> &AtomicUsize| {
        counters.iter().map(|each| of(each).load(Ordering::Relaxed)).sum()
    };
    (sum(|each| &each.read), sum(|each| &each.written))
}

/// A tensor that counts the bytes that the engine reads and writes.
struct Counted {
    bytes: Vec<u8>,
    counters: Counters,
}

impl Buffer for Counted {
    fn input(&self, byte_offset: usize, len: usize) -> &[u8] {
        let bytes = self.bytes.input(byte_offset, len);
        // The engine reads a chunk; the test reads the whole tensor.
        if len != usize::MAX {
            self.counters.read.fetch_add(bytes.len(), Ordering::Relaxed);
        }
        bytes
    }

    fn output(&mut self, byte_offset: usize, len: usize) -> &mut [u8] {
        let bytes = self.bytes.output(byte_offset, len);
        self.counters.written.fetch_add(bytes.len(), Ordering::Relaxed);
        bytes
    }
}

/// Returns values that are exact in steps of 1/1024, different on every worker.
pub fn values(rank: u16, count: usize) -> Vec<f32> {
    (0..count).map(|i| (i % 1000) as f32 * 0.5 - f32::from(rank) * 3.25).collect()
}

/// Returns the sum over all workers.
pub fn expected(world: u16, count: usize) -> Vec<f32> {
    let mut sum = vec![0.0; count];
    for rank in 0..world {
        sum.iter_mut().zip(values(rank, count)).for_each(|(sum, value)| *sum += value);
    }
    sum
}
