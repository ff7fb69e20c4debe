//! Jobs of all modes beside a TCP stream on the same slow cables, which mark congestion.
//!
//! Shares are of what passed between two looks at the counters, while both were well under way: neither how
//! they begin nor how fast this machine is has a part in them.

use sumac_client::Reduction;
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Backend, DirectOptions, DynamicOptions, SumacOptions};
use sumac_lab::units::Rate;
use sumac_tests::site::with_sumac;
use sumac_tests::traffic::Traffic;
use sumac_tests::wait::eventually;
use sumac_tests::{Crew, exact, stats};
use sumac_wire::header::HEADER_LEN;

/// 12 MB: 2 s alone at the cables' rate.
const COUNT: usize = 3_000_000;
/// Bytes of a chunk's packet on a cable beside its elements: Sumac's header, UDP, IPv4, Ethernet.
const HEADERS: u64 = HEADER_LEN as u64 + 8 + 20 + 14;

/// Results of the first worker.
pub fn results(crew: &Crew) -> u64 {
    stats::counter(&crew.trainers[0], "results")
}

/// Elements of a chunk.
pub fn elements(crew: &Crew) -> u64 {
    u64::from(crew.trainers[0].job.opened().elements)
}

/// Looks at counters until all of the first `jobs` have passed `count`.
pub fn until_all_have<const N: usize>(count: u64, jobs: usize, look: impl Fn() -> [u64; N]) -> [u64; N] {
    eventually("what all have", || Some(look()).filter(|now| now[..jobs].iter().all(|now| *now >= count)))
}

/// The bytes that a job and a TCP stream from its first worker to its second had on the cables at the same
/// time.
fn beside_tcp(mode: &str, sumac: &SumacOptions, control: &str) -> [u64; 2] {
    let parameter_hosts = u16::from(sumac.dynamic.is_some());
    // So slow that a busy machine keeps up with them.
    let spec = LabSpec {
        rate: Some(Rate(50_000_000)),
        ecn_threshold_kb: Some(64),
        parameter_hosts,
        ..LabSpec::new(2)
    };
    let mut had = [0; 2];
    with_sumac(spec, sumac, |sumac| {
        let crew = Crew::join(sumac, "beside");
        let tensors = crew.prepare::<f32>(1, COUNT);
        let mut traffic = Traffic::start_greedy(sumac.lab(), 0, 1, control);
        let pending = crew.hand_in(tensors, Reduction::Sum);
        let look = || [results(&crew), traffic.bytes() as u64];
        let chunks = COUNT as u64 / elements(&crew);
        let begin = until_all_have(chunks / 4, 1, look);
        let end = until_all_have(chunks, 1, look);
        let frame = elements(&crew) * 4 + HEADERS;
        had = [(end[0] - begin[0]) * frame, end[1] - begin[1]];
        exact::assert_sums("beside TCP", 1, &crew.results(pending));
        traffic.assert_flows("after the sum");
        println!("{mode} job beside {control}: {} KB, TCP {} KB", had[0] / 1000, had[1] / 1000);
        println!("{} marks echoed, {} halvings", crew.counter("marked"), crew.counter("halvings"));
        crew.leave();
        traffic.end();
    });
    had
}

/// Equal windows are not equal shares, and how often iperf3 has its turn counts too: on a busy machine a
/// dynamic job had up to 3.6 times what the stream had.
fn both_have_a_share(mode: &str, sumac: &SumacOptions) {
    for control in ["reno", "cubic"] {
        let [job, tcp] = beside_tcp(mode, sumac, control);
        assert!(job * 8 > tcp && tcp * 8 > job, "{mode} beside {control}: {job} and {tcp} bytes");
    }
}

#[test]
fn a_static_job_takes_its_share_beside_tcp_and_leaves_it_one() {
    // Aggregators of both kinds put marks into results.
    for (name, backend) in [("static", Backend::Xdp), ("static, over UDP", Backend::Udp)] {
        both_have_a_share(name, &SumacOptions { backend, yields: true, ..SumacOptions::default() });
    }
}

#[test]
fn a_dynamic_job_takes_its_share_beside_tcp_and_leaves_it_one() {
    let dynamic = Some(DynamicOptions::default());
    both_have_a_share("dynamic", &SumacOptions { dynamic, ..SumacOptions::default() });
}

#[test]
fn a_direct_job_takes_its_share_beside_tcp_and_leaves_it_one() {
    let direct = Some(DirectOptions::default());
    both_have_a_share("direct", &SumacOptions { direct, ..SumacOptions::default() });
}
