//! The control plane's network is cut, at the aggregator or at one worker, while the data path goes on.
//! Jobs of all modes survive a cut that is shorter than their tolerance, and after a longer one nobody
//! innocent is named.
//!
//! ```text
//! w0 net0 --- port0 +-----+
//! w1 net0 --- port1 | agg | host0 --- net0 ph0        cut: TCP of the control plane alone, in one namespace
//!                   +-----+
//! ```

use std::time::{Duration, Instant};

use sumac_client::{ClientError, Code, Failure, OpOptions, OperationOrder, Pending};
use sumac_job::Mode;
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Deployment, DynamicOptions, SumacOptions};
use sumac_lab::namespace::Namespace;
use sumac_tests::crew::failure;
use sumac_tests::site::with_sumac;
use sumac_tests::wait::{LIMIT, eventually};
use sumac_tests::{Crew, Trainer, exact};

const MODES: [Mode; 3] = [Mode::Static, Mode::Dynamic, Mode::Direct];
const SEED: u64 = 6;
const COUNT: usize = 10_000;

fn in_lab(body: impl FnOnce(&mut Deployment<'_>)) {
    let spec = LabSpec { parameter_hosts: 1, ..LabSpec::new(2) };
    let options = SumacOptions { dynamic: Some(DynamicOptions::default()), ..SumacOptions::default() };
    with_sumac(spec, &options, body);
}

/// Opens a job of this mode on all workers.
fn join(sumac: &Deployment<'_>, mode: Mode, order: OperationOrder) -> Crew {
    Crew::join_with(sumac, &format!("{mode:?} {order:?}"), |options| {
        let options = match mode {
            Mode::Dynamic => sumac.in_its_mode(options),
            Mode::Static | Mode::Direct => options.mode(mode),
        };
        options.order(order)
    })
}

fn join_all(sumac: &Deployment<'_>, order: OperationOrder) -> Vec<Crew> {
    MODES.into_iter().map(|mode| join(sumac, mode, order)).collect()
}

/// Drops the packets of the control plane that leave or reach a host, until [`heal`].
fn cut(host: &Namespace) {
    let drop = "tcp sport 48600 drop; tcp dport 48600 drop";
    let chain = |hook: &str| format!("chain {hook} {{ type filter hook {hook} priority 0; {drop}; }}\n");
    host.nft(&format!("table inet cut {{\n{}{}}}\n", chain("input"), chain("output"))).unwrap();
}

fn heal(host: &Namespace) {
    host.nft("delete table inet cut\n").unwrap();
}

/// Submits a sum in order by name. It begins when all workers' announcements have passed the control plane.
fn announce(crew: &Crew, seed: u64) -> Vec<Pending<f32>> {
    let submit = |trainer: &Trainer| {
        let options = OpOptions { name: Some("announced"), ..OpOptions::default() };
        let pending = trainer.job.allreduce_with(trainer.values(seed, COUNT), options);
        pending.unwrap_or_else(|error| panic!("rank {}: {error}", trainer.rank))
    };
    crew.trainers.iter().map(submit).collect()
}

fn assert_sums(what: &str, crews: &[Crew], seed: u64) {
    for (mode, crew) in MODES.into_iter().zip(crews) {
        exact::assert_sums(&format!("{what}, {mode:?}"), seed, &crew.allreduce(seed, COUNT));
    }
}

/// Cuts a host off for `length`, and asserts that all jobs go on.
fn goes_on(length: Duration, host: impl Fn(&Deployment<'_>) -> Namespace) {
    in_lab(|sumac| {
        let host = host(sumac);
        let (plain, named) =
            (join_all(sumac, OperationOrder::Submission), join_all(sumac, OperationOrder::Name));
        let start = Instant::now();
        cut(&host);
        let pending: Vec<_> = named.iter().map(|crew| announce(crew, SEED)).collect();
        while start.elapsed() < length {
            assert_sums("meanwhile", &plain, SEED + 1);
        }
        heal(&host);
        for ((mode, crew), pending) in MODES.into_iter().zip(&named).zip(pending) {
            exact::assert_sums(&format!("by name, {mode:?}"), SEED, &crew.results(pending));
        }
        assert_sums("afterwards", &plain, SEED + 2);
        plain.into_iter().chain(named).for_each(Crew::leave);
    });
}

#[test]
fn a_cut_of_five_seconds_at_the_aggregator_ends_no_job() {
    goes_on(Duration::from_secs(5), |sumac| Namespace::named(sumac.lab().aggregator().name()));
}

#[test]
fn a_short_cut_at_one_worker_ends_no_job() {
    goes_on(Duration::from_millis(1500), |sumac| Namespace::named(sumac.lab().worker(1).name()));
}

/// Waits for the end of a worker's job, of which another worker's part has ended or takes part in nothing.
fn end_of(trainer: &Trainer) -> Failure {
    match trainer.job.allreduce_with(trainer.values::<f32>(SEED, COUNT), OpOptions::default()) {
        Ok(pending) => failure(pending, LIMIT),
        Err(failed) => match failed.error {
            ClientError::Daemon(failure) => failure,
            other => panic!("rank {}: {other}", trainer.rank),
        },
    }
}

#[test]
fn a_cut_beyond_the_tolerance_of_a_job_ends_it_by_the_control_planes_name() {
    in_lab(|sumac| {
        let aggregator = sumac.lab().aggregator();
        let plain = join_all(sumac, OperationOrder::Submission);
        cut(aggregator);
        // Of static jobs the members end the job, one after the other.
        for trainer in &plain[0].trainers {
            let failure = end_of(trainer);
            println!("rank {}: {failure}", trainer.rank);
            assert_eq!((failure.code, &failure.ranks[..]), (Code::JobFailed, &[][..]), "{failure}");
            for part in [":48600", "stopped answering"] {
                assert!(failure.message.contains(part), "{failure}");
            }
        }
        for (mode, crew) in MODES.into_iter().zip(&plain).skip(1) {
            exact::assert_sums(&format!("meanwhile, {mode:?}"), SEED, &crew.allreduce(SEED, COUNT));
        }
        heal(aggregator);
        // The static job's members do not come back, those of the others do.
        eventually("the end of the static job at the control plane", || {
            let overview = sumac.control_status().unwrap();
            let jobs = overview["jobs"].as_array()?;
            let is_static = |job: &serde_json::Value| job["mode"] == "static";
            (!jobs.iter().any(is_static)).then_some(())
        });
        for (mode, crew) in MODES.into_iter().zip(&plain).skip(1) {
            exact::assert_sums(&format!("afterwards, {mode:?}"), SEED + 1, &crew.allreduce(SEED + 1, COUNT));
        }
        let next = join_all(sumac, OperationOrder::Name);
        for (mode, crew) in MODES.into_iter().zip(&next) {
            let pending = announce(crew, SEED + 2);
            exact::assert_sums(&format!("the next job, {mode:?}"), SEED + 2, &crew.results(pending));
        }
        plain.into_iter().skip(1).chain(next).for_each(Crew::leave);
    });
}
