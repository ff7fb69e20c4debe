//! `sumac allreduce`: one sum, from a file into a file, for shells.

mod mode;
mod npy;

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use sumac_client::{Client, ClientError, Job, JobOptions, OpOptions, bf16, f16};
use thiserror::Error;

use self::npy::{Form, Input, Output, Stored};

use crate::{exit, options::Socket};

/// Sums an array over all workers of a job: reads IN.npy, writes OUT.npy.
///
/// Takes float32, float16 and int32 arrays of any shape, and bfloat16 as uint16. All workers run it at the same time
/// with the same job, world and shape, and each with a rank of its own.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP, after_long_help = EXAMPLES)]
pub struct Args {
    /// The job's name, the same on all workers.
    #[arg(long, value_name = "NAME")]
    job: String,
    /// This worker's number, from 0.
    #[arg(long)]
    rank: u16,
    /// How many workers there are.
    #[arg(long)]
    world: u16,
    /// The job's secret; without it the daemon's. Others can see a command line: prefer --secret-file.
    #[arg(long, env = "SUMAC_SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// A file with the job's secret.
    #[arg(long, value_name = "FILE", conflicts_with = "secret")]
    secret_file: Option<PathBuf>,
    /// The aggregator's control plane; without it the daemon's.
    #[arg(long, value_name = "ADDRESS:PORT")]
    aggregator: Option<String>,
    /// What is made of the workers' values.
    #[arg(long, value_name = "OP", value_enum, default_value_t = Op::Sum)]
    op: Op,
    /// How floats are written into packets; int16 takes half the bytes and rounds more.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Wire::Int32)]
    wire: Wire,
    /// What becomes of NaN and infinity: an error on all workers, or NaN in their whole packet.
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = NotFinite::Error)]
    not_finite: NotFinite,
    /// A fixed number that floats are multiplied with before they are rounded.
    #[arg(long, conflicts_with = "block")]
    scale: Option<f32>,
    /// Block floating point: each packet's own scale. The default of static jobs, unless the daemon's configuration has a scale.
    #[arg(long)]
    block: bool,
    /// 32-bit words per packet; without it what MTU and aggregator allow.
    #[arg(long, visible_alias = "elements", value_name = "WORDS")]
    chunk: Option<u16>,
    /// Slots of each lane, a power of two; without it as many as the measured path needs.
    #[arg(long)]
    slots: Option<u32>,
    #[command(flatten)]
    mode: mode::ModeArgs,
    /// How long to wait for the other workers; without it as the daemon's configuration says (60 s unless it does).
    #[arg(long, value_name = "SECONDS", value_parser = parse_timeout)]
    timeout: Option<Duration>,
    #[command(flatten)]
    socket: Socket,
    /// The array to sum, in numpy's format.
    #[arg(value_name = "IN.npy")]
    input: PathBuf,
    /// Where the sum goes; replaced if it exists.
    #[arg(value_name = "OUT.npy")]
    output: PathBuf,
}

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac allreduce --job demo --rank 0 --world 2 mine.npy sum.npy\n",
    "  sumac allreduce --job demo --rank 1 --world 2 --secret-file demo.key --timeout 10 mine.npy sum.npy\n",
    "  sumac allreduce --job demo --rank 0 --world 2 --op mean --wire int16 mine.npy mean.npy\n",
    "  sumac allreduce --job demo --rank 0 --world 2 --mode dynamic --parameter-hosts 2 mine.npy sum.npy\n\n",
    exit::help_text!(),
);

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "give a number of seconds, 0 or more".to_owned())
}

/// What is made of the workers' values.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Op {
    Sum,
    Mean,
    Min,
    Max,
}

impl From<Op> for sumac_client::Reduction {
    fn from(op: Op) -> sumac_client::Reduction {
        match op {
            Op::Sum => sumac_client::Reduction::Sum,
            Op::Mean => sumac_client::Reduction::Mean,
            Op::Min => sumac_client::Reduction::Min,
            Op::Max => sumac_client::Reduction::Max,
        }
    }
}

/// How floats are written into packets.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Wire {
    Int32,
    Int16,
}

impl From<Wire> for sumac_client::WireFormat {
    fn from(wire: Wire) -> sumac_client::WireFormat {
        match wire {
            Wire::Int32 => sumac_client::WireFormat::Int32,
            Wire::Int16 => sumac_client::WireFormat::Int16,
        }
    }
}

/// What becomes of NaN and infinity.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum NotFinite {
    Error,
    Carry,
}

