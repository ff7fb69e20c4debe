//! Invalid and hostile requests: each is answered with an error, and other trainers are not affected.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

use crate::common::{Alone, Raw, SECRET, code, memfd, scratch};
use serde_json::json;
use sumac_client::Client;
use sumac_control::{Fingerprint, JoinToken, Secret};
use sumac_daemon::config::Config;
use sumac_daemon::{Daemon, DaemonError, ServeError};

/// Asserts that the daemon serves a valid request.
fn serves(socket: &std::path::Path) {
    let client = Client::connect(socket).unwrap();
    let mut tensor = client.tensor::<f32>(1000).unwrap();
    tensor[999] = 1.0;
    assert_eq!(client.stats().unwrap().backend, "udp");
}

#[test]
fn malformed_requests_are_answered_with_their_error() {
    let alone = Alone::new("");
    let mut raw = alone.raw();
    let cases: [(&str, &[u8], &str); 7] = [
        ("binary", b"\0\xff\x80", "bad_message"),
        ("an array", b"[1,2]", "bad_message"),
        ("no id", b"{\"cmd\":\"stats\"}", "bad_message"),
        ("deep", &[b'['; 4096], "bad_message"),
        ("unknown command", b"{\"id\":9,\"cmd\":\"format\"}", "unknown_command"),
        ("unknown field", b"{\"id\":9,\"cmd\":\"stats\",\"x\":1}", "bad_field"),
        ("wrong type", b"{\"id\":9,\"cmd\":\"wait\",\"op\":\"one\"}", "bad_field"),
    ];
    for (name, bytes, expected) in cases {
        raw.channel.send(bytes, &[]).unwrap();
        let (reply, _) = raw.receive().unwrap();
        assert_eq!(code(&reply), expected, "{name}: {reply}");
    }
    serves(&alone.socket);
}

#[test]
fn an_oversized_message_is_refused_and_the_connection_continues() {
    let alone = Alone::new("");
    let mut raw = alone.raw();
    let long = vec![b' '; sumac_api::MAX_MESSAGE + 1];
    rustix::net::send(&raw.channel, &long, rustix::net::SendFlags::empty()).unwrap();
    let (reply, _) = raw.receive().unwrap();
    assert_eq!(code(&reply), "too_large");
    assert!(raw.ask(json!({"cmd": "stats"}))["ok"].is_object());
}

#[test]
fn unsealed_and_short_files_are_refused() {
    let alone = Alone::new("");
    let mut raw = alone.raw();
    assert_eq!(code(&raw.ask(json!({"cmd": "register", "size": 4096}))), "missing_fd");
    let ordinary = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    let socket_fd = raw.channel.as_fd().try_clone_to_owned().unwrap();
    let cases = [
        ("unsealed", memfd(4096, false), 4096),
        ("shorter than announced", memfd(4095, true), 4096),
        ("no bytes", memfd(4096, true), 0),
        ("more than there are addresses", memfd(4096, true), u64::MAX),
        ("an ordinary file", ordinary, 4096),
        ("a socket", socket_fd, 4096),
    ];
    for (name, file, size) in &cases {
        let reply = raw.register(file, *size);
        assert!(["bad_region", "limit"].contains(&code(&reply)), "{name}: {reply}");
    }
    let fine = memfd(4096, true);
    assert!(raw.register(&fine, 4096)["ok"]["region"].is_u64());
    serves(&alone.socket);
}

/// Well-formed commands with random contents, from several trainers at once.
#[test]
fn random_commands_are_answered_one_by_one() {
    let alone = Alone::new("aggregator = \"127.0.0.1:1\"");
    let trainers: Vec<_> = (1..=4u64)
        .map(|seed| {
            let socket = alone.socket.clone();
            std::thread::spawn(move || talk(&socket, seed))
        })
        .collect();
    for trainer in trainers {
        trainer.join().unwrap();
    }
    serves(&alone.socket);
}

/// Returns numbers below what it is called with. A seed repeats a sequence.
fn dice(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |sides| {
        // Constants of Numerical Recipes.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % sides
    }
}

