//! Captures that a lab makes of its own packets, read by tshark with the dissector, against the lab's
//! counters.
//!
//! ```text
//! w0 net0 --[near c0 far]-- port0 agg port1 --[far c1 near]-- net0 w1      a capture at each `near` and `far`
//! ```
#![expect(clippy::unwrap_used, reason = "a test says why it failed by panicking")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sumac_lab::programs::Programs;
use sumac_wire::header::{Kind, flag};

const PROTOCOL: &str = include_str!("../../../docs/protocol.md");
const DISSECTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wireshark/sumac.lua");
const MALFORMED: [&str; 7] =
    ["bad_length", "bad_version", "bad_type", "bad_format", "truncated", "cut", "_ws.malformed"];

/// A folder for captures, or none when this machine cannot make and read them, which REQUIRE_PRIVILEGED=1
/// turns into a failure.
fn folder(test: &str) -> Option<PathBuf> {
    let why = if !nix::unistd::geteuid().is_root() {
        "network namespaces need root".to_owned()
    } else if let Err(error) = Programs::find() {
        error.to_string()
    } else if let Err(error) = Command::new("tshark").arg("--version").output() {
        format!("tshark: {error}; tools/setup.sh installs it")
    } else {
        return Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id())));
    };
    assert!(std::env::var_os("REQUIRE_PRIVILEGED").is_none_or(|v| v != "1"), "{test}: {why}");
    println!("SKIP {test}: {why}");
    None
}

/// The filters of the header's fields, by their names in the document.
fn header_fields() -> Vec<String> {
    let (_, rest) = PROTOCOL.split_once("\n### Header\n").unwrap();
    let section = rest.split_once("\n#").unwrap().0;
    let names = section.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let is_field = cells.next()?.parse::<u8>().is_ok() && cells.next()?.parse::<u8>().is_ok();
        cells.next().filter(|_| is_field)
    });
    let names: Vec<_> = names.flat_map(|names| names.split(", ")).collect();
    names.iter().map(|name| format!("sumac.{}", name.replace([' ', '-'], "_"))).collect()
}

/// A captured frame: the values of the fields that it has.
type Frame = HashMap<String, String>;

fn read(file: &Path) -> Vec<Frame> {
    let malformed = MALFORMED.iter().map(|name| match name.starts_with('_') {
        true => (*name).to_owned(),
        false => format!("sumac.{name}"),
    });
    let names = ["ip.src", "udp.length", "frame.protocols"].map(str::to_owned).into_iter();
    let names: Vec<_> = names.chain(header_fields()).chain(malformed).collect();
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file).args(["-X", &format!("lua_script:{DISSECTOR}"), "-T", "fields"]);
    for name in &names {
        tshark.args(["-e", name]);
    }
    let output = tshark.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let frame = |line: &str| {
        let pairs = names.iter().cloned().zip(line.split('\t').map(str::to_owned));
        pairs.filter(|(_, value)| !value.is_empty()).collect()
    };
    String::from_utf8(output.stdout).unwrap().lines().map(frame).collect()
}

fn number(frame: &Frame, field: &str) -> u64 {
    let text = &frame[field];
    text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16)).unwrap()
}

/// The packets of this kind from an address.
fn of<'a>(frames: &'a [Frame], kind: Kind, source: &str) -> Vec<&'a Frame> {
    let is_its = |frame: &&Frame| {
        frame.get("sumac.type").is_some_and(|it| *it == (kind as u8).to_string()) && frame["ip.src"] == source
    };
    frames.iter().filter(is_its).collect()
}

/// Checks what is the same in all packets, and that none is malformed.
fn check_frames(file: &Path, frames: &[Frame]) {
    for frame in frames.iter().filter(|frame| frame.contains_key("udp.length")) {
        for field in header_fields() {
            assert!(frame.contains_key(&field), "{}: {field} is missing in {frame:?}", file.display());
        }
        let malformed = MALFORMED.iter().find(|name| frame.keys().any(|field| field.ends_with(*name)));
        assert_eq!(malformed, None, "{}: {frame:?}", file.display());
        assert_eq!((&*frame["sumac.version"], &*frame["sumac.reserved"]), ("3", "0x0000"), "{frame:?}");
    }
}

