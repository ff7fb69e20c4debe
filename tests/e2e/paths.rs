//! Packets spread over the spines of a fabric by their source ports, and away from one that loses them: those
//! of workers, and the aggregator's results.
//!
//! ```text
//! w0 net0 -- w0 +-------+ spine0 ------- leaf0 +-------+ w0 -- port0 +-----+
//! w1 net0 -- w1 | leaf0 | spine1 ------- leaf0 | leaf1 | w1 -- port1 | agg |
//!               +-------+                      +-------+             +-----+
//! ```
//!
//! The kernel forwards, and chooses the spine by a hash of addresses and ports (ECMP). In a direct job w1 is
//! on the other leaf.
//!
//! Where leaf0 is a switch, each spine is a next hop on the workers' segment, and the daemons choose among
//! them.

use std::time::{Duration, Instant};

use sumac_client::Reduction;
use sumac_lab::cable::{Cable, NEAR};
use sumac_lab::deployment::{Backend, Deployment, DirectOptions, FIRST_VLAN, SumacOptions};
use sumac_lab::units::Rate;
use sumac_lab::{Lab, LabSpec, NearLeaf, command};
use sumac_tests::site::with_sumac;
use sumac_tests::wait::LIMIT;
use sumac_tests::{Crew, exact, stats};

const COUNT: usize = 300_000;

fn fabric() -> LabSpec {
    LabSpec { spines: 2, ..LabSpec::new(2) }
}

/// Two ways of the workers' packets.
trait Ways {
    /// The packets that have come by each.
    fn counts(&self) -> [u64; 2];

    /// Loses all packets on the second, and nothing else, or no longer.
    fn lose(&self, is_lost: bool);
}

/// The spines, as seen by packets from one leaf.
struct Spines<'a> {
    lab: &'a Lab,
    from: &'static str,
}

/// The workers' leaf, or that of worker 0.
const NEAR_LEAF: &str = "leaf0";
/// The aggregator's leaf.
const FAR_LEAF: &str = "leaf1";

impl Ways for Spines<'_> {
    fn counts(&self) -> [u64; 2] {
        [0, 1].map(|spine: usize| {
            let mut show = self.lab.spines()[spine].command("ip");
            show.args(["-json", "-stats", "link", "show", "dev", self.from]);
            let json = command::json(&mut show).unwrap();
            json[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
        })
    }

    fn lose(&self, is_lost: bool) {
        let rule = format!("iifname \"{}\" meta l4proto udp drop;", self.from);
        let table =
            format!("table ip gray {{\nchain up {{\ntype filter hook forward priority 0;\n{rule}\n}}\n}}\n");
        self.lab.spines()[1].nft(if is_lost { &table } else { "delete table ip gray" }).unwrap();
    }
}

/// Two VLANs on the workers' cables.
struct Vlans<'a>(&'a Lab);

impl Vlans<'_> {
    /// Counts the frames of each at the workers' ends.
    fn new(lab: &Lab) -> Vlans<'_> {
        let vlans = Vlans(lab);
        let count = |vlan| format!("vlan id {vlan} counter name vlan{vlan}\n");
        vlans.filter(
            "vlans",
            "counter vlan101 {}\ncounter vlan102 {}\n",
            &[FIRST_VLAN, FIRST_VLAN + 1].map(count).concat(),
        );
        vlans
    }

    fn filter(&self, table: &str, counters: &str, rules: &str) {
        for cable in self.0.cables() {
            let chain = format!("type filter hook ingress device \"{NEAR}\" priority -1\n{rules}");
            let table = format!("table netdev {table} {{\n{counters}chain up {{\n{chain}}}\n}}\n");
            cable.namespace().nft(&table).unwrap();
        }
    }
}

impl Ways for Vlans<'_> {
    fn counts(&self) -> [u64; 2] {
        let count = |name: &str| {
            let packets = |cable: &Cable| {
                let mut list = cable.namespace().command("nft");
                let json =
                    command::json(list.args(["-j", "list", "counter", "netdev", "vlans", name])).unwrap();
                let found =
                    json["nftables"].as_array().into_iter().flatten().find_map(|entry| entry.get("counter"));
                found.and_then(|counter| counter["packets"].as_u64()).unwrap()
            };
            self.0.cables().iter().map(packets).sum()
        };
        ["vlan101", "vlan102"].map(count)
    }

    fn lose(&self, is_lost: bool) {
        if is_lost {
            return self.filter("gray", "", &format!("vlan id {} drop\n", FIRST_VLAN + 1));
        }
        for cable in self.0.cables() {
            cable.namespace().nft("delete table netdev gray").unwrap();
        }
    }
}

