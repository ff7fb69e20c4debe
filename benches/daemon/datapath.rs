//! The workload of the daemon's data path for `tools/bench/counts.py --daemon`, as `counts` of the engine.

use sumac_benches::{dump, engine::job};
use sumac_benches_daemon::Worker;
use sumac_transport::{DType, Scale, WireFormat, convert::Codec};

/// Words of a packet, slots and chunks, as in `counts`: the difference of both is the data path's own.
const SIZES: [u16; 3] = [64, 352, 832];
const SLOTS: u32 = 64;
const CHUNKS: usize = 512;

fn main() {
    let instructions = Codec::new(1, WireFormat::Int32, Scale::Block).instructions();
    println!("{instructions:?}");
    for elements in SIZES {
        let count = CHUNKS * usize::from(elements);
        let mut worker = Worker::start(job(SLOTS, elements, Scale::Block, false), count * 4);
        worker.allreduce(DType::Float32, count);
        dump("-");
        worker.allreduce(DType::Float32, count);
        dump(&format!("daemon|float32|{elements}|{CHUNKS}"));
    }
}
