//! Priorities for the segments of a tensor. See `lab.rs` for the topology.

use sumac_client::{
    Client, Code, Job, JobOptions, Mode, OpOptions, PendingSegments, RecvOptions, Reduction, Segment,
    SendOptions,
};

use crate::kinds::tensor;
use crate::lab::Lab;
use crate::wait::LIMIT;

const COUNT: usize = 10_000;

/// The front layers first.
const SEGMENTS: [Segment; 3] = [
    Segment { count: 1000, priority: 5 },
    Segment { count: 4001, priority: 2 },
    Segment { count: 4999, priority: 0 },
];

fn value(rank: u16, index: usize) -> f32 {
    (index % 97) as f32 + f32::from(rank)
}

fn sums(client: &Client, job: &Job, rank: u16) {
    let options = OpOptions { reduction: Reduction::Mean, ..OpOptions::named("bucket") };
    for _ in 0..3 {
        let gradients = tensor(client, COUNT, |index| value(rank, index));
        let mut pending = job.allreduce_segments(gradients, &SEGMENTS, options).unwrap();
        let front = pending.wait_segment(0, LIMIT).unwrap().unwrap();
        assert_eq!(front.len(), 1000);
        assert!(front.iter().enumerate().all(|(index, found)| *found == value(1, index)));
        assert!(pending.wait_segment(7, LIMIT).unwrap().is_none(), "there is no such segment");
        for (index, found) in pending.wait().unwrap().iter().enumerate() {
            assert_eq!(*found, value(1, index), "element {index}");
        }
    }
    let by = Segment::by(COUNT, job.opened().elements.into(), |first| if first < 3000 { 4 } else { 1 });
    assert_eq!(by.len(), 2);
    let gradients = tensor(client, COUNT, |index| value(rank, index));
    let sum = job.allreduce_segments(gradients, &by, OpOptions::default()).unwrap().wait().unwrap();
    assert!(sum.iter().enumerate().all(|(index, found)| *found == value(1, index) * 3.0));
}

#[test]
fn segments_of_all_modes_have_the_tensor_s_results() {
    let lab = Lab::with(3, "shards = 2");
    lab.train("direct", |o| o.mode(Mode::Direct).elements(64), sums);
    lab.train("static", |o| o.elements(64), sums);
}

#[test]
fn each_segment_of_a_transfer_has_its_own_bound() {
    let lab = Lab::new(2);
    lab.train(
        "transfers",
        |o| o.mode(Mode::Direct).elements(64),
        |client, job, rank| {
            if rank == 0 {
                let sent = tensor(client, COUNT, |_| 3.0f32);
                let pending = job.post_send_segments(sent, 1, &SEGMENTS, SendOptions::default()).unwrap();
                return drop(pending.wait().unwrap());
            }
            let bounded = RecvOptions { loss_bound: 0.2, ..RecvOptions::default() };
            let received = client.tensor::<f32>(COUNT).unwrap();
            let mut pending = job.post_recv_segments(received, 0, &SEGMENTS, bounded).unwrap();
            assert!(pending.loss(0).is_none());
            assert!(pending.wait_timeout(LIMIT).unwrap());
            let missing: u64 = (0..3)
                .map(|index| {
                    let loss = pending.loss(index).unwrap();
                    assert_eq!(loss.elements, SEGMENTS[index].count as u64);
                    assert!(loss.by_worker[0] <= loss.budget && loss.budget <= loss.elements / 5, "{loss:?}");
                    loss.by_worker[0]
                })
                .sum();
            let zeros = pending.wait().unwrap().iter().filter(|value| **value == 0.0).count();
            assert_eq!(zeros as u64, missing);
        },
    );
}

fn code<T: sumac_client::Element + std::fmt::Debug>(
    submitted: Result<PendingSegments<T>, Box<sumac_client::Failed<T>>>,
) -> (Option<Code>, bool) {
    let failed = submitted.and_then(PendingSegments::wait).unwrap_err();
    (failed.error.code(), failed.tensor.is_some())
}

#[test]
fn segments_that_are_not_the_tensor_s_or_the_others_fail() {
    let lab = Lab::new(2);
    let direct = |o: JobOptions| o.mode(Mode::Direct).elements(64);
    for (client, job) in lab.open("alone", direct) {
        let options = OpOptions::default();
        let short = job.allreduce_segments(client.tensor::<f32>(COUNT + 1).unwrap(), &SEGMENTS, options);
        assert_eq!(code(short), (Some(Code::BadField), true));
        let high = [Segment { count: 10, priority: 9 }];
        let high = job.allreduce_segments(client.tensor::<f32>(10).unwrap(), &high, options);
        assert_eq!(code(high), (Some(Code::BadField), true));
    }
    let codes = lab.open("others", direct).into_iter().enumerate().map(|(rank, (client, job))| {
        std::thread::spawn(move || {
            let mut segments = SEGMENTS;
            segments[0].count -= rank;
            segments[2].count += rank;
            let tensor = client.tensor::<f32>(COUNT).unwrap();
            code(job.allreduce_segments(tensor, &segments, OpOptions::default())).0
        })
    });
    for failed in codes.collect::<Vec<_>>() {
        assert_eq!(failed.join().unwrap(), Some(Code::Mismatch));
    }
}
