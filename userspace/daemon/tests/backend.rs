//! Which way packets move, and how loudly the daemon says that it is not the one asked for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod common;

use common::Scratch;
use sumac_client::Client;
use sumac_daemon::config::Config;
use sumac_daemon::{CarrierError, Daemon, DaemonError};

/// No XDP program can lead to the host's own address, whatever the privileges.
fn config(scratch: &Scratch, backend: &str) -> Config {
    let socket = scratch.path().join("a.sock");
    let text = format!("socket = {socket:?}\nbackend = {backend:?}\naggregator = \"127.0.0.1:48600\"");
    Config::parse(&text, "test.toml".as_ref()).unwrap()
}

#[test]
fn auto_falls_back_and_shows_why() {
    let scratch = Scratch::new();
    let config = config(&scratch, "auto");
    let socket = config.socket.clone();
    let daemon = Daemon::start(config).unwrap();
    assert_eq!(daemon.backend(), "udp");
    let client = Client::connect(&socket).unwrap();
    assert_eq!(client.hello().backend, "udp");
    let stats = client.stats().unwrap();
    assert!(stats.fallback.contains("cannot use XDP"), "{}", stats.fallback);
}

#[test]
fn xdp_or_nothing_is_nothing() {
    let scratch = Scratch::new();
    let config = config(&scratch, "xdp");
    let socket = config.socket.clone();
    assert!(matches!(Daemon::start(config), Err(DaemonError::Carrier(CarrierError::Xdp(_)))));
    assert!(!socket.exists());
}

#[test]
fn an_address_that_is_not_this_hosts_is_named() {
    let scratch = Scratch::new();
    let config = Config { address: Some("192.0.2.1".parse().unwrap()), ..config(&scratch, "udp") };
    let error = Daemon::start(config).unwrap_err();
    assert!(error.to_string().contains("192.0.2.1"), "{error}");
}
