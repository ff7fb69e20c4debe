//! The Wireshark dissector (`tools/wireshark/sumac.lua`) against this crate: its tables against the source,
//! and what tshark makes of a capture of every kind of packet against the headers in it.
//!
//! The capture is `tools/wireshark/packets.pcap`. After a change of the packet: `SUMAC_BLESS=1` writes it
//! anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use sumac_wire::frame::{self, ETH_LEN, Endpoints, IPV4_LEN, OVERHEAD, VLAN_LEN};
use sumac_wire::header::{ELEMENT_LEN, Format, HEADER_LEN, Header, Kind, VERSION, exponent, flag, offset};
use sumac_wire::{DEFAULT_BASE_PORT, MAX_JOBS};

const HEADER: &str = include_str!("../src/header.rs");
const LUA: &str = include_str!("../../tools/wireshark/sumac.lua");
const PROTOCOL: &str = include_str!("../../docs/protocol.md");

/// A port beyond those that the dissector is registered for.
const OTHER_PORT: u16 = 40000;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/wireshark")
}

/// The rows of a table in the dissector.
fn rows(table: &str) -> Vec<&'static str> {
    let (_, rest) = LUA.split_once(&format!("\nlocal {table} = {{\n")).unwrap();
    rest.lines().take_while(|line| *line != "}").map(str::trim).collect()
}

/// The rows `[number] = "name",`.
fn numbered(table: &str) -> Vec<(u8, String)> {
    let row = |line: &str| {
        let (number, name) = line.trim_start_matches('[').trim_end_matches(',').split_once("] = ").unwrap();
        (number.parse().unwrap(), name.trim_matches('"').to_owned())
    };
    rows(table).into_iter().map(row).collect()
}

/// The first three columns of the rows `{ "name", number, third, .. },`.
fn named(table: &str) -> Vec<(String, usize, String)> {
    let row = |line: &str| {
        let mut parts = line.trim_start_matches("{ ").splitn(4, ", ").map(|part| part.trim_matches('"'));
        let mut next = || parts.next().unwrap();
        (next().to_owned(), next().parse().unwrap(), next().to_owned())
    };
    rows(table).into_iter().map(row).collect()
}

/// The value of a line `local NAME = value`.
fn constant(name: &str) -> i64 {
    let (_, rest) = LUA.split_once(&format!("\nlocal {name} = ")).unwrap();
    let value = rest.lines().next().unwrap();
    value.strip_prefix("0x").map_or_else(|| value.parse(), |hex| i64::from_str_radix(hex, 16)).unwrap()
}

/// A name of the documents as this crate writes it.
fn identifier(name: &str) -> String {
    name.to_lowercase().replace([' ', '-'], "_")
}

/// The lines of `header.rs` between two others.
fn source(from: &str, to: &str) -> Vec<&'static str> {
    let (_, rest) = HEADER.split_once(from).unwrap();
    rest.split_once(to).unwrap().0.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect()
}

#[test]
fn constants_are_those_of_the_packet() {
    assert_eq!(constant("VERSION"), i64::from(VERSION));
    assert_eq!(constant("HEADER_LEN"), HEADER_LEN as i64);
    assert_eq!(constant("ELEMENT_LEN"), ELEMENT_LEN as i64);
    assert_eq!(constant("MAX_JOBS"), MAX_JOBS as i64);
    assert_eq!(constant("NO_SLOT"), i64::from(sumac_wire::header::NO_SLOT));
    assert_eq!(constant("EXPONENT_NONE"), i64::from(exponent::NONE));
    assert_eq!(constant("EXPONENT_UNKNOWN"), i64::from(exponent::UNKNOWN));
    assert!(LUA.contains(&format!("local PORTS = \"{DEFAULT_BASE_PORT}-{}\"", DEFAULT_BASE_PORT + 63)));
}

