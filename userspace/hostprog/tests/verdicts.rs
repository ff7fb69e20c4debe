//! The host program frame by frame, through the kernel's test run: what goes in, the verdict, the counter.
//!
//! ```text
//!   [h0]===veth===[h1]     h0: two queues, the program, an AF_XDP socket on queue 0 and none on queue 1
//! ```

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what went wrong by failing")]

mod support;

use aya::{TestRun as _, TestRunOptions, programs::Xdp};
use std::os::fd::AsFd as _;
use sumac_hostprog::{AttachOptions, Attached, attach};
use sumac_loader::program;
use sumac_wire::{
    Header, MAX_ELEMENTS, Reason,
    frame::{self, Endpoints, OVERHEAD},
    header::HEADER_LEN,
    tables::{HOST_JOB_WAYS, HostJobEntry, job_flag},
};
use sumac_xsk::{LINK_HEADER, QueueConfig, XskQueue};
use support::{
    AGGREGATOR, ENTRY, HOST, JOB, PORT, header,
    net::{Namespace, needs_privileges},
    payload,
};

const DROP: u32 = 1;
const PASS: u32 = 2;
const REDIRECT: u32 = 4;

/// An attached program and what it needs; the calling thread is inside the namespace.
struct Bench {
    attached: Attached,
    program: Xdp,
    _socket: XskQueue,
    _namespace: Namespace,
}

impl Bench {
    fn new() -> Self {
        Self::with_mtu(1500)
    }

    fn with_mtu(mtu: u32) -> Self {
        let namespace = Namespace::new("host");
        namespace.enter();
        let two = "numrxqueues 2 numtxqueues 2";
        namespace.run(&format!("ip link add h0 {two} type veth peer name h1 {two}"));
        for end in ["h0", "h1"] {
            namespace.run(&format!("ip link set {end} mtu {mtu} up"));
        }
        let options = AttachOptions { pin_root: namespace.pins.clone(), ..AttachOptions::new("h0") };
        let mut attached = attach(&options).unwrap();
        let socket =
            XskQueue::open(&QueueConfig { packet_size: mtu + LINK_HEADER, ..QueueConfig::new("h0", 0) })
                .unwrap();
        attached.set_socket(0, socket.as_fd()).unwrap();
        attached.add_job(JOB, ENTRY).unwrap();
        let program = program::open_pinned(&attached.pin_path().join("prog")).unwrap();
        Self { attached, program, _socket: socket, _namespace: namespace }
    }

    /// Runs the program on a frame as if received on `queue`; returns the verdict and the one counter that
    /// grew.
    fn show(&self, queue: u32, bytes: &[u8]) -> (u32, Reason) {
        self.show_split(queue, bytes, bytes.len())
    }

    /// The same for a frame whose first buffer has `first` bytes. Linux 6.18 splits frames so.
    fn show_split(&self, queue: u32, bytes: &[u8], first: usize) -> (u32, Reason) {
        let before = self.attached.counters().unwrap();
        let ifindex = self.attached.interface().index;
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let context = [0, first as u32, 0, ifindex, queue, 0].map(u32::to_ne_bytes).concat();
        let mut out = vec![0; bytes.len() + 256];
        let result = self
            .program
            .test_run(TestRunOptions {
                data_in: Some(bytes),
                data_out: Some(&mut out),
                ctx_in: Some(&context),
                ..TestRunOptions::new()
            })
            .unwrap();
        assert_eq!(&out[..result.data_size_out as usize], bytes, "the program wrote into a frame");
        let after = self.attached.counters().unwrap();
        let grew: Vec<_> = before
            .iter()
            .zip(&after)
            .filter(|(before, after)| before != after)
            .map(|(before, after)| (after.0, after.1 - before.1))
            .collect();
        assert!(matches!(grew[..], [(_, 1)]), "one frame counted as {grew:?}");
        (result.return_value, grew[0].0)
    }
}

/// A frame with that header, and elements that are not all alike; with a UDP checksum.
fn frame(header: &Header) -> Vec<u8> {
    frame_from(header, AGGREGATOR)
}

