//! Unauthenticated connections and impostors, over loopback TCP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod plane;
#[allow(dead_code, reason = "each test file uses a part")]
mod server;

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use plane::FakePlane;
use server::{HANGS, SECRET, Server, StateDir, refusal, request, with};
use sumac_control::{DenialKind, JoinError, MemberState, Outcome, RefusalKind, join};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

#[tokio::test]
async fn a_wrong_secret_is_denied_and_changes_nothing() {
    let server = Server::start(FakePlane::new(1024)).await;
    let wrong = server.state_dir.endpoint(server.address, "not the right secret");
    match join(&wrong, request(0, 1)).await {
        Err(JoinError::Denied { why, kind, .. }) => {
            assert_eq!(kind, DenialKind::Secret);
            assert!(why.contains("secret"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert!(server.plane.calls().is_empty());
    let right = join(&server.endpoint(), request(0, 1)).await.unwrap();
    assert_eq!(right.grant().terms.epoch, 1);
    server.stop().await;
}

#[tokio::test]
async fn a_job_counts_for_the_host_of_its_connection_and_the_user_of_its_trainer() {
    let server = Server::start(FakePlane::new(100)).await;
    // It has 64 slots, and another data address than the connection's.
    let refused = refusal(&server.endpoint(), request(0, 1)).await.message;
    assert!(refused.contains("host 127.0.0.1 holds no job, and has a share of 50 of 100 slots"), "{refused}");
    // Until all have come.
    let waiting_for = |job| with(request(0, 2), |spec| (spec.job, spec.timeout_s) = (job, Some(600.0)));
    let of_user = |job: String| {
        let mut asked = waiting_for(job);
        asked.host.user = 7;
        asked
    };
    let mut waiting = Vec::new();
    // So many at once that handshakes end in time on a busy machine.
    for wave in 1..=16 {
        waiting.extend((waiting.len()..wave * 32).map(|index| {
            let (endpoint, asked) = (server.endpoint(), of_user(format!("waits {index}")));
            tokio::spawn(async move { join(&endpoint, asked).await })
        }));
        server::until(|| server.missing().len() == waiting.len()).await;
    }
    let refused = refusal(&server.endpoint(), of_user("one more".into())).await.message;
    assert!(refused.contains("user 7 of host 127.0.0.1 is a worker of 512 jobs"), "{refused}");
    // Root is no user, and is refused beyond what a host may have: by name, not by the end of its connection.
    let of_root = |index: usize| waiting_for(format!("root's {index}"));
    for wave in 1..=16 {
        let first = waiting.len();
        waiting.extend((first..512 + wave * 32).map(|index| {
            let (endpoint, asked) = (server.endpoint(), of_root(index));
            tokio::spawn(async move { join(&endpoint, asked).await })
        }));
        server::until(|| server.missing().len() == waiting.len()).await;
    }
    let refused = refusal(&server.endpoint(), of_root(1024)).await;
    assert_eq!(refused.kind, RefusalKind::TooManyJobs);
    assert!(refused.message.contains("host 127.0.0.1 is a worker of 1024 jobs already"), "{refused}");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    server.stop().await;
}

#[tokio::test]
async fn another_aggregator_than_the_tokens_hears_no_secret() {
    let server = Server::start(FakePlane::new(1024)).await;
    let of_another = StateDir::new().endpoint(server.address, SECRET);
    match join(&of_another, request(0, 1)).await {
        Err(JoinError::NotTrusted { endpoint, why }) => {
            assert_eq!(endpoint, server.address);
            assert!(why.contains("sumac-agg token"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert!(server.plane.calls().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn nothing_is_said_in_the_clear() {
    let server = Server::start(FakePlane::new(1024)).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (through, beyond) = (listener.local_addr().unwrap(), server.address);
    let recording = tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let server = TcpStream::connect(beyond).await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let back = tokio::spawn(async move {
            let mut recorded = Vec::new();
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = from_server.read(&mut buffer).await {
                recorded.extend_from_slice(&buffer[..len]);
                if to_client.write_all(&buffer[..len]).await.is_err() {
                    break;
                }
            }
            recorded
        });
        let mut recorded = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = from_client.read(&mut buffer).await {
            recorded.extend_from_slice(&buffer[..len]);
            to_server.write_all(&buffer[..len]).await.unwrap();
        }
        drop(to_server);
        recorded.extend(back.await.unwrap());
        recorded
    });
    let endpoint = server.state_dir.endpoint(through, SECRET);
    let member = join(&endpoint, request(0, 1)).await.unwrap();
    let token = member.grant().terms.token.to_string();
    drop(member);
    let recorded = timeout(HANGS, recording).await.unwrap().unwrap();
    assert!(recorded.len() > 1000, "the whole of a join");
    for hidden in [SECRET, &token, "train"] {
        let is_in_it = recorded.windows(hidden.len()).any(|window| window == hidden.as_bytes());
        assert!(!is_in_it, "`{hidden}` is readable on the way");
    }
    server.stop().await;
}

/// Passes bytes on, of which one is damaged.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, damaged: Option<usize>) {
    let (mut bytes, mut passed) = ([0; 4096], 0);
    while let Ok(len @ 1..) = from.read(&mut bytes).await {
        if let Some(byte) =
            damaged.and_then(|at| at.checked_sub(passed)).and_then(|at| bytes[..len].get_mut(at))
        {
            *byte ^= 0x40;
        }
        passed += len;
        if to.write_all(&bytes[..len]).await.is_err() {
            return;
        }
    }
}

/// A way to a server on which one byte of what the server sends is damaged, in each connection at the next of
/// these offsets.
async fn damaging(server: SocketAddr, mut offsets: Vec<usize>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    offsets.reverse();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(server).await.unwrap();
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::spawn(pass(near_in, far_out, None));
            tokio::spawn(pass(far_in, near_out, offsets.pop()));
        }
    });
    address
}

#[tokio::test]
async fn a_handshake_that_was_damaged_on_the_way_is_repeated() {
    let server = Server::start(FakePlane::new(1024)).await;
    // The type of a record, a byte of the random number, and one of the encrypted certificate.
    let damaged = damaging(server.address, vec![0, 20, 300]).await;
    let member = join(&server.state_dir.endpoint(damaged, SECRET), request(0, 1)).await.unwrap();
    member.leave(Outcome::Done).await.unwrap();
    // Every handshake is damaged: the join ends with the error of the handshake, before its own timeout.
    let damaged = damaging(server.address, vec![300; 1000]).await;
    let endless = with(request(0, 1), |spec| spec.timeout_s = Some(600.0));
    match timeout(HANGS, join(&server.state_dir.endpoint(damaged, SECRET), endless)).await.unwrap() {
        Err(JoinError::Handshake { endpoint, .. }) => assert_eq!(endpoint, damaged),
        other => panic!("{other:?}"),
    }
    server.stop().await;
}

#[tokio::test]
async fn strangers_use_up_nothing() {
    let server = Server::start(FakePlane::new(1024)).await;
    let member = join(&server.endpoint(), request(0, 1)).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(TcpStream::connect(server.address).await.unwrap());
    }
    let mut buffer = [0; 256];
    let other = with(request(0, 1), |spec| spec.job = "other".into());
    let other = timeout(HANGS, join(&server.endpoint(), other)).await.unwrap().unwrap();
    drop(idle);
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 5000], &[0x16, 3, 1, 0xff, 0xff]] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // The server may close before it has read all.
        let _ = stream.write_all(nonsense).await;
        while let Ok(1..) = timeout(HANGS, stream.read(&mut buffer)).await.unwrap() {}
    }
    for member in [&member, &other] {
        assert_eq!(*member.watch().borrow(), MemberState::Running { departed: vec![] });
    }
    server.stop().await;
}

#[tokio::test]
async fn too_long_a_message_is_refused_by_its_length() {
    let server = Server::start(FakePlane::new(1024)).await;
    let long = with(request(0, 1), |spec| spec.job = "x".repeat(3 << 20));
    let hasty = with(long, |spec| spec.timeout_s = Some(2.0));
    let refused = timeout(HANGS, join(&server.endpoint(), hasty)).await.unwrap();
    assert!(refused.is_err(), "{refused:?}");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(server.plane.calls().is_empty());
    join(&server.endpoint(), request(0, 1)).await.unwrap();
    server.stop().await;
}
