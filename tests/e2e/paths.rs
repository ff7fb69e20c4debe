//! Packets spread over the spines of a fabric by their source ports, and away from one that loses them.
//!
//! ```text
//! w0 net0 -- w0 +-------+ spine0 ------- leaf0 +-------+ w0 -- port0 +-----+
//! w1 net0 -- w1 | leaf0 | spine1 ------- leaf0 | leaf1 | w1 -- port1 | agg |
//!               +-------+                      +-------+             +-----+
//! ```
//!
//! The kernel forwards, and chooses the spine by a hash of addresses and ports (ECMP). In a direct job w1 is on the other leaf.

use std::time::{Duration, Instant};

use sumac_client::Reduction;
use sumac_lab::deployment::{Backend, Deployment, DirectOptions, SumacOptions};
use sumac_lab::namespace::Namespace;
use sumac_lab::{Lab, LabSpec, command};
use sumac_tests::site::with_sumac;
use sumac_tests::wait::LIMIT;
use sumac_tests::{Crew, exact, stats};

const COUNT: usize = 300_000;

fn fabric() -> LabSpec {
    LabSpec { spines: 2, ..LabSpec::new(2) }
}

/// Packets that a spine has received from the first leaf.
fn received(spine: &Namespace) -> u64 {
    let mut show = spine.command("ip");
    show.args(["-json", "-stats", "link", "show", "dev", "leaf0"]);
    let json = command::json(&mut show).unwrap();
    json[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
}

/// The second spine's share of the packets that the workers on the first leaf send in a sum, in percent.
fn share(lab: &Lab, crew: &Crew, seed: u64) -> u64 {
    let counts = || [0, 1].map(|spine: usize| received(&lab.spines()[spine]));
    let before = counts();
    exact::assert_sums("over a fabric", seed, &crew.reduce::<i32>(seed, COUNT, Reduction::Sum));
    let after = counts();
    let [one, other] = [0, 1].map(|spine: usize| after[spine] - before[spine]);
    println!("{one} and {other} packets");
    100 * other / (one + other)
}

fn spread_and_routed_around(options: &SumacOptions) {
    let far_workers = u16::from(options.direct.is_some());
    with_sumac(LabSpec { far_workers, ..fabric() }, options, |sumac| {
        let crew = Crew::join(sumac, "paths");
        let lab = sumac.lab();
        let even = share(lab, &crew, 1);
        assert!((20..=80).contains(&even), "{even} %");
        // All packets from the first leaf are lost on the second spine, and nothing else.
        let bad = &lab.spines()[1];
        bad.nft(
            "table ip gray {\nchain up {\ntype filter hook forward priority 0;\n\
             iifname \"leaf0\" meta l4proto udp drop;\n}\n}\n",
        )
        .unwrap();
        (2..6).for_each(|seed| {
            share(lab, &crew, seed);
        });
        let avoided = share(lab, &crew, 6);
        assert!(avoided <= 10, "{avoided} % go where nothing arrives");
        assert!(path_losses(&crew) > 0);
        bad.nft("delete table ip gray").unwrap();
        let start = Instant::now();
        let mut seed = 7;
        while share(lab, &crew, seed) < 20 {
            assert!(start.elapsed() < LIMIT, "the spine works, and is not used");
            std::thread::sleep(Duration::from_millis(500));
            seed += 1;
        }
        crew.leave();
    });
}

/// Packets that were lost on any path of the workers, as their statistics say.
fn path_losses(crew: &Crew) -> u64 {
    let lost = crew.trainers.iter().map(|trainer| stats::engine(trainer)["paths"]["lost"].clone());
    lost.flat_map(|paths| paths.as_array().cloned().unwrap_or_default())
        .filter_map(|lost| lost.as_u64())
        .sum()
}

#[test]
fn a_dead_spine_is_routed_around_xdp() {
    spread_and_routed_around(&SumacOptions::default());
}

#[test]
fn a_dead_spine_is_routed_around_udp() {
    let options = SumacOptions { backend: Backend::Udp, paths: Some(16), ..SumacOptions::default() };
    spread_and_routed_around(&options);
}

#[test]
fn a_dead_spine_is_routed_around_by_a_direct_job_over_xdp() {
    spread_and_routed_around(&SumacOptions {
        direct: Some(DirectOptions::default()),
        ..SumacOptions::default()
    });
}

#[test]
fn a_dead_spine_is_routed_around_by_a_direct_job_over_udp() {
    let direct = Some(DirectOptions::default());
    let options = SumacOptions { backend: Backend::Udp, paths: Some(16), direct, ..SumacOptions::default() };
    spread_and_routed_around(&options);
}

/// Two spines of 100 Mbit/s each: a sum over all paths, and over one per worker. Printed, since the machine decides.
#[test]
fn the_gain_of_many_paths() {
    let time = |paths| {
        let options = SumacOptions { paths: Some(paths), ..SumacOptions::default() };
        let mut took = Duration::ZERO;
        with_sumac(fabric(), &options, |sumac: &mut Deployment<'_>| {
            let lab = sumac.lab();
            for spine in lab.spines() {
                let shape =
                    |leaf| format!("qdisc add dev {leaf} root tbf rate 100mbit burst 32k latency 20ms");
                spine.tc(&["leaf0", "leaf1"].map(shape)).unwrap();
            }
            let crew = Crew::join(sumac, "gain");
            exact::assert_sums("warm", 1, &crew.allreduce(1, COUNT));
            let start = Instant::now();
            exact::assert_sums("timed", 2, &crew.allreduce(2, 4 * COUNT));
            took = start.elapsed();
            crew.leave();
        });
        took
    };
    let (one, many) = (time(1), time(64));
    println!("one path per worker: {one:.1?}, 64 paths: {many:.1?}");
}
