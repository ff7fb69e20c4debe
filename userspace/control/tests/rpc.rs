//! Client and server over loopback TCP.
//!
//! ```text
//! worker 0 ---+
//! worker 1 ---+--- 127.0.0.1 --- control plane --- recording data plane
//! worker 2 ---+
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod plane;
#[allow(dead_code, reason = "each test file uses a part")]
mod server;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use plane::{Call, FakePlane};
use server::{
    HANGS, SECRET, Server, StateDir, failure, fault, join_at, problem_of, refusal, request, until, with,
};
use sumac_control::{
    Endpoint, FailureKind, JoinError, Member, MemberState, Outcome, RefusalKind,
    events::{Announcement, Event, Post},
    join,
};
use sumac_job::OperationOrder;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    time::{sleep, timeout},
};

/// As on an overloaded machine, or in a virtual machine that is moved: the server's keepalives wait for it.
#[tokio::test]
async fn a_member_that_was_held_up_keeps_its_connection() {
    let server = Server::start(FakePlane::new(1024)).await;
    let members = server.all(|rank| request(rank, 1), 1).await;
    let mut connected = members[0].connected();
    sleep(Duration::from_millis(200)).await;
    assert!(*connected.borrow_and_update());
    // The server has threads of its own.
    std::thread::sleep(Duration::from_millis(2700));
    sleep(Duration::from_millis(1500)).await;
    assert!(!connected.has_changed().unwrap() && *connected.borrow());
    server.stop().await;
}