/// Sends a thousand commands; each is answered with its id.
fn talk(socket: &std::path::Path, seed: u64) {
    let mut raw = Raw::greeted(socket);
    let mut roll = dice(seed);
    for _ in 0..1000 {
        let handle = [roll(4), roll(300), u64::MAX][roll(3) as usize];
        let size = [0, 1, 4096, 1 << 20, u64::MAX][roll(5) as usize];
        let file = memfd([0, 1, 4096, 1 << 20][roll(4) as usize], roll(2) == 0);
        let command = match roll(10) {
            0 => json!({"cmd": "register", "size": size}),
            1 => json!({"cmd": "unregister", "region": handle}),
            2 => json!({"cmd": "wait", "op": handle, "timeout_ms": roll(3)}),
            3 => json!({"cmd": "cancel", "op": handle}),
            4 => json!({"cmd": "close", "job": handle}),
            5 => json!({"cmd": "stats"}),
            6 => {
                json!({"cmd": "open",
                    "job": format!("job{handle}"), "rank": roll(3), "world": roll(3), "timeout_s": 0.0})
            }
            7 => json!({"cmd": "attach", "job": format!("job{handle}")}),
            8 => {
                json!({"cmd": "broadcast", "job": handle,
                    "region": handle, "dtype": "float16", "offset": size, "count": size, "root": roll(3)})
            }
            _ => {
                json!({"cmd": "allreduce",
                    "job": handle, "region": handle, "dtype": "int32", "offset": size, "count": size})
            }
        };
        let fds = [file.as_fd()];
        let (reply, _) = raw.ask_with(command, &fds[..roll(2) as usize]);
        assert!(reply["ok"].is_object() || reply["error"]["code"].is_string(), "{reply}");
    }
}

#[test]
fn unexpected_descriptors_are_closed() {
    let alone = Alone::new("");
    let mut raw = alone.raw();
    let file = memfd(4096, true);
    let (reply, _) = raw.ask_with(json!({"cmd": "stats"}), &[file.as_fd()]);
    assert_eq!(code(&reply), "unexpected_fd");
    serves(&alone.socket);
}

/// Random operations in and out of range, in a job of one worker.
#[test]
fn random_operations_are_refused_or_end() {
    let lab = crate::lab::Lab::new(1);
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    let job = raw.ask(json!({"cmd": "open", "job": "random", "rank": 0, "world": 1}))["ok"]["job"].clone();
    let regions = [1 << 16, 1 << 12].map(|size| raw.region(size));
    let mut roll = dice(7);
    let mut ended = 0;
    for _ in 0..1500 {
        let dtype = ["float32", "float16", "bfloat16", "int32"][roll(4) as usize];
        let kind = ["allreduce", "broadcast", "reduce", "reduce_scatter", "allgather"][roll(5) as usize];
        let place = |roll: &mut dyn FnMut(u64) -> u64| roll(40) * roll(40) * if roll(4) == 0 { 1 } else { 4 };
        let (offset, out) = (place(&mut roll), place(&mut roll));
        let count = roll(40) * roll(400);
        let mut ask = json!({"cmd": kind, "job": job, "region": regions[roll(2) as usize],
            "dtype": dtype, "offset": offset, "count": count, "priority": roll(9)});
        let mut add = |key: &str, value: serde_json::Value, is_there: bool| {
            if is_there {
                ask[key] = value;
            }
        };
        add("root", json!(roll(2)), matches!(kind, "broadcast" | "reduce"));
        add("reduction", json!(["sum", "mean", "min", "max"][roll(4) as usize]), roll(2) == 0);
        add("out_offset", json!(out), roll(2) == 0);
        add("out_region", regions[roll(2) as usize].clone(), roll(3) == 0);
        let reply = raw.ask(ask.clone());
        if let Some(op) = reply["ok"]["op"].as_u64() {
            // Random bytes are not all finite.
            let reply = raw.ask(json!({"cmd": "wait", "op": op}));
            assert!(reply["ok"].is_object() || code(&reply) == "saturated", "{ask}: {reply}");
            ended += 1;
        }
    }
    assert!(ended > 100, "{ended}");
    assert!(raw.ask(json!({"cmd": "close", "job": job}))["ok"].is_object());
    serves(&lab.hosts[0].1);
}

#[test]
fn an_empty_secret_is_refused() {
    let open = json!({"cmd": "open", "job": "j", "rank": 0, "world": 2, "secret": ""});
    assert_eq!(code(&Alone::new("").raw().ask(open)), "bad_field");
}

/// Starts a daemon whose aggregator's address has no listener.
fn unreachable_aggregator() -> Alone {
    let token = JoinToken { fingerprint: Fingerprint([7; 32]), secret: Secret::new(SECRET).unwrap() };
    Alone::with(&token.to_string(), "aggregator = \"127.0.0.1:1\"")
}