/// The same from another sender.
fn frame_from(header: &Header, src_ip: u32) -> Vec<u8> {
    let mut bytes = vec![0; OVERHEAD];
    bytes.extend(payload(header));
    let to = Endpoints {
        src_mac: [2, 0, 0, 0, 0, 1],
        dst_mac: [2, 0, 0, 0, 0, 2],
        src_ip,
        dst_ip: HOST,
        src_port: 50123,
        dst_port: PORT,
        dscp_ecn: 0,
    };
    let len = bytes.len() - OVERHEAD;
    frame::emit(&mut bytes, &to, len, true).unwrap();
    bytes
}

/// The verdict on a refused frame: the kernel gets what version, type and job do not show to be Sumac's.
fn refused(reason: Reason) -> (u32, Reason) {
    use Reason::{BadFormat, BadLength, BadType, BadVersion, Fragment, Truncated, UnknownJob};
    let is_unproven =
        matches!(reason, Truncated | BadLength | Fragment | BadVersion | BadType | BadFormat | UnknownJob);
    (if is_unproven { PASS } else { DROP }, reason)
}

/// Puts an 802.1Q tag into a frame.
fn tagged(mut frame: Vec<u8>) -> Vec<u8> {
    frame.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
    frame
}

fn set16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[test]
fn a_result_goes_to_the_socket_of_its_queue() {
    needs_privileges!("a_result_goes_to_the_socket_of_its_queue");
    let bench = Bench::new();
    let report = Header { kind: 4, ..header(256) };
    let mut padded = frame(&header(0));
    padded.extend([0; 18]);
    let table: [(&str, u32, Vec<u8>, u32, Reason); 9] = [
        ("a result", 0, frame(&header(256)), REDIRECT, Reason::Steered),
        ("a result of one element", 0, frame(&header(1)), REDIRECT, Reason::Steered),
        ("a result of an odd number", 0, frame(&header(253)), REDIRECT, Reason::Steered),
        ("a result in a VLAN", 0, tagged(frame(&header(256))), REDIRECT, Reason::Steered),
        ("a report", 0, frame(&report), REDIRECT, Reason::Steered),
        ("padded by Ethernet", 0, padded, REDIRECT, Reason::Steered),
        ("no socket on the queue", 1, frame(&header(256)), PASS, Reason::NoSocket),
        ("no socket, VLAN", 1, tagged(frame(&header(3))), PASS, Reason::NoSocket),
        ("a wrong token on that queue", 1, frame(&Header { token: 1, ..header(9) }), DROP, Reason::BadToken),
    ];
    for (what, queue, bytes, verdict, reason) in table {
        assert_eq!(bench.show(queue, &bytes), (verdict, reason), "{what}");
    }
    let queues = bench.attached.queue_counters().unwrap();
    let seen: Vec<_> =
        queues.iter().map(|(q, c)| (*q, c.steered, c.no_socket, c.refused, c.foreign)).collect();
    assert_eq!(seen, [(0, 6, 0, 0, 0), (1, 0, 2, 1, 0)]);
}

#[test]
fn a_job_over_udp_is_the_kernels() {
    needs_privileges!("a_job_over_udp_is_the_kernels");
    let mut bench = Bench::new();
    let entry = HostJobEntry { flags: ENTRY.flags | job_flag::OVER_UDP, ..ENTRY };
    bench.attached.add_job(JOB, entry).unwrap();
    let mut broken = frame(&header(9));
    *broken.last_mut().unwrap() ^= 1;
    let table: [(&str, Vec<u8>, u32, Reason); 4] = [
        ("a result", frame(&header(256)), PASS, Reason::OverUdp),
        ("its checksum is the kernel's to verify", broken, PASS, Reason::OverUdp),
        ("a wrong token", frame(&Header { token: 1, ..header(9) }), DROP, Reason::BadToken),
        ("another sender", frame_from(&header(9), HOST), DROP, Reason::WrongSource),
    ];
    for (what, bytes, verdict, reason) in table {
        assert_eq!(bench.show(0, &bytes), (verdict, reason), "{what}");
    }
    bench.attached.add_job(JOB, ENTRY).unwrap();
    assert_eq!(bench.show(0, &frame(&header(256))), (REDIRECT, Reason::Steered), "changed back");
}