/// Checks the fields of a worker's contributions, and of the results that are sent to it.
fn check_fields(contributions: &[&Frame], results: &[&Frame], rank: u64, chunk: u64) {
    for frame in contributions {
        assert_eq!(number(frame, "sumac.bitmap_0"), 1 << rank, "{frame:?}");
        assert_eq!((number(frame, "sumac.fan_in_0"), number(frame, "sumac.format")), (2, 0), "{frame:?}");
        assert!(number(frame, "sumac.elements") <= chunk && frame["sumac.token"] != "0x0000000000000000");
    }
    let sums = results.iter().filter(|frame| number(frame, "sumac.flags") & u64::from(flag::QUERY) == 0);
    for frame in sums {
        assert_eq!(
            (number(frame, "sumac.bitmap_0"), number(frame, "sumac.contributors")),
            (3, 2),
            "{frame:?}"
        );
    }
}

#[test]
fn a_capture_has_the_packets_that_the_lab_counts() {
    let Some(folder) = folder("capture") else { return };
    let name = format!("cap{}", std::process::id());
    let run = "run --json --workers 2 --elements 20000 --iterations 1 --warmup 0 --loss 2% --name";
    let mut lab = Command::new(env!("CARGO_BIN_EXE_sumac-lab"));
    let output = lab.args(run.split(' ')).args([&name, "--pcap"]).arg(&folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let count = |path: &str| report.pointer(path).and_then(Value::as_u64).unwrap_or(0);

    let mut captured = HashMap::new();
    for file in report["captured"].as_array().unwrap() {
        let path = Path::new(file["file"].as_str().unwrap());
        let frames = read(path);
        assert_eq!(
            (frames.len() as u64, 0),
            (file["packets"].as_u64().unwrap(), file["dropped"].as_u64().unwrap())
        );
        check_frames(path, &frames);
        captured.insert(path.file_name().unwrap().to_str().unwrap().to_owned(), frames);
    }
    let (mut sent, mut probes, mut received, mut results) = (0, 0, 0, 0);
    for rank in 0..2 {
        let near = captured.remove(&format!("{name}-w{rank}.pcapng")).unwrap();
        let far = captured.remove(&format!("{name}-agg-port{rank}.pcapng")).unwrap();
        let [worker, aggregator] = [2, 1].map(|host| format!("10.77.{rank}.{host}"));
        let contributions = of(&near, Kind::Contribution, &worker);
        check_fields(&contributions, &of(&near, Kind::Result, &aggregator), rank, count("/chunk"));
        assert!(
            of(&near, Kind::Contribution, &aggregator).is_empty(),
            "an aggregator contributes to its worker"
        );
        // The cable is between the ends: it loses.
        assert!(of(&far, Kind::Contribution, &worker).len() <= contributions.len());
        sent += contributions.len() as u64;
        probes += of(&near, Kind::Probe, &worker).len() as u64;
        received += of(&near, Kind::Report, &aggregator).len() as u64;
        results += of(&far, Kind::Result, &aggregator).len() as u64;
    }
    assert!(captured.is_empty(), "{:?}", captured.keys());
    let workers = ["contributions", "resent", "questions"].map(|name| count(&format!("/frames/{name}")));
    assert_eq!(sent, workers.iter().sum::<u64>(), "{report}");
    // The bursts by which a daemon measures its path may be longer than a veth's queue, on either side of the
    // cable.
    assert!((1..=count("/frames/probes")).contains(&probes), "{probes}: {report}");
    assert!(received >= count("/frames/reports"), "{received}: {report}");
    let aggregator = ["sent", "replied", "wanted"].map(|name| count(&format!("/frames/aggregator/{name}")));
    assert_eq!(results, aggregator.iter().sum::<u64>(), "{report}");
    assert!(sent >= 2 * 20_000u64.div_ceil(count("/chunk")) && received > 0 && results > 0, "{report}");
    std::fs::remove_dir_all(folder).unwrap();
}
