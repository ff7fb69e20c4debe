//! The host aggregator's time per chunk, without sockets: all contributions of its workers, and in dynamic
//! jobs the parameter host's result.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sumac_benches::aggregator::{Sums, WORKERS};

fn aggregate(criterion: &mut Criterion) {
    for (mode, is_dynamic) in [("static", false), ("dynamic", true)] {
        let mut group = criterion.benchmark_group(format!("host aggregator, {mode}"));
        for elements in [64u16, 256, 352] {
            let mut sums = Sums::new(elements, is_dynamic);
            group.throughput(Throughput::Elements(WORKERS.into()));
            group.bench_function(BenchmarkId::from_parameter(elements), |bencher| {
                bencher.iter(|| sums.chunk());
            });
        }
        group.finish();
    }
}

criterion_group!(benches, aggregate);
criterion_main!(benches);
