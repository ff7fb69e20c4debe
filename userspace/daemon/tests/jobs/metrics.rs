//! Scrapes of a daemon's metrics. See `lab.rs` for the topology.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::common::Alone;
use crate::kinds::tensor;
use crate::lab::Lab;

/// An address that is free now.
fn address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// Sends one request. Returns the answer's status, its header and its body.
fn ask(address: SocketAddr, request: &str, header: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let request = format!("{request} HTTP/1.1\r\nHost: a\r\n{header}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (header, body) = answer.split_once("\r\n\r\n").unwrap();
    (header.split(' ').nth(1).unwrap().parse().unwrap(), header.to_lowercase(), body.to_owned())
}

/// The series of a scrape by name and labels. All of them are described, none comes twice, and no text
/// follows the end.
pub fn scrape(address: SocketAddr) -> BTreeMap<String, f64> {
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let (status, header, body) = ask(address, "GET /metrics", accept);
    assert_eq!(status, 200, "{body}");
    assert!(header.contains("content-type: application/openmetrics-text; version=1.0.0"), "{header}");
    series(body.strip_suffix("# EOF\n").unwrap())
}

fn series(body: &str) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    let mut described = "";
    for line in body.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.split(' ').skip(1);
            described = words.next().unwrap();
            assert!(words.next().is_some(), "{line}");
            continue;
        }
        assert!(line.starts_with(described), "{line} below the description of {described}");
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert_eq!(series.insert(name.to_owned(), value.parse().unwrap()), None, "{name} comes twice");
    }
    series
}

#[test]
fn a_jobs_counters_are_those_of_its_operations() {
    let address = address();
    let lab = Lab::with(1, &format!("metrics = \"{address}\""));
    lab.train(
        "scraped",
        |o| o,
        move |client, job, _| {
            let mut input = tensor::<f32>(client, 3520, |i| i as f32);
            for round in 0..5 {
                let before = scrape(address);
                input = job.allreduce(input).unwrap().wait().unwrap();
                let after = scrape(address);
                let labels = "{job_name=\"scraped\",rank=\"0\"}";
                let grown = |name: &str| {
                    let name = format!("sumac_job_{name}{labels}");
                    after[&name] - before.get(&name).copied().unwrap_or(0.0)
                };
                assert_eq!(grown("operations_ended_total"), 1.0, "round {round}");
                assert!(grown("chunks_sent_total") >= 10.0 && grown("results_total") >= 10.0);
                assert!(grown("sent_bytes_total") > 3520.0 * 4.0);
                assert_eq!(grown("chunk_completion_seconds_count"), grown("results_total"));
                assert!(grown("chunk_completion_seconds_sum") > 0.0);
                let all = format!("sumac_job_chunk_completion_seconds_bucket{{le=\"+Inf\",{}", &labels[1..]);
                assert_eq!(after[&all], after[&format!("sumac_job_chunk_completion_seconds_count{labels}")]);
                for gauge in ["ready", "control_connected", "workers", "clients"] {
                    assert_eq!(after[&format!("sumac_job_{gauge}{labels}")], 1.0, "{gauge}");
                }
                assert_eq!(after["sumac_clients"], 1.0);
            }
        },
    );
}

#[test]
fn other_requests_are_refused() {
    let address = address();
    let alone = Alone::new(&format!("metrics = \"{address}\""));
    let series = scrape(address);
    assert_eq!(series["sumac_clients"], 0.0);
    assert!(series.keys().any(|name| name.contains("backend=\"udp\"")), "{series:?}");
    let (_, header, body) = ask(address, "GET /metrics", "");
    assert!(header.contains("content-type: text/plain; version=0.0.4"), "{header}");
    // The same series, those that change with time excepted.
    assert!(self::series(&body).keys().eq(series.keys()), "{body}");
    assert!(body.contains("# TYPE sumac_opens_total counter\nsumac_opens_total 0\n"), "{body}");
    assert_eq!(ask(address, "GET /", "").0, 404);
    let (status, header, _) = ask(address, "POST /metrics", "");
    assert!(status == 405 && header.contains("allow: get"), "{header}");
    // As many connections as are served at one time, without a request.
    let idle: Vec<TcpStream> = (0..16).map(|_| TcpStream::connect(address).unwrap()).collect();
    scrape(address);
    drop(idle);
    let mut raw = alone.raw();
    assert!(raw.ask(serde_json::json!({"cmd": "stats"}))["ok"].is_object());
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = taken.local_addr().unwrap();
    let scratch = crate::common::scratch();
    let socket = scratch.path().join("a.sock");
    let text = format!(
        "socket = {socket:?}\nbackend = \"udp\"\nsecret = \"some secret of length\"\nmetrics = \"{address}\""
    );
    let config = sumac_daemon::config::Config::parse(&text, std::path::Path::new("test.toml")).unwrap();
    let error = sumac_daemon::Daemon::start(config).unwrap_err().to_string();
    assert!(
        error.contains(&address.to_string()) && error.contains("choose another address for `metrics`"),
        "{error}"
    );
}
