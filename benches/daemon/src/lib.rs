//! A worker's data path thread of the daemon, whose packets come straight back as results, in memory.
#![expect(clippy::expect_used, clippy::panic, reason = "a workload that cannot go on")]

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::BorrowedFd,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    time::Instant,
};

use nix::poll::PollFlags;
use sumac_datapath::{
    Datapath, Event, FrameIo, IoReport, Outgoing, Peer, Transmitted, WorkerJob,
    frame_io::{Build, Received},
};
use sumac_host::{FragmentKey, OperationKey};
use sumac_job::result_token;
use sumac_transport::{Buffer, DType, JobParams, Operation, convert::Arithmetic};
use sumac_wire::{Header, admit::payload_len, header::HEADER_LEN};

use sumac_benches::engine::turn_round;

const BASE_PORT: u16 = 48_700;
/// Packets that are received in one go, and the most that are staged: as of the daemon's UDP sockets.
const BATCH: usize = 64;

/// A queue that returns each packet as its result.
struct Echo {
    params: JobParams,
    token: u64,
    frames: Vec<Vec<u8>>,
    staged: Vec<Outgoing>,
}

impl Echo {
    #[inline(never)]
    fn uncounted_answers(&mut self) {
        for (frame, packet) in self.frames.iter_mut().zip(&self.staged) {
            turn_round(&mut frame[..packet.len], &self.params, self.token);
        }
    }
}

impl FrameIo for Echo {
    fn capacity(&self) -> usize {
        payload_len(self.params.elements)
    }

    fn shards(&self) -> u16 {
        1
    }

    fn paths(&self) -> u16 {
        1
    }

    fn receive(&mut self, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        self.uncounted_answers();
        for (frame, packet) in self.frames.iter().zip(&self.staged) {
            let payload = &frame[..packet.len];
            let Ok(header) = Header::read(payload, 0, payload.len()) else { continue };
            let elements = &payload[HEADER_LEN..];
            each(Received { from: packet.to, port: BASE_PORT, header, elements, is_marked: false });
        }
        let count = self.staged.len();
        self.staged.clear();
        Ok(count)
    }

    fn transmit(&mut self, build: Build<'_>) -> io::Result<Transmitted> {
        let Some(frame) = self.frames.get_mut(self.staged.len()) else { return Ok(Transmitted::Full) };
        let packet = build(frame);
        self.staged.extend(packet);
        Ok(packet.map_or(Transmitted::Nothing, |_| Transmitted::Staged))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn interest<'a>(&'a mut self, _fds: &mut Vec<(BorrowedFd<'a>, PollFlags)>) -> Option<Instant> {
        (!self.staged.is_empty()).then(Instant::now)
    }

    fn quiesce(&mut self, _deadline: Instant) {}

    fn report(&self) -> IoReport {
        IoReport { local: Some(SocketAddrV4::new(Ipv4Addr::LOCALHOST, BASE_PORT)), ..IoReport::default() }
    }
}

/// A data path with a job, and the tensor that it sums.
pub struct Worker {
    path: Datapath,
    events: Receiver<Event>,
    buffer: Option<Box<dyn Buffer>>,
    job: u64,
}

impl Worker {
    /// Starts the thread, with a tensor of `bytes`: as floats, all of them 0.046.
    pub fn start(params: JobParams, bytes: usize) -> Worker {
        let io = Echo {
            token: result_token(params.token),
            frames: vec![vec![0; payload_len(params.elements)]; BATCH],
            staged: Vec::with_capacity(BATCH),
            params: params.clone(),
        };
        let (sender, events) = channel();
        let sink = Arc::new(move |event| {
            let _ = sender.send(event);
        });
        let path = Datapath::start("counted", vec![Box::new(io)], Vec::new(), &[], sink).expect("a thread");
        let peer = Peer { ip: Ipv4Addr::LOCALHOST, base_port: BASE_PORT, mac: [0; 6], checksum: true };
        let job = u64::from(params.job);
        let plan = WorkerJob { id: job, lanes: vec![params], peer: Some(peer), ..WorkerJob::default() };
        path.add_job(plan).expect("a good job");
        let worker = Worker { path, events, buffer: Some(Box::new(vec![0x3du8; bytes])), job };
        assert!(matches!(worker.events.recv(), Ok(Event::JobReady { .. })));
        worker
    }

    /// Sums a tensor of `count` elements.
    pub fn allreduce(&mut self, dtype: DType, count: usize) {
        let buffer = self.buffer.take().expect("handed back");
        let operation = Operation::allreduce(0, dtype, Arithmetic::Sum, count, buffer);
        let id = FragmentKey { operation: OperationKey { connection: 1, op: 1 }, fragment: 0 };
        assert!(self.path.submit(self.job, 0, id, operation));
        match self.events.recv() {
            Ok(Event::Completed { completion, .. }) if completion.result.is_ok() => {
                self.buffer = Some(completion.buffer);
            }
            other => panic!("{other:?}"),
        }
    }
}