impl From<NotFinite> for sumac_client::NonFinitePolicy {
    fn from(policy: NotFinite) -> sumac_client::NonFinitePolicy {
        match policy {
            NotFinite::Error => sumac_client::NonFinitePolicy::Error,
            NotFinite::Carry => sumac_client::NonFinitePolicy::Carry,
        }
    }
}

/// Why there is no sum.
#[derive(Debug, Error)]
enum AllreduceError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{path} holds {found}; give an array of float32, float16, int32, or uint16 for bfloat16, for example \
         numpy.save(.., a.astype(\"f4\"))"
    )]
    Type { path: PathBuf, found: String },
    #[error("{path} is cut off: its header promises {promised} elements")]
    Short { path: PathBuf, promised: u64 },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Reduces one array.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let read = |source| AllreduceError::Read { path: args.input.clone(), source };
    let Input { form, array } = Input::open(&args.input).map_err(read)?;
    // The type is complained of first: of another one the count says little.
    let form = || form.map_err(|promised| AllreduceError::Short { path: args.input.clone(), promised });
    let array = match array.try_data::<f32>() {
        Ok(values) => return sum::<f32>(args, &form()?, values),
        Err(array) => array,
    };
    let array = match array.try_data::<i32>() {
        Ok(values) => return sum::<i32>(args, &form()?, values),
        Err(array) => array,
    };
    let array = match array.try_data::<f16>() {
        Ok(values) => return sum::<f16>(args, &form()?, values),
        Err(array) => array,
    };
    match array.try_data::<u16>() {
        Ok(values) => sum::<bf16>(args, &form()?, values),
        Err(array) => {
            let found = array.dtype().descr();
            Err(AllreduceError::Type { path: args.input.clone(), found }.into())
        }
    }
}

fn sum<T: Stored>(
    args: &Args,
    form: &Form,
    values: impl Iterator<Item = io::Result<T::Raw>>,
) -> anyhow::Result<ExitCode> {
    let client = Client::connect(&args.socket.path).map_err(AllreduceError::from)?;
    // Before the job is opened: what is wrong with the files is no other worker's business.
    let mut tensor = client.tensor::<T>(form.count).map_err(AllreduceError::from)?;
    for (place, value) in tensor.iter_mut().zip(values) {
        let value = value.map_err(|source| AllreduceError::Read { path: args.input.clone(), source })?;
        *place = T::from_raw(value);
    }
    let write = |source| AllreduceError::Write { path: args.output.clone(), source };
    let output = Output::create(&args.output).map_err(write)?;
    let job = open(&client, args)?;
    let opened = job.opened();
    tracing::info!(slots = opened.slots, reason = opened.slots_reason, chunk = opened.elements, mode = ?opened.mode, "joined");
    let options = OpOptions { reduction: args.op.into(), ..OpOptions::default() };
    let pending = job.allreduce_with(tensor, options).map_err(ClientError::from)?;
    let (tensor, duration) = pending.wait_timed().map_err(ClientError::from)?;
    // The sum is there, whatever becomes of the job's end.
    output.save(form, &tensor).map_err(write)?;
    job.close()?;
    tracing::info!(elements = form.count, workers = args.world, ?duration, output = %args.output.display(), "summed");
    Ok(ExitCode::SUCCESS)
}

fn open(client: &Client, args: &Args) -> Result<Job, AllreduceError> {
    let mut options = JobOptions::new(&args.job, args.rank, args.world)
        .wire(args.wire.into())
        .not_finite(args.not_finite.into());
    if let Some(secret) = secret(args)? {
        options = options.secret(secret);
    }
    if let Some(aggregator) = &args.aggregator {
        options = options.aggregator(aggregator);
    }
    if let Some(words) = args.chunk {
        options = options.elements(words);
    }
    if let Some(slots) = args.slots {
        options = options.slots(slots);
    }
    options = args.mode.apply(options);
    if let Some(scale) = args.scale {
        options = options.scale(scale);
    }
    if args.block {
        options = options.block();
    }
    if let Some(timeout) = args.timeout {
        options = options.timeout(timeout);
    }
    Ok(client.open(&options)?)
}

fn secret(args: &Args) -> Result<Option<String>, AllreduceError> {
    let Some(path) = &args.secret_file else { return Ok(args.secret.clone()) };
    let mut secret = String::new();
    File::open(path)
        .and_then(|mut file| file.read_to_string(&mut secret))
        .map_err(|source| AllreduceError::Read { path: path.clone(), source })?;
    Ok(Some(secret.trim_end().to_owned()))
}
