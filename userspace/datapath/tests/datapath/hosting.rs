//! A data path as a parameter host, over UDP on the loopback interface. Needs no privilege.

use std::{
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt};
use sumac_datapath::{DatapathStats, InstallError, ParameterJob, WorkerJob};
use sumac_parameter::{HostError, HostJob, HostStats, Worker as Member};
use sumac_transport::{DynamicParams, JobParams, Scale};
use sumac_wire::{
    CLASSES, Header, Kind,
    header::{HEADER_LEN, NO_SLOT, flag},
};

use crate::job::{Worker, expected, ios, params, peer, values};
use crate::wait::eventually;

const SHARDS: u16 = 2;
const ELEMENTS: u16 = 4;
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Sockets at consecutive ports, one for each shard.
struct Trainer(Vec<UdpSocket>);

impl Trainer {
    fn bind() -> Trainer {
        for _ in 0..100 {
            let first = UdpSocket::bind("127.0.0.1:0").unwrap();
            let next = first.local_addr().unwrap().port().wrapping_add(1);
            if let Ok(second) = UdpSocket::bind((Ipv4Addr::LOCALHOST, next)) {
                return Trainer(vec![first, second]);
            }
        }
        panic!("no two consecutive ports")
    }

    fn address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.0[0].local_addr().unwrap().port())
    }

    /// Sends values of a lane's first chunk.
    fn send(&self, to: u16, header: &Header, values: &[i32]) {
        let mut packet = header.to_bytes().to_vec();
        packet.extend(values.iter().flat_map(|value| value.to_be_bytes()));
        let shard = header.lane % SHARDS;
        self.0[usize::from(shard)].send_to(&packet, (Ipv4Addr::LOCALHOST, to + shard)).unwrap();
    }

    /// Receives a packet at a shard's port.
    fn receive(&self, shard: usize) -> (Header, Vec<i32>) {
        let mut bytes = [0; 2048];
        self.0[shard].set_read_timeout(Some(RECEIVE_TIMEOUT)).unwrap();
        let len = self.0[shard].recv(&mut bytes).expect("an answer");
        let header = Header::read(&bytes[..len], 0, len).unwrap();
        let (words, _) = bytes[HEADER_LEN..len].as_chunks::<4>();
        (header, words.iter().map(|word| i32::from_be_bytes(*word)).collect())
    }
}

fn header(bit: u32, lane: u16) -> Header {
    Header {
        kind: Kind::Contribution as u8,
        flags: flag::RESEND,
        job: 5,
        epoch: 2,
        token: 0xfeed,
        slot: NO_SLOT,
        fan_in_0: 2,
        bitmap_0: 1 << bit,
        elements: ELEMENTS,
        lane,
        ..Header::default()
    }
}

fn plan(trainers: &[Trainer]) -> ParameterJob {
    let place =
        |(bit, trainer): (usize, &Trainer)| Member { address: trainer.address(), rack: 0, bit: bit as u8 };
    let job = HostJob {
        job: 5,
        epoch: 2,
        token: 0xfeed,
        elements: ELEMENTS,
        window: 8,
        slots: 0,
        lanes: CLASSES * SHARDS,
        shards: SHARDS,
        checksum: true,
        congestion_control: true,
        workers: trainers.iter().enumerate().map(place).collect(),
        upstream: Vec::new(),
    };
    ParameterJob { job, peers: vec![peer(0)] }
}

/// Starts a data path with a thread for each shard. Returns its first port, and two trainers.
fn start() -> (Worker, u16, [Trainer; 2]) {
    let host = Worker::start("hosting", ios(SHARDS));
    let base = host.local().port();
    (host, base, [Trainer::bind(), Trainer::bind()])
}

fn hosted(host: &Worker) -> HostStats {
    DatapathStats::merge_hosted(&host.path.stats().unwrap())
}

#[test]
fn each_shard_is_summed_on_its_thread() {
    let (host, base, trainers) = start();
    host.path.add_parameter_job(plan(&trainers)).unwrap();
    for lane in 0..CLASSES * SHARDS {
        for (bit, trainer) in trainers.iter().enumerate() {
            trainer.send(
                base,
                &header(bit as u32, lane),
                &[bit as i32 + 1, i32::from(lane), -1, i32::MIN / 2],
            );
        }
        for trainer in &trainers {
            let (header, values) = trainer.receive(usize::from(lane % SHARDS));
            assert_eq!((header.kind, header.lane, header.flags), (Kind::Result as u8, lane, 0));
            assert_eq!(values, [3, 2 * i32::from(lane), -2, i32::MIN]);
        }
    }
    let threads = host.path.stats().unwrap();
    let completed = |thread: &DatapathStats| thread.hosted.job(5).unwrap().completed;
    assert_eq!(threads.iter().map(completed).collect::<Vec<_>>(), [2, 2]);
    let sum = hosted(&host);
    let job = sum.job(5).unwrap();
    assert_eq!((job.completed, job.contributions, job.direct, job.sent), (4, 8, 2, 8));
    assert!(host.path.remove_parameter_job(5) && !host.path.remove_parameter_job(5));
}