#[test]
fn the_daemon_gone_frames_pass() {
    needs_privileges!("the_daemon_gone_frames_pass");
    let Bench { attached, program, _socket: socket, _namespace } = Bench::new();
    let bytes = frame(&header(256));
    // A closed socket, as when the daemon is killed, leaves the map by itself, a moment later.
    drop(socket);
    let context = [0, bytes.len() as u32, 0, attached.interface().index, 0, 0].map(u32::to_ne_bytes).concat();
    let verdict = || {
        let options =
            TestRunOptions { data_in: Some(&bytes), ctx_in: Some(&context), ..TestRunOptions::new() };
        program.test_run(options).unwrap().return_value
    };
    let passed = (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        verdict() == PASS
    });
    assert!(passed, "the closed socket still takes frames");
}

#[test]
fn what_is_not_ours_passes_untouched() {
    needs_privileges!("what_is_not_ours_passes_untouched");
    let bench = Bench::new();
    type Change = fn(&mut Vec<u8>);
    let table: [(&str, Change); 14] = [
        ("ARP", |b| set16(b, 12, 0x0806)),
        ("IPv6", |b| set16(b, 12, 0x86dd)),
        ("an unknown EtherType", |b| set16(b, 12, 0x88b5)),
        ("TCP", |b| b[23] = 6),
        ("ICMP", |b| b[23] = 1),
        ("another UDP port", |b| set16(b, 36, 53)),
        ("the port below", |b| set16(b, 36, PORT - 1)),
        ("the port above", |b| set16(b, 36, PORT + 1)),
        ("our port as the source only", |b| (set16(b, 34, PORT), set16(b, 36, 5000)).1),
        ("IPv4 options", |b| b[14] = 0x46),
        ("a later fragment", |b| b[21] = 8),
        ("two VLAN tags", |b| *b = tagged(tagged(std::mem::take(b)))),
        // This host forwards it; the job of the same number is another control plane's.
        ("to another address", |b| b[33] ^= 1),
        ("to another address, with another token", |b| (b[33] ^= 1, b[90] ^= 1).1),
    ];
    for (what, change) in table {
        let mut bytes = frame(&header(16));
        change(&mut bytes);
        for queue in [0, 1] {
            assert_eq!(bench.show(queue, &bytes), (PASS, Reason::Foreign), "{what}, queue {queue}");
        }
    }
}

