//! `sumac-vectors`: writes conformance vectors of aggregators as lines of JSON.
#![forbid(unsafe_code)]

use std::io::{self, BufWriter, Write as _};

use clap::{Parser, ValueEnum};
use sumac_vectors::{
    cases, packets,
    random::{self, Profile},
    record,
};

/// Writes conformance vectors of aggregators: a line of JSON for the jobs, then one for each packet, with the
/// slot before and after it and the answer.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  sumac-vectors cases > cases.jsonl\n  \
    sumac-vectors random --seed 7 --steps 10000 > random.jsonl\n  \
    sumac-vectors random --seed 7 --steps 10000 --checksum > checksums.jsonl\n  \
    sumac-vectors random --seed 7 --steps 10000 --profile switch > switch.jsonl"
)]
struct Options {
    /// `cases`: the tables of a slot's cases, each with its own first line. `random`: packets drawn from a
    /// seed.
    kind: VectorKind,
    /// The seed of random packets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of random packets.
    #[arg(long, default_value_t = 1000)]
    steps: usize,
    /// Packets carry a UDP checksum over header and elements, which is verified.
    #[arg(long, conflicts_with = "profile")]
    checksum: bool,
    /// The aggregators that random packets are for: `switch` keeps to what a switch's program can do.
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum VectorKind {
    Cases,
    Random,
}

fn main() -> io::Result<()> {
    let options = Options::parse();
    let mut out = BufWriter::new(io::stdout().lock());
    match options.kind {
        VectorKind::Cases => {
            for (setup, steps) in cases::all(options.checksum) {
                record::write(&mut out, &setup, &steps)?;
            }
        }
        VectorKind::Random => {
            let jobs = random::jobs(options.profile, options.checksum);
            let setup = packets::setup("random packets", Some(options.seed), jobs);
            record::write(&mut out, &setup, &random::steps(&setup, options.seed, options.steps))?;
        }
    }
    out.flush()
}