#[test]
fn a_packet_at_another_shards_port_is_refused() {
    let (host, base, trainers) = start();
    host.path.add_parameter_job(plan(&trainers)).unwrap();
    let mut packet = header(0, 0).to_bytes().to_vec();
    packet.extend([0; 16]);
    trainers[0].0[0].send_to(&packet, (Ipv4Addr::LOCALHOST, base + 1)).unwrap();
    eventually("a refusal", || (hosted(&host).job(5).unwrap().refused > 0).then_some(()));
    assert_eq!(hosted(&host).job(5).unwrap().refused, 1);
}

#[test]
fn ecn_marks_are_echoed_and_results_are_ecn_capable() {
    let (host, base, trainers) = start();
    host.path.add_parameter_job(plan(&trainers)).unwrap();
    // The kernel keeps both bits of ECN as they are given.
    setsockopt(&trainers[0].0[0], sockopt::Ipv4Tos, &0b11).unwrap();
    setsockopt(&trainers[1].0[0], sockopt::IpRecvTos, &true).unwrap();
    for (bit, trainer) in trainers.iter().enumerate() {
        trainer.send(base, &header(bit as u32, 0), &[1; 4]);
    }
    let (first, _) = trainers[0].receive(0);
    assert_eq!(first.flags, flag::ECN_ECHO);
    assert_eq!(tos(&trainers[1].0[0]), 0b10, "ECT(0)");
    assert_eq!(hosted(&host).job(5).unwrap().marked, 1);
    // A repeated result is not ECN-capable.
    trainers[1].send(base, &Header { flags: flag::RESEND, ..header(1, 0) }, &[1; 4]);
    assert_eq!(tos(&trainers[1].0[0]), 0, "Not-ECT");
}

#[test]
fn a_job_that_stalls_says_which_workers_it_waits_for() {
    let (host, base, trainers) = start();
    host.path.add_parameter_job(plan(&trainers)).unwrap();
    trainers[0].send(base, &header(0, 0), &[1; 4]);
    eventually("a stall", || (!hosted(&host).job(5).unwrap().waiting_for.is_empty()).then_some(()));
    assert_eq!(hosted(&host).job(5).unwrap().waiting_for, [1]);
    trainers[1].send(base, &header(1, 0), &[1; 4]);
    assert_eq!(trainers[1].receive(0).1, [2; 4]);
    assert!(hosted(&host).job(5).unwrap().waiting_for.is_empty());
}

/// The DSCP and ECN byte of the next packet.
fn tos(socket: &UdpSocket) -> u8 {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    use std::os::fd::AsRawFd;

    let mut bytes = [0; 2048];
    let mut slices = [std::io::IoSliceMut::new(&mut bytes)];
    let mut control = nix::cmsg_space!(u8);
    socket.set_read_timeout(Some(RECEIVE_TIMEOUT)).unwrap();
    let message =
        recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::empty()).unwrap();
    let mut messages = message.cmsgs().unwrap();
    let tos = messages.find_map(|message| match message {
        ControlMessageOwned::Ipv4Tos(tos) => Some(tos),
        _ => None,
    });
    tos.expect("asked for")
}

#[test]
fn a_job_continues_after_a_worker_was_replaced() {
    let (host, base, mut trainers) = start();
    host.path.add_parameter_job(plan(&trainers)).unwrap();
    for (bit, trainer) in trainers.iter().enumerate() {
        trainer.send(base, &header(bit as u32, 1), &[1; 4]);
    }
    trainers[0].receive(1);
    trainers[1] = Trainer::bind();
    let ParameterJob { job, peers } = plan(&trainers);
    assert_eq!(
        host.path.renew_parameter_job(5, 3, job.workers.clone(), peers.clone()).unwrap(),
        [0, 1, 0, 0]
    );
    for (bit, trainer) in trainers.iter().enumerate() {
        let header = Header { epoch: 3, seq: 1, ..header(bit as u32, 1) };
        trainer.send(base, &header, &[2; 4]);
    }
    assert_eq!(trainers.each_ref().map(|trainer| trainer.receive(1).1), [vec![4; 4], vec![4; 4]]);
    let unknown = host.path.renew_parameter_job(6, 3, job.workers, peers);
    assert_eq!(unknown, Err(InstallError::ParameterHost(HostError::Unknown(6))));
}