#[test]
fn hostile_frames_are_refused_by_reason() {
    needs_privileges!("hostile_frames_are_refused_by_reason");
    let bench = Bench::new();
    let good = header(16);
    let with = |change: fn(&mut Header)| {
        let mut header = good;
        change(&mut header);
        frame(&header)
    };
    let bent = |change: fn(&mut Vec<u8>)| {
        let mut bytes = frame(&good);
        change(&mut bytes);
        bytes
    };
    let table: [(&str, Vec<u8>, Reason); 25] = [
        ("version 1", bent(|b| b[42] = 0x12), Reason::BadVersion),
        ("version 0", bent(|b| b[42] = 0x02), Reason::BadVersion),
        ("type 0", bent(|b| b[42] = 0x30), Reason::BadType),
        ("type 15", bent(|b| b[42] = 0x3f), Reason::BadType),
        ("a contribution", with(|h| (h.kind, h.token) = (1, ENTRY.token)), Reason::BadType),
        ("a probe", with(|h| (h.kind, h.token) = (3, ENTRY.token)), Reason::BadType),
        ("a format nobody knows", with(|h| h.format = 9), Reason::BadFormat),
        ("an unknown job", with(|h| h.job = 4), Reason::UnknownJob),
        ("a job beyond the table", with(|h| h.job = 65535), Reason::UnknownJob),
        ("the last epoch", with(|h| h.epoch -= 1), Reason::WrongEpoch),
        ("the next epoch", with(|h| h.epoch += 1), Reason::WrongEpoch),
        ("the token of contributions", with(|h| h.token = ENTRY.token), Reason::BadToken),
        ("no token", with(|h| h.token = 0), Reason::BadToken),
        ("one bit of the token", with(|h| h.token ^= 1 << 63), Reason::BadToken),
        ("a stranger", frame_from(&good, AGGREGATOR + 1), Reason::WrongSource),
        ("more elements than a chunk", frame(&header(257)), Reason::WrongElements),
        ("more elements than the payload", bent(|b| set16(b, 60, 17)), Reason::BadLength),
        ("fewer elements than the payload", bent(|b| set16(b, 60, 15)), Reason::BadLength),
        ("all elements", bent(|b| set16(b, 60, 65535)), Reason::BadLength),
        ("a UDP length of the header only", bent(|b| set16(b, 38, 8)), Reason::BadLength),
        ("an IPv4 length beyond UDP's", bent(|b| set16(b, 16, 200)), Reason::BadLength),
        ("a first fragment", bent(|b| b[20] |= 0x20), Reason::Fragment),
        ("no checksum", bent(|b| set16(b, 40, 0)), Reason::BadChecksum),
        ("a flipped bit in the last element", bent(|b| *b.last_mut().unwrap() ^= 1), Reason::BadChecksum),
        ("a flipped bit in the sequence number", bent(|b| b[53] ^= 0x80), Reason::BadChecksum),
    ];
    for (what, bytes, reason) in table {
        assert_eq!(bench.show(0, &bytes), refused(reason), "{what}");
        assert_eq!(bench.show(0, &tagged(bytes)), refused(reason), "{what}, in a VLAN");
    }
    assert_eq!(bench.show(0, &frame(&good)), (REDIRECT, Reason::Steered), "and the good one still goes in");
}

#[test]
fn results_come_from_parameter_hosts_too() {
    needs_privileges!("results_come_from_parameter_hosts_too");
    let mut bench = Bench::new();
    let (first, last) = (AGGREGATOR + 7, AGGREGATOR + 9);
    let hosts = [first, 0, 0, last];
    let (result, contribution) = (header(16), Header { kind: 1, token: ENTRY.token, ..header(16) });
    let report = Header { kind: 4, ..header(0) };
    // Whether there is an aggregator, too.
    for aggregator_ip in [AGGREGATOR, 0] {
        bench.attached.add_job(JOB, HostJobEntry { host_ips: hosts, aggregator_ip, ..ENTRY }).unwrap();
        let from = |header: &Header, ip: u32| bench.show(0, &frame_from(header, ip));
        let its_own =
            if aggregator_ip == 0 { (DROP, Reason::WrongSource) } else { (REDIRECT, Reason::Steered) };
        assert_eq!(from(&result, AGGREGATOR), its_own);
        for host in [first, last] {
            assert_eq!(from(&result, host), (REDIRECT, Reason::Steered));
            assert_eq!(from(&report, host), (REDIRECT, Reason::Steered));
            assert_eq!(from(&contribution, host), (PASS, Reason::BadType), "it is no parameter host");
        }
        for stranger in [first + 1, 0] {
            assert_eq!(from(&result, stranger), (DROP, Reason::WrongSource));
        }
    }
}