#[test]
fn an_unreachable_aggregator_is_an_error_after_the_timeout() {
    let alone = unreachable_aggregator();
    let mut raw = alone.raw();
    let open = json!({"cmd": "open", "job": "j", "rank": 0, "world": 2, "timeout_s": 0.3});
    // The second waits for the first, which has the same name.
    let (first, second) = (raw.send(open.clone(), &[]), raw.send(open, &[]));
    assert_eq!(code(&raw.reply_to(first).0), "unreachable");
    assert_eq!(code(&raw.reply_to(second).0), "unreachable");
}

#[test]
fn a_job_is_open_once_on_a_host() {
    let alone = unreachable_aggregator();
    let mut raw = alone.raw();
    raw.send(json!({"cmd": "open", "job": "j", "rank": 0, "world": 2, "timeout_s": 60}), &[]);
    let reply = raw.ask(json!({"cmd": "open", "job": "j", "rank": 1, "world": 2, "timeout_s": 60}));
    assert_eq!((code(&reply), &reply["error"]["ranks"]), ("rank_taken", &json!([0])), "{reply}");
}

#[test]
fn a_trainer_that_does_not_read_is_disconnected() {
    let alone = Alone::new("");
    let raw = alone.raw();
    let flood = br#"{"id":1,"cmd":"nothing"}"#;
    let cut = (0..1_000_000).any(|_| raw.channel.send(flood, &[]).is_err());
    assert!(cut, "a million unread replies");
    serves(&alone.socket);
}

#[test]
fn limits_are_enforced() {
    let alone = Alone::new("");
    let mut raw = alone.raw();
    let refused = (0..10_000).find_map(|_| {
        let reply = raw.register(&memfd(4096, true), 4096);
        reply["error"].is_object().then_some(reply)
    });
    assert_eq!(code(&refused.expect("ten thousand regions")), "limit");
    // A connection's memory is released with it.
    drop(raw);
    serves(&alone.socket);
}

#[test]
fn idle_connections_delay_no_other() {
    let alone = Alone::new("");
    let silent: Vec<Raw> = (0..50).map(|_| Raw::connect(&alone.socket)).collect();
    serves(&alone.socket);
    drop(silent);
    serves(&alone.socket);
}

#[test]
fn users_that_are_not_listed_are_refused() {
    let scratch = scratch();
    let socket = scratch.path().join("a.sock");
    if !rustix::process::geteuid().is_root() {
        let why = "needs root to become another user";
        assert!(std::env::var("REQUIRE_PRIVILEGED").as_deref() != Ok("1"), "{why}");
        println!("SKIP users_who_are_not_listed_are_turned_away: {why}");
        return;
    }
    let config = format!("socket = {socket:?}\nbackend = \"udp\"\nallow_uids = [1]\nsocket_mode = \"0666\"");
    let _daemon = Daemon::start(Config::parse(&config, "test.toml".as_ref()).unwrap()).unwrap();
    // Only this thread changes its user, and it ends with the test.
    let (path, outcome) = (socket.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65534)).unwrap();
        let mut raw = Raw::connect(&path);
        let refused = raw.receive().map(|(message, _)| message);
        outcome.0.send((refused, raw.receive().is_none())).unwrap();
    });
    let (refused, hung_up) = outcome.1.recv().unwrap();
    assert_eq!(code(&refused.unwrap()), "denied");
    assert!(hung_up);
    serves(&socket);
}

#[test]
fn the_socket_has_the_configured_permissions_and_one_owner() {
    let Alone { daemon: first, socket, scratch: _scratch } = Alone::new("socket_mode = \"0600\"");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let config = Config::parse(&format!("socket = {socket:?}\nbackend = \"udp\""), "t".as_ref()).unwrap();
    assert!(matches!(Daemon::start(config.clone()), Err(DaemonError::Serve(ServeError::Taken(_)))));
    first.stop();
    assert!(!socket.exists());
    // The socket of a killed daemon is replaced; another file is not.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    Daemon::start(config.clone()).unwrap().stop();
    std::fs::write(&socket, "precious").unwrap();
    assert!(matches!(Daemon::start(config), Err(DaemonError::Serve(ServeError::NotASocket(_)))));
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "precious");
}

#[test]
fn trainers_are_notified_when_the_daemon_stops() {
    let alone = Alone::new("");
    let mut raw = alone.raw();
    alone.daemon.stop();
    assert!(raw.receive().is_none());
    assert!(Client::connect(&alone.socket).is_err());
}