#[tokio::test]
async fn three_workers_join_and_leave_and_join_again() {
    let server = Server::start(FakePlane::new(1024)).await;
    let members = server.all(|rank| request(rank, 3), 3).await;
    let first = members[0].grant().terms.clone();
    assert_eq!((first.epoch, first.slots, first.elements, first.lanes()), (1, 32, 256, 2));
    assert_eq!((members[0].grant().placement.base_port, first.shards), (48700, 1));
    for (rank, member) in members.iter().enumerate() {
        let placement = member.grant().placement;
        assert_eq!((&member.grant().terms, placement.rack_rank), (&first, rank as u16));
    }
    let calls = server.plane.calls();
    let Call::Install(job) = &calls[0] else { panic!("{calls:?}") };
    assert_eq!((&job.terms, job.pool_slots()), (&first, 64));
    assert_eq!(job.workers[2].ip, Ipv4Addr::new(10, 77, 2, 2));
    assert_eq!(job.workers[2].local_ip, Ipv4Addr::LOCALHOST);

    let mut others = members.into_iter();
    let (last, mut state) = {
        let zero = others.next().unwrap();
        let one = others.next().unwrap();
        let two = others.next().unwrap();
        zero.leave(Outcome::Done).await.unwrap();
        one.leave(Outcome::Done).await.unwrap();
        let state = two.watch();
        (two, state)
    };
    let departed = MemberState::Running { departed: vec![0, 1] };
    timeout(HANGS, state.wait_for(|state| *state == departed)).await.unwrap().unwrap();
    last.leave(Outcome::Done).await.unwrap();

    let again = server.all(|rank| request(rank, 3), 3).await;
    let second = &again[0].grant().terms;
    assert_eq!((second.job, second.epoch), (first.job, 2), "the next incarnation");
    assert_ne!(second.token, first.token);
    let calls = server.plane.calls();
    assert!(matches!(calls[1], Call::Remove(job) if job == first.job), "{calls:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_missing_rank_is_named() {
    let server = Server::start(FakePlane::new(1024)).await;
    let impatient = |rank| with(request(rank, 4), |spec| spec.timeout_s = Some(2.0));
    let endpoint = server.endpoint();
    let (zero, two) = tokio::join!(refusal(&endpoint, impatient(0)), refusal(&endpoint, impatient(2)));
    for refused in [zero, two] {
        assert_eq!((refused.kind, &refused.ranks[..]), (RefusalKind::Missing, &[1, 3][..]));
        assert!(refused.message.contains("ranks [1, 3]"), "{refused}");
    }
    assert!(server.plane.calls().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn an_install_that_takes_long_hides_no_death() {
    let server = Server::start(FakePlane::new(1024)).await;
    let mut members = server.all(|rank| request(rank, 2), 2).await;
    server.plane.hold_installs(true);
    let endpoint = server.endpoint();
    let other = with(request(0, 1), |spec| spec.job = "other".into());
    let other = tokio::spawn(async move { join(&endpoint, other).await });
    while server.plane.waiting_installs() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(members.pop());
    assert_eq!(failure(&members[0]).await.culprit(), Some(1));
    server.plane.hold_installs(false);
    timeout(HANGS, other).await.unwrap().unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn members_receive_all_events_in_one_order() {
    let server = Server::start(FakePlane::new(1024)).await;
    let named = |rank| with(request(rank, 3), |spec| spec.order = Some(OperationOrder::Name));
    let mut members = server.all(named, 3).await;
    for (rank, member) in members.iter().enumerate() {
        member.post(fault(format!("from {rank}")));
    }
    let names: Vec<String> = (0..300).map(|number| format!("layer {number}")).collect();
    for (rank, member) in members.iter().enumerate() {
        // Each in an order of its own.
        for at in 0..names.len() {
            let name = names[(at * [1, 7, 11][rank]) % names.len()].clone();
            let description = format!("a sum of {} float32", name.len());
            member.post(Post::Announce(Announcement { name, signature: 1, description, priority: 0 }));
        }
    }
    let (mut orders, mut receivers) = (Vec::new(), Vec::new());
    for member in &mut members {
        let mut events = member.events();
        let (mut released, mut faults) = (Vec::new(), Vec::new());
        while released.len() < names.len() || faults.len() < 3 {
            match timeout(HANGS, events.recv()).await.unwrap().unwrap() {
                Event::Released(name) => released.push(name),
                Event::Fault { rank, fault } => faults.push((rank, fault.problem)),
                other => panic!("{other:?}"),
            }
        }
        faults.sort_unstable();
        assert_eq!(faults, [0, 1, 2].map(|rank| (rank, format!("from {rank}"))));
        orders.push(released);
        receivers.push(events);
    }
    assert!(orders.iter().all(|order| *order == orders[0]), "one order for all");
    let mut all = orders.swap_remove(0);
    all.sort();
    let mut expected = names;
    expected.sort();
    assert_eq!(all, expected, "each once");

    // What was posted before a leave comes before the end.
    let last = members.pop().unwrap();
    last.post(fault("before the end"));
    last.leave(Outcome::Failed("tired".into())).await.unwrap();
    assert!(failure(&members[0]).await.message.ends_with("left: tired"));
    assert_eq!(problem_of(2, &mut receivers[0]).await, "before the end");
    server.stop().await;
}

#[tokio::test]
async fn a_stopped_server_ends_its_jobs_and_a_lost_one_is_noticed() {
    let server = Server::start(FakePlane::new(1024)).await;
    let plane = server.plane.clone();
    let member = join(&server.endpoint(), request(0, 1)).await.unwrap();
    server.stop().await;
    assert_eq!(failure(&member).await.kind, FailureKind::Stopped);
    assert!(matches!(plane.calls().last(), Some(Call::Remove(_))));

    let server = Server::start(FakePlane::new(1024)).await;
    let (member, address) = (join(&server.endpoint(), request(0, 1)).await.unwrap(), server.address);
    let since = std::time::Instant::now();
    server.kill().await;
    let failure = failure(&member).await;
    assert_eq!(failure.kind, FailureKind::AggregatorSilent);
    // Its slots ended with it, so the member does not wait as long as for one beside XDP programs.
    assert!(since.elapsed() < Duration::from_secs(9), "{failure}");
    assert!(failure.message.contains(&address.to_string()), "{failure}");
}

#[tokio::test]
async fn a_killed_server_takes_a_static_job_up_again() {
    let plane = FakePlane::new(1024);
    let server = Server::start(plane.clone()).await;
    let mut members = server.all(|rank| request(rank, 2), 2).await;
    let mut events = members[1].events();
    let (address, before) = (server.address, members[0].grant().clone());
    let state_dir = server.kill().await;
    // What is reported meanwhile is not lost.
    members[0].post(fault("while it was away"));
    let server = Server::start_at(address, plane.clone(), state_dir, Duration::ZERO).await;
    assert_eq!(problem_of(0, &mut events).await, "while it was away");
    tokio::time::sleep(Duration::from_secs(3)).await;
    for member in &members {
        assert_eq!(*member.watch().borrow(), MemberState::Running { departed: vec![] });
    }
    assert_eq!(plane.calls().len(), 1, "the plane has the job as it was");
    drop(members.pop());
    assert_eq!(failure(&members[0]).await.culprit(), Some(1), "and it is watched as before");
    let again = server.all(|rank| request(rank, 2), 2).await;
    assert_eq!(again[0].grant().terms.epoch, before.terms.epoch + 1, "no incarnation comes twice");
    server.stop().await;
}

#[tokio::test]
async fn nobody_there_is_said_with_the_address() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let state_dir = StateDir::new();
    let endpoint = state_dir.endpoint(address, SECRET);
    let hasty = with(request(0, 1), |spec| spec.timeout_s = Some(0.5));
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let following = tracing::subscriber::set_default(subscriber);
    let error = join(&endpoint, hasty).await.unwrap_err();
    drop(following);
    assert!(matches!(error, JoinError::Unreachable { endpoint, .. } if endpoint == address), "{error}");
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let reports: Vec<_> = log.lines().filter(|line| line.contains("does not answer")).collect();
    assert!(reports.len() == 1 && reports[0].contains(&address.to_string()), "while it waits, once: {log}");
    // A server that comes up in time is found.
    let waiting = tokio::spawn(async move { join(&endpoint, request(0, 1)).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let server = Server::start_at(address, FakePlane::new(1024), state_dir, Duration::ZERO).await;
    timeout(HANGS, waiting).await.unwrap().unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_plane_that_fails_is_quoted() {
    let plane = FakePlane::new(1024);
    plane.refuse_installs("no XDP program on any interface");
    let server = Server::start(plane.clone()).await;
    let refused = refusal(&server.endpoint(), request(0, 1)).await;
    assert_eq!(refused.kind, RefusalKind::Plane);
    assert!(refused.message.contains("no XDP program"), "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn a_worker_that_gives_up_waiting_frees_its_place_at_once() {
    let server = Server::start(FakePlane::new(1024)).await;
    let endpoint = server.endpoint();
    let patient = with(request(0, 2), |spec| spec.timeout_s = Some(2.0 * HANGS.as_secs_f64()));
    let first = tokio::spawn(async move { join(&endpoint, patient).await });
    until(|| server.missing() == [("train".to_owned(), vec![1])]).await;
    first.abort();
    // Before its connection has ended, others could start the job with it.
    until(|| server.missing().is_empty()).await;
    let members = server.all(|rank| request(rank, 2), 2).await;
    assert_eq!(members.len(), 2);
    server.stop().await;
}

/// Rank 1 has died. A new one joins while the old incarnation runs; `zero` is a member of that.
async fn assert_rank_one_is_taken_again(server: &Server, zero: &Member) {
    let endpoint = server.endpoint();
    let again = tokio::spawn(async move { join(&endpoint, request(1, 2)).await });
    assert_eq!(failure(zero).await.culprit(), Some(1), "the old incarnation");
    let zero = join(&server.endpoint(), request(0, 2)).await.unwrap();
    let one = timeout(HANGS, again).await.unwrap().unwrap().unwrap();
    assert_eq!((zero.grant().terms.epoch, one.grant().terms.epoch), (2, 2));
}

#[tokio::test]
async fn a_worker_that_died_gets_its_rank_back() {
    let server = Server::start(FakePlane::new(1024)).await;
    let mut members = server.all(|rank| request(rank, 2), 2).await;
    drop(members.pop());
    assert_rank_one_is_taken_again(&server, &members[0]).await;
    server.stop().await;
}

/// A cable to a server that can be cut. Connections from before a cut stay silent, as while their packets
/// wait for a retransmission.
struct Cable {
    address: SocketAddr,
    /// Odd while it is cut.
    cuts: watch::Sender<u32>,
}

impl Cable {
    async fn to(server: SocketAddr) -> Cable {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (cuts, mut seen) = watch::channel(0);
        let cable = Cable { address: listener.local_addr().unwrap(), cuts };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(cuts) = seen.wait_for(|cuts| cuts % 2 == 0).await.map(|cuts| *cuts) else { break };
                let far = TcpStream::connect(server).await.unwrap();
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(Cable::pass(near_in, far_out, seen.clone(), cuts));
                tokio::spawn(Cable::pass(far_in, near_out, seen.clone(), cuts));
            }
        });
        cable
    }

    async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, seen: watch::Receiver<u32>, cuts: u32) {
        let mut bytes = [0; 4096];
        loop {
            let read = from.read(&mut bytes).await;
            if *seen.borrow() != cuts {
                return std::future::pending().await;
            }
            match read {
                Ok(len @ 1..) if to.write_all(&bytes[..len]).await.is_ok() => {}
                _ => return,
            }
        }
    }

    async fn cut(&self, length: Duration) {
        self.pull();
        sleep(length).await;
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    fn pull(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

#[tokio::test]
async fn a_worker_whose_host_died_gets_its_rank_back() {
    let server = Server::start(FakePlane::new(1024)).await;
    let cable = Cable::to(server.endpoint().address).await;
    let behind = Endpoint { address: cable.address, ..server.endpoint() };
    let members = join_at(&[server.endpoint(), behind], |rank| request(rank, 2)).await;
    // The server sees no end of the connection, as when a host loses its power.
    cable.pull();
    assert_rank_one_is_taken_again(&server, &members[0]).await;
    server.stop().await;
}

#[tokio::test]
async fn a_worker_that_waits_for_others_keeps_its_rank_after_a_cut() {
    let server = Server::start(FakePlane::new(1024)).await;
    let cable = Cable::to(server.endpoint().address).await;
    let behind = Endpoint { address: cable.address, ..server.endpoint() };
    let waiting = tokio::spawn(async move { join(&behind, request(0, 2)).await });
    until(|| server.has("train")).await;
    // Longer than a taken rank is waited for.
    sleep(Duration::from_millis(3500)).await;
    for length in [Duration::from_millis(2300), Duration::from_millis(4500)] {
        cable.cut(length).await;
        sleep(Duration::from_millis(300)).await;
        assert!(!waiting.is_finished(), "it waits for rank 1");
    }
    let other = join(&server.endpoint(), request(1, 2)).await.unwrap();
    let waited = timeout(HANGS, waiting).await.unwrap().unwrap().unwrap();
    waited.leave(Outcome::Done).await.unwrap();
    other.leave(Outcome::Done).await.unwrap();
    server.stop().await;
}

/// The text of the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