#[test]
fn types_and_formats_are_those_of_the_packet() {
    let variants = |name: &str| -> Vec<(u8, String)> {
        let lines = source(&format!("pub enum {name} {{"), "\n}");
        let rows = lines.into_iter().filter_map(|line| line.trim_end_matches(',').split_once(" = "));
        rows.map(|(name, number)| (number.parse().unwrap(), name.to_lowercase())).collect()
    };
    let kinds = variants("Kind");
    assert_eq!((numbered("TYPES"), kinds.len()), (kinds, 6));
    assert_eq!(numbered("FORMATS"), variants("Format"));
}

#[test]
fn flags_are_those_of_the_packet_and_of_the_document() {
    let line = |line: &str| {
        let (name, bit) = line.strip_prefix("pub const ")?.split_once(": u16 = 1 << ")?;
        Some((name.to_lowercase(), bit.trim_end_matches(';').parse().unwrap()))
    };
    let ours: Vec<(String, usize)> = source("pub mod flag {", "\n}").into_iter().filter_map(line).collect();
    let theirs: Vec<_> = named("FLAGS").into_iter().map(|(name, bit, _)| (identifier(&name), bit)).collect();
    assert_eq!(theirs, ours);
    for (name, bit, _) in named("FLAGS") {
        assert!(PROTOCOL.contains(&format!("\n| {name} | {bit} | ")), "{name} in docs/protocol.md");
    }
}

#[test]
fn fields_are_those_of_the_packet_and_of_the_document() {
    let line = |line: &str| {
        let (_, rest) = line.split_once(": ")?;
        let (at, rest) = rest.split_once(", ")?;
        let (name, rest) = rest.split_once(": ")?;
        let kind = rest.split_once(',')?.0.replace('u', "uint").replace('i', "int").replace("uintnt", "uint");
        Some((name.to_owned(), at.parse().unwrap(), kind))
    };
    let mut ours: Vec<(String, usize, String)> =
        source("\nfields! {", "\n}").into_iter().filter_map(line).collect();
    ours.push(("reserved".into(), offset::RESERVED, "uint16".into()));
    let theirs: Vec<_> =
        named("FIELDS").into_iter().map(|(name, at, kind)| (identifier(&name), at, kind)).collect();
    assert_eq!(theirs, ours);
    for (name, at, _) in named("FIELDS") {
        let is_there = PROTOCOL.lines().any(|line| {
            let mut cells = line.split(" | ");
            cells.next() == Some(&format!("| {at}")) && cells.nth(1) == Some(&name)
        });
        assert!(is_there, "{at} {name} in docs/protocol.md");
    }
}

/// A frame of the capture.
struct Packet {
    bytes: Vec<u8>,
    /// Its length on the wire, where the capture has less of it.
    len: usize,
    expected: Expected,
}

