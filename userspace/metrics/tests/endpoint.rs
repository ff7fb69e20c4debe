//! Scrapes over HTTP of a program with hostile labels, by clients that keep the protocol and others.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on")]

use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use sumac_metrics::{Encode, Encoder, Group, Metric, Unit};
use tokio::runtime::Runtime;

const THINGS: Group<u64> = Group {
    labels: &["name", "rank"],
    metrics: &[Metric::counter("things", Unit::None, "Things", |it| *it), Metric::info("about", "About")],
};

/// A program with a series for each name.
#[derive(Clone, Debug)]
struct Program(Vec<String>);

impl Encode for Program {
    fn encode(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
        let things: Vec<_> = self.0.iter().map(|name| (vec![name.clone(), "0".to_owned()], 7)).collect();
        THINGS.encode(encoder, &things)
    }
}

fn serve(names: &[&str]) -> (Runtime, SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener: TcpListener = sumac_metrics::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let names = names.iter().map(|&name| name.to_owned()).collect();
    sumac_metrics::serve(listener, Program(names), runtime.handle()).unwrap();
    (runtime, address)
}

fn ask(address: SocketAddr, accept: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\n\r\n").unwrap();
    stream
}

fn scrape(address: SocketAddr, accept: &str) -> String {
    let mut answer = String::new();
    ask(address, accept).read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Returns the value of the label `name` of each series, by the grammar of both formats.
fn names(text: &str) -> Vec<String> {
    let series = text.lines().filter_map(|line| line.strip_prefix("things_total{name=\""));
    series.map(|series| unescape(series, "\",rank=\"0\"} 7")).collect()
}

/// Returns the value that begins a text; checks what follows.
fn unescape(text: &str, rest: &str) -> String {
    let (mut value, mut characters) = (String::new(), text.chars());
    loop {
        let before = characters.as_str();
        value.push(match characters.next().unwrap() {
            '"' => {
                assert_eq!(before, rest);
                return value;
            }
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some(escaped @ ('\\' | '"')) => escaped,
                other => panic!("{other:?} is escaped in {text}"),
            },
            plain => plain,
        });
    }
}

#[test]
fn label_values_are_escaped() {
    let hostile =
        ["\"x", "x\"} 1\nthings_total{name=\"y", "\\", "\\\"", "a\\nb", "}", "# EOF", "ü \u{2028}", ""];
    let (_runtime, address) = serve(&hostile);
    for accept in ["text/plain", "application/openmetrics-text"] {
        let text = scrape(address, accept);
        assert_eq!(names(&text), hostile, "{text}");
        let infos = text.lines().filter_map(|line| line.strip_prefix("about_info{name=\""));
        let infos: Vec<_> = infos.map(|info| unescape(info, "\",rank=\"0\"} 1")).collect();
        assert_eq!(infos, hostile, "{text}");
    }
}

#[test]
fn clients_that_do_not_read_keep_no_other_out() {
    let long = "x".repeat(32 << 20);
    let (_runtime, address) = serve(&[&long]);
    // Of 32 MiB a connection's buffers hold a part. More of them than are served at one time.
    let idle: Vec<_> = (0..20).map(|_| ask(address, "text/plain")).collect();
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert_eq!(names(&scrape(address, "text/plain")), [long]);
    drop((idle, silent));
}
