//! The choice of the backend, and the report of a fallback.

use crate::common::scratch;
use sumac_client::Client;
use sumac_daemon::config::Config;
use sumac_daemon::{BackendError, Daemon, DaemonError};
use tempfile::TempDir;

/// An XDP program cannot be used for the host's own address, whatever the privileges.
fn config(scratch: &TempDir, backend: &str) -> Config {
    let socket = scratch.path().join("a.sock");
    let text = format!("socket = {socket:?}\nbackend = {backend:?}\naggregator = \"127.0.0.1:48600\"");
    Config::parse(&text, "test.toml".as_ref()).unwrap()
}

#[test]
fn auto_falls_back_to_udp_and_reports_the_reason() {
    let scratch = scratch();
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
fn xdp_does_not_fall_back() {
    let scratch = scratch();
    let config = config(&scratch, "xdp");
    let socket = config.socket.clone();
    assert!(matches!(Daemon::start(config), Err(DaemonError::Backend(BackendError::Xdp(_)))));
    assert!(!socket.exists());
}

#[test]
fn an_error_names_an_address_that_is_not_this_hosts() {
    let scratch = scratch();
    let config = Config { address: Some("192.0.2.1".parse().unwrap()), ..config(&scratch, "udp") };
    let error = Daemon::start(config).unwrap_err();
    assert!(error.to_string().contains("192.0.2.1"), "{error}");
}