#[test]
fn invalid_jobs_are_refused_by_name() {
    let (host, _, trainers) = start();
    let good = plan(&trainers);
    let add = |job: HostJob| host.path.add_parameter_job(ParameterJob { job, ..good.clone() });
    let shards = HostJob { shards: 4, lanes: 8, ..good.job.clone() };
    assert_eq!(add(shards), Err(InstallError::Shards { asked: 4, given: 2 }));
    let no_way = ParameterJob { peers: Vec::new(), ..good.clone() };
    assert_eq!(host.path.add_parameter_job(no_way), Err(InstallError::NoAddress { ip: Ipv4Addr::LOCALHOST }));
    let window = add(HostJob { window: 3, ..good.job.clone() });
    assert_eq!(window, Err(InstallError::ParameterHost(HostError::Window { job: 5, window: 3 })));
    add(good.job.clone()).unwrap();
    assert_eq!(add(good.job.clone()), Err(InstallError::ParameterHost(HostError::Taken(5))));
    assert!(host.path.remove_parameter_job(5), "it is still there");
    host.path.shutdown().unwrap();
    assert_eq!(add(good.job.clone()), Err(InstallError::Stopped));
}

/// Three workers of which two are parameter hosts as well, each of one shard: where there is no aggregator,
/// and where it does not answer.
#[test]
fn workers_sum_at_each_other_without_an_aggregator() {
    for slots in [0, 64] {
        let (workers, bases): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| {
                let worker = Worker::start("both", ios(SHARDS));
                let base = worker.local().port();
                (worker, base)
            })
            .unzip();
        let place = |(bit, base): (usize, &u16)| Member {
            address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, *base),
            rack: 0,
            bit: bit as u8,
        };
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
        let aggregator = nobody.local_addr().unwrap().port();
        let first = JobParams { scaling: Scale::Fixed(1e6), shards: SHARDS, ..params(0, 3) };
        let job = HostJob {
            job: first.job,
            epoch: first.epoch,
            token: first.token,
            elements: first.elements,
            window: 32,
            slots,
            workers: bases.iter().enumerate().map(place).collect(),
            upstream: (slots > 0)
                .then(|| SocketAddrV4::new(Ipv4Addr::LOCALHOST, aggregator))
                .into_iter()
                .collect(),
            ..plan(&[]).job
        };
        for host in &workers[..2] {
            host.path.add_parameter_job(ParameterJob { job: job.clone(), peers: vec![peer(0)] }).unwrap();
        }
        for (rank, worker) in workers.iter().enumerate() {
            let dynamic = Some(DynamicParams::new(slots).with_window(32));
            let rank = rank as u16;
            let lane =
                |lane| JobParams { lane, rank, rack_rank: rank, dynamic: dynamic.clone(), ..first.clone() };
            let lanes = (0..CLASSES * SHARDS).map(lane).collect();
            let peer = |base: &u16| peer(*base);
            let plan = WorkerJob {
                id: 7,
                lanes,
                peer: (slots > 0).then(|| peer(&aggregator)),
                hosts: bases[..2].iter().map(peer).collect(),
                ..WorkerJob::default()
            };
            worker.path.add_job(plan).unwrap();
        }
        workers.iter().for_each(Worker::ready);
        for (rank, worker) in workers.iter().enumerate() {
            for lane in 0..CLASSES * SHARDS {
                worker.submit_to(lane, lane.into(), &values(rank as u16, 5_000));
            }
        }
        for worker in &workers {
            let mut tags: Vec<u64> = (0..CLASSES * SHARDS)
                .map(|_| {
                    let (tag, sum) = worker.sum();
                    assert_eq!(sum, expected(3, 5_000));
                    tag
                })
                .collect();
            tags.sort_unstable();
            assert_eq!(tags, [0, 1, 2, 3]);
        }
        let completed = workers.iter().map(|worker| hosted(worker).job(7).map_or(0, |job| job.completed));
        let chunks = 2 * 5_000u64.div_ceil(64);
        assert_eq!(completed.collect::<Vec<_>>(), [chunks, chunks, 0]);
    }
}
