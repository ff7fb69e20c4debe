//! A full disk under the journal, as a limit of the size of files: a record is written in part, then nothing.
//! The limit is the process's, so this file has one test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod plane;
#[allow(dead_code, reason = "each test file uses a part")]
mod server;

use std::{fs, time::Duration};

use nix::sys::signal::{SigSet, Signal};
use plane::FakePlane;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::{HANGS, Server, refusal, request, until, with};
use sumac_control::{JoinRequest, MemberState, RefusalKind, join};
use tokio::time::timeout;

fn named(job: &str) -> JoinRequest {
    with(request(0, 1), |spec| spec.job = job.into())
}

#[test]
fn a_full_disk_refuses_jobs_and_spoils_no_journal() {
    // Threads inherit it. The write then fails with EFBIG.
    SigSet::from_iter([Signal::SIGXFSZ]).thread_block().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(full_disk());
}

async fn full_disk() {
    let unlimited = getrlimit(Resource::Fsize);
    let server = Server::start(FakePlane::new(1024)).await;
    let journal = server.state_dir.0.join("journal");
    let before = join(&server.endpoint(), named("before")).await.unwrap();

    let len = fs::metadata(&journal).unwrap().len();
    setrlimit(Resource::Fsize, Rlimit { current: Some(len + 10), ..unlimited }).unwrap();
    for attempt in 0..3 {
        let refused = refusal(&server.endpoint(), named("during")).await;
        assert_eq!(refused.kind, RefusalKind::Plane, "attempt {attempt}");
        let message = refused.message;
        assert!(
            message.contains("cannot write the journal") && message.contains("File too large"),
            "{message}"
        );
    }
    assert_eq!(*before.watch().borrow(), MemberState::Running { departed: vec![] }, "running jobs go on");
    setrlimit(Resource::Fsize, unlimited).unwrap();

    let after = join(&server.endpoint(), named("after")).await.expect("there is room again");
    let (address, plane) = (server.address, server.plane.clone());
    let state_dir = server.kill().await;
    let server = Server::start_at(address, plane, state_dir, Duration::ZERO).await;
    for job in ["before", "after"] {
        // It is in the journal.
        until(|| server.has(job)).await;
    }
    // They reconnect, and end as any others.
    for member in [before, after] {
        timeout(HANGS, member.leave(sumac_control::Outcome::Done)).await.unwrap().unwrap();
    }
    server.stop().await;
}
