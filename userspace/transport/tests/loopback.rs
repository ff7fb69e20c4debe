//! Engines against an aggregator in memory, over a network that delivers at once and in order.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on")]

mod support;

use sumac_transport::{Arithmetic, Completion, DType, Engine, JobParams, JobState, Operation, PeerId, Time};
use support::{
    aggregator::{ALONE, Aggregator, Outcome},
    job,
};

/// All workers of a job and their aggregator, one frame on the way at a time.
struct Loop {
    engines: Vec<Engine>,
    aggregator: Aggregator,
    now: Time,
}

impl Loop {
    fn new(world: u16, slots: u32, elements: u16) -> Loop {
        let params = job(world, slots, elements);
        let engine = |rank| {
            Engine::new(JobParams { rank, rack_rank: rank, ..params.clone() }, &support::peers()).unwrap()
        };
        Loop {
            engines: (0..world).map(engine).collect(),
            aggregator: Aggregator::new(&params, ALONE),
            now: Time(1_000),
        }
    }

    fn submit(&mut self, tensors: &[Vec<f32>]) {
        for (engine, tensor) in self.engines.iter_mut().zip(tensors) {
            let bytes: Vec<u8> = tensor.iter().flat_map(|v| v.to_ne_bytes()).collect();
            let operation =
                Operation::allreduce(5, DType::Float32, Arithmetic::Sum, tensor.len(), Box::new(bytes));
            engine.submit(self.now, operation).unwrap();
        }
    }

    /// Passes frames round until nobody has anything to send.
    fn run(&mut self) {
        let mut frame = vec![0; 4096];
        let mut answer = Vec::new();
        loop {
            let mut moved = false;
            for rank in 0..self.engines.len() {
                let Some(sent) = self.engines[rank].poll_transmit(self.now, &mut frame) else { continue };
                moved = true;
                self.now = self.now.plus(1_000);
                match self.aggregator.handle(0, &frame[..sent.len], &mut answer).unwrap() {
                    Outcome::Silent | Outcome::Up => {}
                    Outcome::Unicast(rank) => {
                        self.engines[usize::from(rank)].on_payload(self.now, PeerId(0), &answer)
                    }
                    Outcome::Multicast => {
                        self.engines
                            .iter_mut()
                            .for_each(|engine| engine.on_payload(self.now, PeerId(0), &answer));
                    }
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn completions(&mut self) -> Vec<Vec<Completion>> {
        let drain = |engine: &mut Engine| {
            let mut ended: Vec<_> = std::iter::from_fn(|| engine.poll_completion()).collect();
            ended.sort_by_key(|completion: &Completion| completion.id);
            ended
        };
        self.engines.iter_mut().map(drain).collect()
    }
}

#[test]
fn three_workers_sum_several_tensors() {
    let mut net = Loop::new(3, 8, 16);
    let lengths = [1000, 1, 0, 16, 129];
    for length in lengths {
        let tensor = |rank: usize| (0..length).map(|i| (i * (rank + 1)) as f32 / 8.0).collect();
        net.submit(&[tensor(0), tensor(1), tensor(2)]);
    }
    net.run();
    for (rank, completions) in net.completions().into_iter().enumerate() {
        assert_eq!(completions.len(), lengths.len(), "rank {rank}");
        for (completion, length) in completions.into_iter().zip(lengths) {
            assert_eq!(completion.result, Ok(()), "rank {rank}, {length} elements");
            let output = completion.buffer.input(0, length * 4);
            let expected: Vec<u8> = (0..length).flat_map(|i| ((i * 6) as f32 / 8.0).to_ne_bytes()).collect();
            assert_eq!(output, expected, "rank {rank}, {length} elements");
        }
    }
    for engine in &net.engines {
        let stats = engine.stats();
        let chunks: usize = lengths.iter().map(|length| length.div_ceil(16)).sum();
        assert_eq!((stats.chunks_sent, stats.results), (chunks as u64, chunks as u64));
        assert_eq!((stats.questions, stats.frames.dropped(), stats.in_flight), (0, 0, 0));
        assert_eq!(stats.probes_sent, 1);
        assert_eq!(engine.state(), JobState::Ready);
        assert_eq!(engine.poll_timeout(), None, "nothing in flight, no timer");
        assert!(engine.is_idle());
    }
}
