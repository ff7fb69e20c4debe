//! The limits of pages, regions, connections, queued operations and reports that trainers can make the daemon
//! hold or make.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use crate::common::{Alone, Raw, code, memfd};
use crate::lab::Lab;
use crate::wait::eventually;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use serde_json::{Value, json};
use sumac_client::Client;

fn message(reply: &Value) -> &str {
    reply["error"]["message"].as_str().unwrap_or_default()
}

/// Runs `work` as another user; `None` when this one may not become another.
pub fn as_another_user<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        let why = "needs root to become another user";
        assert!(std::env::var("REQUIRE_PRIVILEGED").as_deref() != Ok("1"), "{why}");
        println!("SKIP the part of another user: {why}");
        return None;
    }
    // Only this thread changes its user, and it ends with the work.
    let thread = std::thread::spawn(|| {
        rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65534)).unwrap();
        work()
    });
    Some(thread.join().unwrap())
}

/// A daemon that all users may connect to.
fn open_to_all(further: &str) -> Alone {
    Alone::new(&format!("socket_mode = \"0666\"\n{further}"))
}

#[test]
fn pages_are_allocated_by_the_trainer_alone() {
    let alone = Alone::new("");
    let mut raw = alone.raw();
    let file = rustix::fs::memfd_create("sparse", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 1 << 20).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let reply = raw.register(&file, 1 << 20);
    assert_eq!(code(&reply), "bad_region", "{reply}");
    assert!(message(&reply).contains("byte 0 is not allocated"), "{reply}");
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0, "pages that count as the daemon's");
}

#[test]
fn no_hole_can_be_punched_into_a_registered_file() {
    let alone = Alone::new("");
    let mut raw = alone.raw();
    let file = memfd(1 << 20, true);
    let region = raw.register(&file, 1 << 20)["ok"]["region"].clone();
    assert!(region.is_u64());
    let punch =
        || rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 1 << 20);
    assert_eq!(punch(), Err(Errno::PERM));
    assert!(raw.ask(json!({"cmd": "unregister", "region": region}))["ok"].is_object());
    assert_eq!(punch(), Err(Errno::PERM));
}

#[test]
fn a_file_is_registered_once() {
    let alone = open_to_all("");
    let (mut one, mut other) = (alone.raw(), alone.raw());
    let file = memfd(4096, true);
    let region = one.register(&file, 4096)["ok"]["region"].clone();
    assert!(region.is_u64());
    let refused = |reply: Value| {
        assert_eq!(code(&reply), "bad_region", "{reply}");
        assert!(message(&reply).contains("register each memfd once"), "{reply}");
    };
    refused(one.register(&file, 4096));
    refused(other.register(&file, 4096));
    let (socket, copy) = (alone.socket.clone(), file.try_clone().unwrap());
    as_another_user(move || Raw::greeted(&socket).register(&copy, 4096)).into_iter().for_each(refused);
    // Pages that were mapped once are not mapped again: the budget counted them, and forgot them.
    assert!(one.ask(json!({"cmd": "unregister", "region": region}))["ok"].is_object());
    refused(other.register(&file, 4096));
}

#[test]
fn a_user_has_a_share_of_the_memory() {
    let alone = open_to_all("memory_mib = 4");
    let mut raw = alone.raw();
    let files = [2u64, 1, 2].map(|mib| (memfd(mib << 20, true), mib << 20));
    let mut register = |(file, size): &(OwnedFd, u64)| raw.register(file, *size);
    let region = register(&files[0])["ok"]["region"].clone();
    let refused = register(&files[1]);
    assert_eq!(code(&refused), "limit");
    assert!(message(&refused).contains("user's share"), "{refused}");
    let socket = alone.socket.clone();
    let theirs = as_another_user(move || Raw::greeted(&socket).register(&files[2].0, files[2].1));
    assert!(theirs.is_none_or(|reply| reply["ok"].is_object()));
    assert!(raw.ask(json!({"cmd": "unregister", "region": region}))["ok"].is_object());
    let file = memfd(2 << 20, true);
    assert!(raw.register(&file, 2 << 20)["ok"].is_object(), "it was released");
}

#[test]
fn a_user_has_a_share_of_the_connections() {
    // Eight connections' buffers for each user.
    let alone = open_to_all("buffers_mib = 64");
    let mine: Vec<Raw> = (0..8).map(|_| alone.raw()).collect();
    let (refused, _) = Raw::connect(&alone.socket).receive().unwrap();
    assert_eq!(code(&refused), "limit");
    assert!(message(&refused).contains("user's share"), "{refused}");
    let socket = alone.socket.clone();
    as_another_user(move || drop(Raw::greeted(&socket)));
    drop(mine);
    wait_until_served(&alone.socket);
}

/// Waits until a connection is served: former ones are released when their threads end.
fn wait_until_served(socket: &Path) {
    eventually("a connection", || Client::connect(socket).ok());
}

#[test]
fn queued_operations_are_counted_and_small_chunks_refused() {
    let lab = Lab::with(2, "buffers_mib = 64");
    let _jobs = lab.open("queue", |o| o.elements(1).slots(16));
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    let job = raw.ask(json!({"cmd": "attach", "job": "queue"}))["ok"]["job"].clone();
    let region = raw.region((2 << 24) + 4096);
    let most = json!({"cmd": "allreduce",
        "job": job, "region": region, "dtype": "float16", "offset": 0, "count": (1 << 24) + 1});
    let refused = raw.ask(most);
    assert_eq!(code(&refused), "limit", "{refused}");
    assert!(message(&refused).contains("at most 16777216"), "{refused}");
    // The root's tensor is read only, so that the ranges of many may overlap. The other worker never follows.
    let broadcast = json!({"cmd": "broadcast",
        "job": job, "region": region, "dtype": "int32", "offset": 0, "count": 1 << 23, "root": 0});
    let submitted = (0..1024).map(|_| raw.ask(broadcast.clone())).find(|reply| reply["error"].is_object());
    let refused = submitted.expect("a thousand operations of 2 MiB each");
    assert_eq!(code(&refused), "limit", "{refused}");
    assert!(message(&refused).contains("of the daemon's memory for trainers"), "{refused}");
    // The job ends, and with it what it held.
    assert!(raw.ask(json!({"cmd": "cancel", "op": 1}))["ok"].is_object());
    raw.ask(json!({"cmd": "close", "job": job}));
    wait_until_served(&lab.hosts[0].1);
}

#[test]
fn reports_of_the_data_path_are_made_at_intervals_however_many_ask() {
    let alone = Alone::new("");
    let rounds = || {
        let stats = Client::connect(&alone.socket).unwrap().stats().unwrap();
        stats.threads[0]["rounds"].as_u64().unwrap()
    };
    let (before, start) = (rounds(), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let client = Client::connect(&alone.socket).unwrap();
                (0..20).for_each(|_| drop(client.stats().unwrap()));
            });
        }
    });
    let (rounds, intervals) = (rounds() - before, start.elapsed().as_millis() / 20 + 2);
    // A wake-up, the end of the interval, and one that came meanwhile.
    assert!(u128::from(rounds) <= 3 * intervals, "{rounds} rounds in {intervals} intervals for 400 requests");
}