#[test]
fn contributions_go_in_at_a_parameter_host_alone() {
    needs_privileges!("contributions_go_in_at_a_parameter_host_alone");
    let mut bench = Bench::new();
    let flags = job_flag::PARAMETER | job_flag::CHECKSUM;
    bench.attached.add_job(JOB, HostJobEntry { aggregator_ip: 0, flags, ..ENTRY }).unwrap();
    let of_workers = |kind, elements| Header { kind, token: ENTRY.token, ..header(elements) };
    let (contribution, probe) = (of_workers(1, 256), of_workers(3, 0));
    // Who may send them is known behind.
    for ip in [AGGREGATOR, HOST + 5] {
        assert_eq!(bench.show(0, &frame_from(&contribution, ip)), (REDIRECT, Reason::Steered));
        assert_eq!(bench.show(0, &frame_from(&probe, ip)), (REDIRECT, Reason::Steered));
    }
    type Change = fn(&mut Header);
    let table: [(&str, Change, Reason); 7] = [
        ("a result", |h| (h.kind, h.token) = (2, ENTRY.result_token), Reason::WrongSource),
        ("a report", |h| (h.kind, h.token) = (4, ENTRY.result_token), Reason::WrongSource),
        ("a result with their token", |h| h.kind = 2, Reason::BadToken),
        ("a wrong token", |h| h.token ^= 1, Reason::BadToken),
        ("another epoch", |h| h.epoch += 1, Reason::WrongEpoch),
        ("another job", |h| h.job += 1, Reason::UnknownJob),
        ("more elements than a chunk", |h| h.elements = 257, Reason::WrongElements),
    ];
    for (what, change, reason) in table {
        let mut header = contribution;
        change(&mut header);
        assert_eq!(bench.show(0, &frame(&header)), refused(reason), "{what}");
    }
    let mut bent = frame(&contribution);
    *bent.last_mut().unwrap() ^= 1;
    assert_eq!(bench.show(0, &bent), (DROP, Reason::BadChecksum));
    // The last word is the status's, which has the entry.
    let status = sumac_hostprog::status::details(&bench.attached).unwrap();
    assert!(status.jobs[0].parameter && status.jobs[0].aggregator.is_none(), "{:?}", status.jobs);
}

#[test]
fn frames_cut_anywhere_are_foreign_or_truncated() {
    needs_privileges!("frames_cut_anywhere_are_foreign_or_truncated");
    let bench = Bench::new();
    for bytes in [frame(&header(16)), tagged(frame(&header(16)))] {
        let ports_end = bytes.len() - (HEADER_LEN + 16 * 4) - 8 + 4;
        // The kernel's test run takes no frame below an Ethernet header.
        for cut in 14..bytes.len() {
            let expected = if cut < ports_end { (PASS, Reason::Foreign) } else { (PASS, Reason::Truncated) };
            assert_eq!(bench.show(0, &bytes[..cut]), expected, "cut at {cut} of {}", bytes.len());
        }
    }
}

#[test]
fn checksums_of_every_length_are_verified() {
    needs_privileges!("checksums_of_every_length_are_verified");
    let mut bench = Bench::new();
    assert_checksums_verified(&mut bench, (0..64).chain([127, 128, 255, 256, 359, 360, 361, 824, 831, 832]));
    bench.attached.add_job(JOB, HostJobEntry { flags: 0, ..ENTRY }).unwrap();
    let mut unchecked = frame(&header(16));
    set16(&mut unchecked, 40, 0);
    assert_eq!(bench.show(0, &unchecked), (REDIRECT, Reason::Steered), "a job without checksums");
}

#[test]
fn checksums_of_jumbo_frames_are_verified() {
    needs_privileges!("checksums_of_jumbo_frames_are_verified");
    // Above 832 elements a frame does not fit its first buffer.
    let lengths = [0, 1, 256, 831, 832, 833, 840, 847, 848, 849, 1664, 1665, 2000, 2223, 2224];
    assert_checksums_verified(&mut Bench::with_mtu(9000), lengths);
}

#[test]
fn checksums_are_verified_wherever_a_driver_splits_frames() {
    needs_privileges!("checksums_are_verified_wherever_a_driver_splits_frames");
    let mut bench = Bench::with_mtu(9000);
    bench.attached.add_job(JOB, HostJobEntry { elements: MAX_ELEMENTS as u16, ..ENTRY }).unwrap();
    let headers = OVERHEAD + HEADER_LEN;
    for elements in [1, 15, 256, 832, 833, 2224] {
        for first in [headers, headers + 2, headers + 64, 1536, 2048, 3072] {
            let mut bytes = frame(&header(elements));
            let first = first.min(bytes.len());
            let steered = (REDIRECT, Reason::Steered);
            assert_eq!(bench.show_split(0, &bytes, first), steered, "{elements} elements, {first} bytes");
            *bytes.last_mut().unwrap() ^= 0x04;
            let bad = (DROP, Reason::BadChecksum);
            assert_eq!(bench.show_split(0, &bytes, first), bad, "{elements} elements, {first} bytes");
        }
    }
}

