//! Jobs that cannot begin: everybody who waits receives the reason and the ranks that it waits for.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//! w1 net0 ------ port1 | agg |
//! w2 net0 ------ port2 |     |
//! w3 net0 ------ port3 +-----+
//! ```

use std::time::Duration;

use sumac_client::{ClientError, Code, Failure, JobOptions};
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Deployment, SumacOptions};

use sumac_tests::site::with_sumac;
use sumac_tests::wait::LIMIT;
use sumac_tests::{Crew, Trainer, crew, exact};

/// The join timeout while a worker is missing.
const SHORT: Duration = Duration::from_secs(3);

fn refusal(rank: u16, opened: Result<Trainer, ClientError>) -> Failure {
    match opened {
        Ok(_) => panic!("rank {rank} joined a job that cannot begin"),
        Err(ClientError::Daemon(failure)) => failure,
        Err(other) => panic!("rank {rank}: {other}"),
    }
}

/// Opens a job that must not begin, and returns every rank's failure.
fn refusals(
    sumac: &Deployment<'_>,
    ranks: impl IntoIterator<Item = u16>,
    options: impl Fn(u16) -> JobOptions + Sync,
) -> Vec<Failure> {
    let opened = crew::open(sumac, ranks, options);
    opened
        .into_iter()
        .map(|(rank, opened)| {
            let failure = refusal(rank, opened);
            println!("rank {rank}: {failure}");
            failure
        })
        .collect()
}

#[test]
fn what_cannot_begin_is_explained() {
    with_sumac(LabSpec::new(4), &SumacOptions::default(), |sumac| {
        missing_workers_are_named(sumac);
        a_wrong_secret_joins_nothing(sumac);
        workers_must_agree_on_the_world(sumac);
        a_rank_is_taken_once(sumac);
        a_chunk_must_fit_the_path(sumac);
        // None of this is in the way of a job that can begin.
        let crew = Crew::join(sumac, "job");
        exact::assert_sums("afterwards", 1, &crew.allreduce(1, 10_000));
        crew.leave();
    });
}

fn missing_workers_are_named(sumac: &Deployment<'_>) {
    let options = |rank| JobOptions::new("job", rank, 4).timeout(SHORT);
    for failure in refusals(sumac, [0, 1, 3], options) {
        assert_eq!(failure.code, Code::RanksMissing, "{failure}");
        assert_eq!(failure.ranks, [2], "{failure}");
        assert!(failure.message.contains('2'), "{failure}");
    }
    for failure in refusals(sumac, [1], options) {
        assert_eq!(failure.ranks, [0, 2, 3], "{failure}");
    }
}

fn a_wrong_secret_joins_nothing(sumac: &Deployment<'_>) {
    let options = |rank| {
        let options = JobOptions::new("job", rank, 2).timeout(SHORT);
        if rank == 1 { options.secret("not the lab's") } else { options }
    };
    let failures = refusals(sumac, [0, 1], options);
    assert_eq!(failures[1].code, Code::Refused, "{}", failures[1]);
    assert!(failures[1].to_string().contains("secret"), "{}", failures[1]);
    // To the other it is as if nobody had come.
    assert_eq!(failures[0].code, Code::RanksMissing, "{}", failures[0]);
    assert_eq!(failures[0].ranks, [1], "{}", failures[0]);
}

fn workers_must_agree_on_the_world(sumac: &Deployment<'_>) {
    let options = |rank| JobOptions::new("job", rank, 2 + rank).timeout(SHORT);
    let failures = refusals(sumac, [0, 1], options);
    for failure in failures {
        assert_eq!(failure.code, Code::Refused, "{failure}");
        // Whoever comes second disagrees with the first.
        let told = ["world size", "rank 0 wants", "rank 1 wants"].map(|part| failure.message.contains(part));
        assert_eq!(told, [true; 3], "{failure}");
    }
}

fn a_rank_is_taken_once(sumac: &Deployment<'_>) {
    let options = |rank: u16| JobOptions::new("job", rank / 2, 2).timeout(SHORT);
    // The daemons of workers 0 and 1 both say that they are rank 0.
    let failures = refusals(sumac, [0, 1], options);
    let mut codes: Vec<_> = failures.iter().map(|failure| failure.code.name()).collect();
    codes.sort();
    assert_eq!(codes, ["rank_taken", "ranks_missing"]);
}

fn a_chunk_must_fit_the_path(sumac: &Deployment<'_>) {
    let options = |rank| JobOptions::new("job", rank, 2).timeout(LIMIT).elements(800);
    for failure in refusals(sumac, [0, 1], options) {
        assert!(failure.to_string().contains("352"), "what fits is named: {failure}");
    }
}
