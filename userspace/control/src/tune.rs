//! The number of slots of a job: from the bandwidth-delay product of its workers' paths (SwitchML, appendix
//! C).

use sumac_job::PathMeasure;
use sumac_wire::admit::payload_len;

/// Fewer are not given, whatever the product says: packets are received and sent by the batch of up to 32,
/// and a window of two batches keeps the pipe busy while one batch is worked on.
pub const FEWEST: u32 = 64;

/// The slots of which the packets of so many workers fit a socket that holds these bytes: workers send a
/// slot's packets at any time, while the aggregator may wait for its CPU.
pub fn unread(bytes: u64, workers: usize, elements: u16) -> u32 {
    let packets = bytes / payload_len(elements) as u64 / workers.max(1) as u64;
    let slots = u32::try_from(packets).unwrap_or(u32::MAX).max(1);
    1 << slots.ilog2()
}

/// The slots of one lane for workers that measured this, of which no more than `most` are to be had, and
/// `unread` if the aggregator has sockets; and why.
///
/// `shards` lanes share the path.
//= switchml#C slots for the bandwidth-delay product
pub fn slots(
    measures: &[PathMeasure],
    elements: u16,
    shards: u16,
    most: u32,
    unread: Option<u32>,
) -> (u32, String) {
    let path = path(measures);
    let ((rtt_ns, rate), bytes) = (path, product(&path));
    let packet = payload_len(elements) as u128;
    let packets = bytes.div_ceil(packet);
    let share = packets.div_ceil(u128::from(shards.max(1))).max(1);
    let wanted = u32::try_from(share).ok().and_then(u32::checked_next_power_of_two).unwrap_or(1 << 31);
    let mut reason = format!(
        "{} ms x {} Mbit/s = {} = {packets} packets of {}",
        decimals(u128::from(rtt_ns), 1_000_000),
        u128::from(rate) * 8 / 1_000_000,
        size(bytes),
        size(packet)
    );
    if shards > 1 {
        reason.push_str(&format!(", {share} for each of {shards} shards"));
    }
    reason.push_str(&format!(", next power of two {wanted}"));
    let slots = wanted.max(FEWEST).min(most);
    if slots > wanted {
        reason.push_str(&format!("; {slots}, so that batches overlap"));
    } else if slots < wanted {
        reason.push_str(&format!("; {slots}, the most that the aggregator had free"));
    }
    if let Some(unread) = unread.filter(|unread| *unread < slots) {
        reason.push_str(&format!("; {unread}, whose packets its sockets hold (net.core.rmem_max)"));
        return (unread, reason);
    }
    (slots, reason)
}

/// Whether UDP sockets carry more than AF_XDP, as the workers of a job measured one after the other, and
/// both rates, of a worker on average and of the slowest. AF_XDP stays where they are within a tenth of each
/// other, since it takes less CPU, and where UDP halves the rate of the slowest, which all wait for.
pub fn prefers_udp(own: &[PathMeasure], udp: &[PathMeasure]) -> (bool, String) {
    let mbit = |bytes_per_s: u128| bytes_per_s * 8 / 1_000_000;
    let rates = |measures: &[PathMeasure]| {
        let rates = measures.iter().map(|measure| u128::from(measure.bytes_per_s));
        let average = rates.clone().sum::<u128>() / measures.len().max(1) as u128;
        (mbit(average), mbit(rates.min().unwrap_or(0)))
    };
    let ((own, slowest), (udp, slowest_udp)) = (rates(own), rates(udp));
    let is_faster = udp * 10 > own * 11 && slowest_udp * 2 >= slowest;
    let chosen = if is_faster { "UDP" } else { "AF_XDP" };
    let rates = format!("AF_XDP {own} Mbit/s a worker (slowest {slowest}), UDP {udp} ({slowest_udp})");
    (is_faster, format!("{rates}: {chosen}; "))
}

/// The bytes on a path of this round trip in nanoseconds and this rate in bytes per second.
fn product((rtt_ns, rate): &(u64, u64)) -> u128 {
    u128::from(*rtt_ns) * u128::from(*rate) / 1_000_000_000
}