/// Shows results of these lengths, whole and with one bit turned: in the header, in each page, at the end.
fn assert_checksums_verified(bench: &mut Bench, lengths: impl IntoIterator<Item = u16>) {
    bench.attached.add_job(JOB, HostJobEntry { elements: MAX_ELEMENTS as u16, ..ENTRY }).unwrap();
    for elements in lengths {
        let bytes = frame(&header(elements));
        assert_eq!(bench.show(0, &bytes), (REDIRECT, Reason::Steered), "{elements} elements");
        for at in [42 + 50, 3425, 3426, 3520, 7616, bytes.len() - 1] {
            let mut bad = bytes.clone();
            let Some(byte) = bad.get_mut(at) else { continue };
            *byte ^= 0x04;
            let (verdict, _) = bench.show(0, &bad);
            assert_eq!(verdict, DROP, "{elements} elements, byte {at}");
        }
    }
}

#[test]
fn jobs_of_one_number_are_told_apart_by_their_tokens() {
    needs_privileges!("jobs_of_one_number_are_told_apart_by_their_tokens");
    let mut bench = Bench::new();
    let other = |way: u32| HostJobEntry {
        token: u64::from(way),
        result_token: 100 + u64::from(way),
        aggregator_ip: AGGREGATOR + 256 * way,
        ..ENTRY
    };
    let result = |token| frame(&Header { token, ..header(16) });
    for way in 1..HOST_JOB_WAYS as u32 {
        bench.attached.add_job(JOB, other(way)).unwrap();
    }
    assert_eq!(bench.show(0, &result(ENTRY.result_token)), (REDIRECT, Reason::Steered), "the first");
    // Another job's token with this one's address.
    assert_eq!(bench.show(0, &result(101)), (DROP, Reason::WrongSource));
    bench.attached.add_job(JOB, HostJobEntry { aggregator_ip: AGGREGATOR, ..other(2) }).unwrap();
    assert_eq!(bench.show(0, &result(102)), (REDIRECT, Reason::Steered), "the third");
    assert_eq!(bench.show(0, &result(999)), (DROP, Reason::BadToken), "nobody's");
    let error = bench.attached.add_job(JOB, other(9)).unwrap_err().to_string();
    assert!(error.contains("as many control planes"), "{error}");
    bench.attached.remove_job(JOB, ENTRY.token).unwrap();
    assert_eq!(bench.show(0, &result(ENTRY.result_token)), (DROP, Reason::BadToken), "removed");
    assert_eq!(bench.show(0, &result(102)), (REDIRECT, Reason::Steered), "it stays");
    bench.attached.add_job(JOB, other(9)).unwrap();
    assert_eq!(bench.attached.jobs().unwrap().len(), HOST_JOB_WAYS);
    bench.attached.clear_jobs().unwrap();
    assert_eq!(bench.attached.jobs().unwrap(), []);
}

#[test]
fn jobs_come_and_go() {
    needs_privileges!("jobs_come_and_go");
    let mut bench = Bench::new();
    let bytes = frame(&header(16));
    bench.attached.remove_job(JOB, ENTRY.token).unwrap();
    assert_eq!(bench.show(0, &bytes), (PASS, Reason::UnknownJob), "removed");
    bench.attached.add_job(JOB, HostJobEntry { epoch: 8, ..ENTRY }).unwrap();
    assert_eq!(bench.show(0, &bytes), (DROP, Reason::WrongEpoch), "restarted");
    bench.attached.add_job(JOB, ENTRY).unwrap();
    assert_eq!(bench.show(0, &bytes), (REDIRECT, Reason::Steered), "back");
    let numbers: Vec<_> = bench.attached.jobs().unwrap().iter().map(|(job, _)| *job).collect();
    assert_eq!(numbers, [JOB]);
    bench.attached.clear_jobs().unwrap();
    assert!(bench.attached.jobs().unwrap().is_empty());
    let error = bench.attached.add_job(1024, ENTRY).unwrap_err().to_string();
    assert!(error.contains("1 to 1023"), "{error}");
}