/// The outcome of the dissection.
enum Expected {
    Whole(Header),
    /// Malformed, or cut: the name of its expert information.
    Expert(&'static str),
}

fn frame(payload: &[u8], dst_port: u16) -> Vec<u8> {
    let to = Endpoints {
        src_mac: [2, 0, 0, 0, 0, 1],
        dst_mac: [2, 0, 0, 0, 0, 2],
        src_ip: 0x0a4d_0002,
        dst_ip: 0x0a4d_0001,
        src_port: 49152,
        dst_port,
        dscp_ecn: 2,
    };
    let mut bytes = vec![0; OVERHEAD + payload.len()];
    bytes[OVERHEAD..].copy_from_slice(payload);
    frame::emit(&mut bytes, &to, payload.len(), true).unwrap();
    bytes
}

fn payload(header: &Header) -> Vec<u8> {
    let words = (0..u32::from(header.elements)).flat_map(|word| (word + 0x0102_0304).to_be_bytes());
    header.to_bytes().into_iter().chain(words).collect()
}

/// A header whose fields all differ, and differ from those of other numbers.
fn header(kind: Kind, number: u32) -> Header {
    let value = |field: u32| (number * 32 + field).wrapping_mul(0x9e37_79b9);
    Header {
        kind: kind as u8,
        format: Format::Int32 as u8,
        flags: 0,
        job: 1 + number as u16 % 255,
        epoch: value(1) as u16,
        seq: value(2),
        slot: value(3),
        fan_in_0: value(4) as u8,
        fan_in_1: value(5) as u8,
        elements: 5,
        bitmap_0: value(6),
        bitmap_1: value(7),
        contributors: value(8) as u16,
        exponent: value(9) as i8,
        next_exponent: value(10) as i8,
        tensor: value(11),
        offset: value(12),
        timestamp: value(13),
        next_seq: value(14),
        token: u64::from(value(15)) << 32 | u64::from(value(16)),
        received: value(17),
        lane: value(18) as u16,
    }
}

fn whole(header: Header, port: u16) -> Packet {
    let bytes = frame(&payload(&header), port);
    Packet { len: bytes.len(), bytes, expected: Expected::Whole(header) }
}

fn malformed(payload: &[u8], name: &'static str) -> Packet {
    let bytes = frame(payload, DEFAULT_BASE_PORT);
    Packet { len: bytes.len(), bytes, expected: Expected::Expert(name) }
}

const KINDS: [Kind; 6] =
    [Kind::Contribution, Kind::Result, Kind::Probe, Kind::Report, Kind::Stop, Kind::Control];

fn packets() -> Vec<Packet> {
    let headers = KINDS.into_iter().zip(1..).map(|(kind, number)| header(kind, number));
    let mut headers: Vec<_> = headers.collect();
    let contribution = |number| header(Kind::Contribution, number);
    headers.push(Header { format: Format::Int16 as u8, ..contribution(7) });
    headers.push(Header { format: Format::Raw as u8, slot: u32::MAX, ..contribution(8) });
    headers.push(Header { elements: 0, exponent: exponent::NONE, flags: flag::QUERY, ..contribution(9) });
    headers.extend((0..16).map(|bit| Header { flags: 1 << bit, ..header(Kind::Result, 10 + bit) }));
    let mut packets: Vec<_> = headers.into_iter().map(|header| whole(header, DEFAULT_BASE_PORT)).collect();
    packets.push(whole(contribution(30), OTHER_PORT));
    packets.push(whole(contribution(31), DEFAULT_BASE_PORT + 63));
    let mut tagged = whole(contribution(32), DEFAULT_BASE_PORT);
    tagged.bytes.splice(0..0, [0; VLAN_LEN]);
    frame::tag(&mut tagged.bytes, 101).unwrap();
    tagged.len += VLAN_LEN;
    packets.push(tagged);

    let good = payload(&contribution(33));
    // UDP has no dissector for a datagram of no bytes.
    for len in 1..good.len() {
        packets.push(malformed(&good[..len], "bad_length"));
    }
    packets.push(malformed(&[&good[..], &[0]].concat(), "bad_length"));
    for other in (0..16).filter(|version| *version != VERSION) {
        packets.push(malformed(&[&[other << 4 | 1], &good[1..]].concat(), "bad_version"));
    }
    for kind in (0..16).filter(|kind| Kind::from_number(*kind).is_none()) {
        packets.push(malformed(&[&[VERSION << 4 | kind], &good[1..]].concat(), "bad_type"));
    }
    packets.push(malformed(&[&good[..1], &[3], &good[2..]].concat(), "bad_format"));
    // The same packet, of which a capture has less and less; with a whole header it is whole.
    for captured in 1..good.len() {
        let mut packet = whole(contribution(33), DEFAULT_BASE_PORT);
        packet.bytes.truncate(OVERHEAD + captured);
        if captured < HEADER_LEN {
            packet.expected = Expected::Expert("cut");
        }
        packets.push(packet);
    }
    packets
}

/// A pcap file of Ethernet frames, a microsecond from each other.
fn pcap(packets: &[Packet]) -> Vec<u8> {
    let words = [0xa1b2_c3d4u32, 0x0002_0004, 0, 0, 65535, 1];
    let mut file: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    for (packet, time) in packets.iter().zip(0u32..) {
        let words = [0, time, packet.bytes.len() as u32, packet.len as u32];
        file.extend(words.into_iter().flat_map(u32::to_le_bytes));
        file.extend(&packet.bytes);
    }
    // Major version first: two halves of one word in the file's order.
    file[4..8].copy_from_slice(&[2, 0, 4, 0]);
    file
}

/// The output of tshark with the dissector, a line for each frame; none where it is not installed.
fn tshark(file: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).arg("-X").arg(format!("lua_script:{}/sumac.lua", folder().display()));
    let output = match command.args(arguments).output() {
        Ok(output) => output,
        Err(error) => {
            let is_required = std::env::var_os("REQUIRE_PRIVILEGED").is_some_and(|value| value == "1");
            assert!(!is_required, "tshark: {error}; tools/setup.sh installs it");
            println!("SKIP dissector: tshark: {error}; tools/setup.sh installs it");
            return None;
        }
    };
    let (text, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && !stderr.contains("Lua"), "{stderr}");
    assert!(!text.contains("Lua Error"), "{text}");
    Some(text.into_owned())
}