/// The round trip and the rate that the slots are to fill.
///
/// A worker's product is that of the round trip and the rate with which it filled its path. Of all workers'
/// the (upper) median counts: on a busy machine some measure several times theirs, and more slots than needed
/// cost its CPUs. A chunk is done when the slowest worker's contribution is there, so that a distant one
/// needs its shortest round trip filled at the common rate too.
fn path(measures: &[PathMeasure]) -> (u64, u64) {
    let mut paths: Vec<_> = measures.iter().map(|measure| (measure.rtt_ns, measure.bytes_per_s)).collect();
    paths.sort_by_key(product);
    let typical = paths.get(paths.len() / 2).copied().unwrap_or_default();
    let shortest = measures.iter().map(|measure| measure.shortest_ns).max().unwrap_or(0);
    let rate = measures.iter().map(|measure| measure.bytes_per_s).min().unwrap_or(0);
    std::cmp::max_by_key(typical, (shortest, rate), product)
}

/// In units of `unit`, with one decimal, or two when it is small.
fn decimals(value: u128, unit: u128) -> String {
    let hundredths = value * 100 / unit;
    if hundredths < 100 {
        format!("0.{hundredths:02}")
    } else {
        format!("{}.{}", hundredths / 100, hundredths % 100 / 10)
    }
}

fn size(bytes: u128) -> String {
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..100_000 => format!("{} KB", decimals(bytes, 1000)),
        100_000..10_000_000 => format!("{} KB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rtt_us: u64, shortest_us: u64, mbit: u64) -> PathMeasure {
        PathMeasure { rtt_ns: rtt_us * 1000, shortest_ns: shortest_us * 1000, bytes_per_s: mbit * 125_000 }
    }

    #[test]
    fn one_worker_that_measured_on_a_busy_cpu_does_not_decide() {
        // As eight workers on two CPUs measured: one of them a window of 256 packets.
        let busy = [
            (423, 1024),
            (667, 650),
            (725, 598),
            (399, 1085),
            (7064, 983),
            (770, 1126),
            (2234, 777),
            (3790, 916),
        ];
        let measures = busy.map(|(rtt, mbit)| measured(rtt, rtt.min(700), mbit));
        assert_eq!(slots(&measures, 832, 1, 512, None).0, 64);
        // A distant one among four does.
        let near = measured(150, 100, 1000);
        let measures = [near, measured(5000, 4900, 990), near, near];
        assert_eq!(slots(&measures, 352, 1, 512, None).0, 512);
    }

    //= switchml#C slots for the bandwidth-delay product
    #[test]
    fn slots_follow_from_the_slowest_path() {
        let path = |rtt_us: u64, mbit: u64| measured(rtt_us, rtt_us, mbit);
        let table = [
            (
                vec![path(1200, 950), path(300, 990)],
                1,
                512,
                128,
                "1.2 ms x 950 Mbit/s = 142 KB = 97 packets of 1.4 KB, next power of two 128",
            ),
            (
                vec![path(100, 950)],
                1,
                512,
                64,
                "0.10 ms x 950 Mbit/s = 11.8 KB = 9 packets of 1.4 KB, next power of two 16; 64, so that \
                batches overlap",
            ),
            (
                vec![path(5000, 10_000)],
                1,
                512,
                512,
                "5.0 ms x 10000 Mbit/s = 6250 KB = 4246 packets of 1.4 KB, next power of two 8192; 512, the \
                most that the aggregator had free",
            ),
            (
                vec![path(5000, 1000)],
                4,
                512,
                128,
                "5.0 ms x 1000 Mbit/s = 625 KB = 425 packets of 1.4 KB, 107 for each of 4 shards, next power \
                of two 128",
            ),
            (
                vec![path(0, 0)],
                1,
                16,
                16,
                "0.00 ms x 0 Mbit/s = 0 B = 0 packets of 1.4 KB, next power of two 1; 16, so that batches \
                overlap",
            ),
        ];
        for (measures, shards, most, slots, reason) in table {
            assert_eq!(super::slots(&measures, 352, shards, most, None), (slots, reason.to_owned()));
        }
    }

    #[test]
    fn sockets_hold_the_packets_of_all_workers() {
        // Linux's default, and what is asked for, in packets of 1,472 bytes.
        assert_eq!((unread(212_992, 4, 352), unread(8 << 20, 4, 352), unread(0, 4, 352)), (32, 1024, 1));
        let path = measured(100, 100, 1000);
        let (slots, reason) = slots(&[path], 352, 1, 512, Some(32));
        assert_eq!(slots, 32);
        assert!(reason.ends_with("; 32, whose packets its sockets hold (net.core.rmem_max)"), "{reason}");
    }

    #[test]
    fn no_measure_overflows() {
        let wild = PathMeasure { rtt_ns: u64::MAX, shortest_ns: u64::MAX, bytes_per_s: u64::MAX };
        assert_eq!(slots(&[wild], 1, 1, 256, None).0, 256);
        assert_eq!(slots(&[], 1, 1, 256, None).0, FEWEST);
    }
}
