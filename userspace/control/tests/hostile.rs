//! Strangers, impostors and those on the path, over loopback TCP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod plane;
#[allow(dead_code, reason = "each test file uses a part")]
mod server;

use std::{net::SocketAddr, time::Duration};

use plane::FakePlane;
use server::{HANGS, SECRET, Server, spec};
use sumac_control::{DenialKind, JoinError, JoinSpec, Outcome, Secret, join};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinHandle,
    time::timeout,
};

#[tokio::test]
async fn a_wrong_secret_is_denied_and_changes_nothing() {
    let server = Server::start(FakePlane::new(1024)).await;
    let wrong = JoinSpec { secret: Secret::new("not the right secret").unwrap(), ..spec(0, 1) };
    match join(server.address, wrong).await {
        Err(JoinError::Denied { why, kind, .. }) => {
            assert_eq!(kind, DenialKind::Secret);
            assert!(why.contains("secret"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert!(server.plane.calls().is_empty());
    let right = join(server.address, spec(0, 1)).await.unwrap();
    assert_eq!(right.assignment().epoch, 1);
    server.stop().await;
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const GOAWAY: u8 = 7;

/// HTTP/2 frames: kind, stream, all bytes.
fn frames(mut bytes: &[u8]) -> impl Iterator<Item = (u8, u32, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<9>()?;
        let len = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        let (frame, rest) = bytes.split_at_checked(9 + len)?;
        bytes = rest;
        Some((frame[3], stream, frame))
    })
}

/// Passes one connection on to `server` and keeps what the client sent.
async fn record(server: SocketAddr) -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let server = tokio::net::TcpStream::connect(server).await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
        let mut recorded = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = from_client.read(&mut buffer).await {
            recorded.extend_from_slice(&buffer[..len]);
            to_server.write_all(&buffer[..len]).await.unwrap();
        }
        recorded
    });
    (address, task)
}

fn has(answers: &[u8], kind: u8, stream: u32) -> bool {
    frames(answers).any(|frame| (frame.0, frame.1) == (kind, stream))
}

/// Plays the frames of a recorded connection that shall be, until its second call, the join, is answered: gives the answers.
async fn play(server: SocketAddr, recorded: &[u8], shall_be: fn(u8, u32) -> bool) -> Vec<u8> {
    let mut again = tokio::net::TcpStream::connect(server).await.unwrap();
    again.write_all(PREFACE).await.unwrap();
    let chosen = frames(&recorded[PREFACE.len()..]).filter(|(kind, stream, _)| shall_be(*kind, *stream));
    for (kind, _, bytes) in chosen {
        again.write_all(bytes).await.unwrap_or_else(|error| panic!("frame of kind {kind}: {error}"));
    }
    let mut answers = Vec::new();
    let mut buffer = [0; 4096];
    while !has(&answers, HEADERS, 3) {
        let len = timeout(HANGS, again.read(&mut buffer)).await.expect("no answer to the join").unwrap();
        assert_ne!(len, 0, "closed without an answer to the join");
        answers.extend_from_slice(&buffer[..len]);
    }
    answers
}

#[tokio::test]
async fn a_recorded_connection_played_again_changes_nothing() {
    let server = Server::start(FakePlane::new(1024)).await;
    let (proxy, recording) = record(server.address).await;
    let member = join(proxy, spec(0, 1)).await.unwrap();
    member.leave(Outcome::Done).await.unwrap();
    let recorded = timeout(HANGS, recording).await.unwrap().unwrap();
    assert!(recorded.windows(5).any(|window| window == b"train"), "the join is in it");
    assert!(!recorded.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()), "the secret is not");
    // A job of one worker came and, a moment after the worker, went.
    let gone = async {
        while server.plane.calls().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(HANGS, gone).await.expect("the job stays");
    let calls = server.plane.calls();

    let answers = play(server.address, &recorded, |kind, _| kind != GOAWAY).await;
    assert!(has(&answers, DATA, 1), "the challenge, which anybody may ask for, was answered");
    assert!(!has(&answers, DATA, 3), "the join was denied: headers, and no message");
    assert_eq!(server.plane.calls(), calls, "no job came of it");
    let fresh = join(server.address, spec(0, 1)).await.unwrap();
    assert_eq!(fresh.assignment().epoch, 2, "the recorded join took no incarnation");
    server.stop().await;
}

#[tokio::test]
async fn a_call_that_is_sent_by_half_ends() {
    let server = Server::start(FakePlane::new(1024)).await;
    let (proxy, recording) = record(server.address).await;
    let member = join(proxy, spec(0, 1)).await.unwrap();
    member.leave(Outcome::Done).await.unwrap();
    let recorded = timeout(HANGS, recording).await.unwrap().unwrap();
    let without_its_message = |kind, stream| stream < 3 || (kind, stream) == (HEADERS, 3);
    let answers = play(server.address, &recorded, without_its_message).await;
    assert!(!has(&answers, DATA, 3), "an error: headers, and no message");
    server.stop().await;
}

#[tokio::test]
async fn strangers_use_up_nothing() {
    let server = Server::start(FakePlane::new(1024)).await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(tokio::net::TcpStream::connect(server.address).await.unwrap());
    }
    // Of one address, the server keeps some and closes the others.
    let mut buffer = [0; 256];
    let mut closed = 0;
    for stream in idle.iter_mut().rev().take(50) {
        closed +=
            usize::from(matches!(timeout(HANGS, stream.read(&mut buffer)).await.unwrap(), Ok(0) | Err(_)));
    }
    assert_eq!(closed, 50, "those over the limit");
    drop(idle);
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 5000], &[PREFACE, &[0xff; 64]].concat()] {
        let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        // The server may close before it has read all.
        let _ = stream.write_all(nonsense).await;
        while let Ok(1..) = timeout(HANGS, stream.read(&mut buffer)).await.unwrap() {}
    }
    join(server.address, spec(0, 1)).await.unwrap();
    server.stop().await;
}