/// The second way's share of the packets of a sum, in percent.
fn share(ways: &impl Ways, crew: &Crew, seed: u64) -> u64 {
    let before = ways.counts();
    exact::assert_sums("by two ways", seed, &crew.reduce::<i32>(seed, COUNT, Reduction::Sum));
    let after = ways.counts();
    let [one, other] = [0, 1].map(|way: usize| after[way] - before[way]);
    println!("{one} and {other} packets");
    100 * other / (one + other)
}

/// Sums until the second way's share is as it should be: a busy machine finds losses late.
fn until(ways: &impl Ways, crew: &Crew, wrong: &str, is_right: impl Fn(u64) -> bool) {
    let start = Instant::now();
    for seed in 2.. {
        if is_right(share(ways, crew, seed)) {
            return;
        }
        assert!(start.elapsed() < LIMIT, "{wrong}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn spread_and_routed_around(ways: &impl Ways, crew: &Crew) {
    // A hash favours some spine; turns do not, but on a machine with few cores a way may be late, and gets
    // fewer.
    let even = share(ways, crew, 1);
    assert!((10..=90).contains(&even), "{even} %");
    ways.lose(true);
    until(ways, crew, "packets go where nothing arrives", |share| share <= 10);
    ways.lose(false);
    until(ways, crew, "the second way works, and is not used", |share| share >= 20);
}

fn over_spines(near_leaf: NearLeaf, options: &SumacOptions) {
    let far_workers = u16::from(near_leaf == NearLeaf::Router && options.direct.is_some());
    with_sumac(LabSpec { near_leaf, far_workers, ..fabric() }, options, |sumac| {
        let crew = Crew::join(sumac, "paths");
        let lab = sumac.lab();
        spread_and_routed_around(&Spines { lab, from: NEAR_LEAF }, &crew);
        assert!(path_losses(&crew) > 0);
        // Results are the aggregator's packets; of a direct job's workers all packets are alike.
        if options.direct.is_none() {
            spread_and_routed_around(&Spines { lab, from: FAR_LEAF }, &crew);
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
fn packets_take_next_hops_in_turn_and_avoid_a_dead_one() {
    over_spines(NearLeaf::Switch, &SumacOptions::default());
}

/// As many frames of each VLAN go through the workers' cables.
#[test]
fn packets_take_vlans_in_turn_and_avoid_a_dead_one() {
    let lab = LabSpec { rate: Some(Rate(1_000_000_000)), ..LabSpec::new(2) };
    with_sumac(lab, &SumacOptions { vlans: 2, ..SumacOptions::default() }, |sumac| {
        let crew = Crew::join(sumac, "vlans");
        spread_and_routed_around(&Vlans::new(sumac.lab()), &crew);
        assert!(path_losses(&crew) > 0);
        crew.leave();
    });
}

#[test]
fn packets_of_a_direct_job_take_next_hops_in_turn_and_avoid_a_dead_one() {
    let options = SumacOptions { direct: Some(DirectOptions::default()), ..SumacOptions::default() };
    over_spines(NearLeaf::Switch, &options);
}

#[test]
fn a_dead_spine_is_routed_around_xdp() {
    over_spines(NearLeaf::Router, &SumacOptions::default());
}

#[test]
fn a_dead_spine_is_routed_around_udp() {
    let options = SumacOptions { backend: Backend::Udp, paths: Some(16), ..SumacOptions::default() };
    over_spines(NearLeaf::Router, &options);
}

#[test]
fn a_dead_spine_is_routed_around_by_a_direct_job_over_xdp() {
    over_spines(
        NearLeaf::Router,
        &SumacOptions { direct: Some(DirectOptions::default()), ..SumacOptions::default() },
    );
}

#[test]
fn a_dead_spine_is_routed_around_by_a_direct_job_over_udp() {
    let direct = Some(DirectOptions::default());
    let options = SumacOptions { backend: Backend::Udp, paths: Some(16), direct, ..SumacOptions::default() };
    over_spines(NearLeaf::Router, &options);
}

/// Two spines of 20 Mbit/s each and three workers, so that one path for each is never an even share: a sum
/// over all paths, and over one per worker. Printed, since the machine decides.
#[test]
fn the_gain_of_many_paths() {
    let time = |paths| {
        let options = SumacOptions { paths: Some(paths), ..SumacOptions::default() };
        let mut took = Duration::ZERO;
        with_sumac(LabSpec { spines: 2, ..LabSpec::new(3) }, &options, |sumac: &mut Deployment<'_>| {
            let lab = sumac.lab();
            for spine in lab.spines() {
                let shape =
                    |leaf| format!("qdisc add dev {leaf} root tbf rate 20mbit burst 32k latency 50ms");
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