#[test]
fn the_capture_is_the_one_in_the_repository() {
    let path = folder().join("packets.pcap");
    let made = pcap(&packets());
    if std::env::var_os("SUMAC_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let is_same = std::fs::read(&path).is_ok_and(|kept| kept == made);
    assert!(is_same, "{} is not what this test makes; SUMAC_BLESS=1 writes it anew", path.display());
}

/// The fields of a header under their filters, as tshark prints them.
fn values(header: &Header) -> BTreeMap<String, String> {
    let numbers = [
        ("type", u64::from(header.kind)),
        ("format", u64::from(header.format)),
        ("job", u64::from(header.job)),
        ("epoch", u64::from(header.epoch)),
        ("seq", u64::from(header.seq)),
        ("slot", u64::from(header.slot)),
        ("fan_in_0", u64::from(header.fan_in_0)),
        ("fan_in_1", u64::from(header.fan_in_1)),
        ("elements", u64::from(header.elements)),
        ("contributors", u64::from(header.contributors)),
        ("offset", u64::from(header.offset)),
        ("timestamp", u64::from(header.timestamp)),
        ("next_seq", u64::from(header.next_seq)),
        ("received", u64::from(header.received)),
        ("lane", u64::from(header.lane)),
        ("version", u64::from(VERSION)),
    ];
    let mut values: BTreeMap<_, _> =
        numbers.into_iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect();
    values.insert("flags".into(), format!("0x{:04x}", header.flags));
    values.insert("bitmap_0".into(), format!("0x{:08x}", header.bitmap_0));
    values.insert("bitmap_1".into(), format!("0x{:08x}", header.bitmap_1));
    values.insert("tensor".into(), format!("0x{:08x}", header.tensor));
    values.insert("token".into(), format!("0x{:016x}", header.token));
    values.insert("reserved".into(), "0x0000".into());
    values.insert("exponent".into(), header.exponent.to_string());
    values.insert("next_exponent".into(), header.next_exponent.to_string());
    for (name, bit, _) in named("FLAGS") {
        let is_set = u8::from(header.has(1 << bit));
        values.insert(format!("flags.{}", identifier(&name)), is_set.to_string());
    }
    values
}

#[test]
fn tshark_reads_every_field_and_names_what_is_malformed() {
    let packets = packets();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packets.pcap");
    std::fs::write(&file, pcap(&packets)).unwrap();
    let names: Vec<String> = values(&header(Kind::Result, 0)).into_keys().collect();
    let experts = ["cut", "truncated", "bad_length", "bad_version", "bad_type", "bad_format"];
    let filters: Vec<_> = names.iter().map(String::as_str).chain(["words"]).chain(experts).collect();
    let mut arguments = vec!["-T".to_owned(), "fields".into()];
    for filter in &filters {
        arguments.extend(["-e".into(), format!("sumac.{filter}")]);
    }
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let Some(text) = tshark(&file, &arguments) else { return };
    assert_eq!(text.lines().count(), packets.len());
    for ((line, packet), number) in text.lines().zip(&packets).zip(1..) {
        let found: BTreeMap<_, _> = filters.iter().copied().zip(line.split('\t')).collect();
        let named: Vec<_> = experts.iter().filter(|name| !found[**name].is_empty()).collect();
        match &packet.expected {
            Expected::Expert(name) => assert_eq!(named, [name], "frame {number}: {line}"),
            Expected::Whole(header) => {
                assert!(named.is_empty(), "frame {number}: {named:?}");
                let expected = values(header);
                for name in &names {
                    assert_eq!(found[name.as_str()], expected[name], "frame {number}: {name}");
                }
                let words = &packet.bytes[packet.bytes.len().min(words_at(packet))..];
                let hex: String = words.iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(found["words"], hex, "frame {number}");
            }
        }
    }
}

/// The offset of the elements in a frame.
fn words_at(packet: &Packet) -> usize {
    let is_tagged = packet.bytes[12..14] == [0x81, 0];
    OVERHEAD + HEADER_LEN + if is_tagged { VLAN_LEN } else { 0 }
}

#[test]
fn tshark_links_answers_and_names_packets_in_a_line() {
    let contribution = Header {
        job: 3,
        epoch: 2,
        seq: 19,
        slot: 3,
        flags: flag::POOL_VERSION,
        bitmap_0: 4,
        lane: 0,
        ..header(Kind::Contribution, 1)
    };
    let result = Header { kind: Kind::Result as u8, contributors: 4, next_seq: 35, ..contribution };
    let query = Header { flags: flag::QUERY | flag::POOL_VERSION, elements: 0, ..contribution };
    let wanted = Header { kind: Kind::Result as u8, ..query };
    let control = Header { job: 4, tensor: 7, contributors: 1, ..header(Kind::Control, 1) };
    let data = Header { job: 4, epoch: control.epoch, tensor: 7, contributors: 1, ..contribution };
    let requests = [contribution, query, control, data].map(|header| whole(header, DEFAULT_BASE_PORT));
    let answers = [wanted, result].map(|header| {
        let mut packet = whole(header, DEFAULT_BASE_PORT);
        // The addresses change places, which no checksum notices.
        let at = ETH_LEN + IPV4_LEN - 8;
        packet.bytes[at..at + 8].rotate_left(4);
        packet
    });
    let packets: Vec<_> = requests.into_iter().chain(answers).collect();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("links.pcap");
    std::fs::write(&file, pcap(&packets)).unwrap();
    let arguments = "-2 -T fields -e sumac.answer_in -e sumac.answer_to -e sumac.worker -e _ws.col.Info";
    let Some(text) = tshark(&file, &arguments.split(' ').collect::<Vec<_>>()) else { return };
    let lines: Vec<_> = text.lines().collect();
    let slot = "lane 0 slot 3/1 seq 19";
    assert_eq!(lines[0], format!("6\t\t2\tcontribution job 3.2 {slot} worker 2 n=5 [pool version]"));
    assert_eq!(lines[1], format!("5\t\t2\tcontribution job 3.2 {slot} worker 2 n=0 [pool version, query]"));
    assert!(lines[2].ends_with("transfer 0x7 step 1 agreement n=5"), "{}", lines[2]);
    assert!(lines[3].contains("transfer 0x7 step 1 seq 19 packet "), "{}", lines[3]);
    assert!(lines[4].starts_with("\t2\t\tresult job 3.2 "), "{}", lines[4]);
    let line = format!("\t1\t\tresult job 3.2 {slot} workers 4 next 35 n=5 [pool version]");
    assert_eq!(lines[5], line);
}
