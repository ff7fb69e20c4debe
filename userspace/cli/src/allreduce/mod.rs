//! `sumac allreduce`: sums an array from a file into a file.

mod npy;

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{anyhow, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::{DeserializeOwned, IntoDeserializer as _, value::Error as ValueError};
use sumac_client::{
    Client, ClientError, Job, JobOptions, JobSpec, Mode, NonFinitePolicy, OpOptions, Reduction, Scale,
    WireFormat, bf16, f16,
};

use self::npy::{Form, Input, Output, Stored};

use crate::{exit, options::Socket};

/// Sums an array over all workers of a job: reads IN.npy, writes OUT.npy.
///
/// Arrays are float32, float16 or int32, or bfloat16 as uint16, of any shape. All workers run it at the same time with the
/// same job, world and shape, and each with its own rank.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP, after_long_help = EXAMPLES)]
pub struct Args {
    /// The job's name, the same on all workers.
    #[arg(long, value_name = "NAME")]
    job: String,
    /// This worker's number, from 0.
    #[arg(long)]
    rank: u16,
    /// The number of workers.
    #[arg(long)]
    world: u16,
    /// The join token of `sumac-agg token`, or the job's secret; default: the daemon's. Command lines are visible to other users: prefer --secret-file.
    #[arg(long, env = "SUMAC_SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// A file with the join token, or the job's secret.
    #[arg(long, value_name = "FILE", conflicts_with = "secret")]
    secret_file: Option<PathBuf>,
    /// A control plane of the daemon's configuration; default: its `aggregator`.
    #[arg(long, value_name = "NAME or HOST:PORT")]
    aggregator: Option<String>,
    /// The reduction of the workers' values.
    #[arg(long, value_name = "OP", default_value = "sum", value_parser = one_of::<Reduction>(["sum", "mean", "min", "max"]))]
    op: Reduction,
    /// The wire format of floats; int16 takes half the bytes and rounds more.
    #[arg(long, value_name = "FORMAT", default_value = "int32", value_parser = one_of::<WireFormat>(["int32", "int16"]))]
    wire: WireFormat,
    /// The policy for NaN and infinity: an error on all workers, or NaN in their whole packet.
    #[arg(long, value_name = "POLICY", default_value = "error", value_parser = one_of::<NonFinitePolicy>(["error", "carry"]))]
    not_finite: NonFinitePolicy,
    /// A fixed factor for floats, applied before they are rounded.
    #[arg(long, conflicts_with = "block")]
    scale: Option<f32>,
    /// Block floating point: a scale for each packet. The default of static jobs, unless the daemon's configuration has a scale.
    #[arg(long)]
    block: bool,
    /// 32-bit words per packet; default: the maximum for MTU and aggregator.
    #[arg(long, visible_alias = "elements", value_name = "WORDS")]
    chunk: Option<u16>,
    /// Slots of each lane of a static job, a power of two; default: as the measured path needs.
    #[arg(long)]
    slots: Option<u32>,
    /// The use of the aggregators' slots. static: the job owns its slots; dynamic: jobs share slots, and parameter hosts sum
    /// the rest.
    #[arg(long, default_value = "static", value_parser = one_of::<Mode>(["static", "dynamic"]))]
    mode: Mode,
    /// Packets that a lane may be ahead of its oldest without a result, a power of two (dynamic).
    #[arg(long, value_name = "PACKETS")]
    window: Option<u32>,
    /// The maximum of shared slots of each shard; default: all (dynamic).
    #[arg(long, value_name = "SLOTS", conflicts_with = "slots")]
    dynamic_slots: Option<u32>,
    /// The number of parameter hosts for the shards, 1 to 4; default: as many as available (dynamic).
    #[arg(long, value_name = "HOSTS")]
    parameter_hosts: Option<u16>,
    /// Disable the congestion window (dynamic).
    #[arg(long)]
    no_congestion_control: bool,
    /// Enable the congestion window, so that TCP beside the job has a share (static; dynamic jobs have it).
    #[arg(long, conflicts_with = "no_congestion_control")]
    congestion_control: bool,
    /// Seconds to wait for the other workers; default: the daemon's (60 unless configured).
    #[arg(long, value_name = "SECONDS", value_parser = parse_timeout)]
    timeout: Option<Duration>,
    #[command(flatten)]
    socket: Socket,
    /// The array to sum, in numpy's format.
    #[arg(value_name = "IN.npy")]
    input: PathBuf,
    /// The file for the sum; replaced if it exists.
    #[arg(value_name = "OUT.npy")]
    output: PathBuf,
}

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac allreduce --job demo --rank 0 --world 2 mine.npy sum.npy\n",
    "  sumac allreduce --job demo --rank 1 --world 2 --secret-file demo.token --timeout 10 mine.npy sum.npy\n",
    "  sumac allreduce --job demo --rank 0 --world 2 --op mean --wire int16 mine.npy mean.npy\n",
    "  sumac allreduce --job demo --rank 0 --world 2 --mode dynamic --parameter-hosts 2 mine.npy sum.npy\n\n",
    exit::help_text!(),
);

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "expected a number of seconds, 0 or more".to_owned())
}

/// Returns a parser of the names that `T` has in JSON.
fn one_of<T>(names: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| {
        let name: serde::de::value::StringDeserializer<ValueError> = name.into_deserializer();
        T::deserialize(name)
    })
}

fn cannot_read(path: &Path, source: &io::Error) -> anyhow::Error {
    anyhow!("cannot read {}: {source}", path.display())
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let path = args.input.display();
    let Input { form, array } = Input::open(&args.input).map_err(|error| cannot_read(&args.input, &error))?;
    // A type error has precedence: the count depends on the type.
    let form = || form.map_err(|promised| anyhow!("{path} is truncated: its header has {promised} elements"));
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
        Err(array) => bail!(
            "{path} has type {}; expected an array of float32, float16, int32, or uint16 for bfloat16, for example \
             numpy.save(.., a.astype(\"f4\"))",
            array.dtype().descr()
        ),
    }
}

fn sum<T: Stored>(
    args: &Args,
    form: &Form,
    values: impl Iterator<Item = io::Result<T::Raw>>,
) -> anyhow::Result<ExitCode> {
    let client = Client::connect(&args.socket.path)?;
    // Before the job is opened: an error of the files must not affect other workers.
    let mut tensor = client.tensor::<T>(form.count)?;
    for (element, value) in tensor.iter_mut().zip(values) {
        *element = T::from_raw(value.map_err(|error| cannot_read(&args.input, &error))?);
    }
    let write = |error: io::Error| anyhow!("cannot write {}: {error}", args.output.display());
    let output = Output::create(&args.output).map_err(write)?;
    let job = open(&client, args)?;
    let opened = job.opened();
    tracing::info!(
        slots = opened.slots,
        reason = opened.slots_reason,
        chunk = opened.elements,
        mode = opened.mode.name(),
        "joined"
    );
    let options = OpOptions { reduction: args.op, ..OpOptions::default() };
    let pending = job.allreduce_with(tensor, options).map_err(ClientError::from)?;
    let (tensor, duration) = pending.wait_timed().map_err(ClientError::from)?;
    // The sum is complete: save it even if closing the job fails.
    output.save(form, &tensor).map_err(write)?;
    job.close()?;
    tracing::info!(elements = form.count, workers = args.world, ?duration, output = %args.output.display(), "summed");
    Ok(ExitCode::SUCCESS)
}

fn open(client: &Client, args: &Args) -> anyhow::Result<Job> {
    let spec = JobSpec {
        elements: args.chunk,
        slots: args.slots,
        mode: Some(args.mode),
        window: args.window,
        dynamic_slots: args.dynamic_slots,
        parameter_hosts: args.parameter_hosts,
        congestion_control: match (args.congestion_control, args.no_congestion_control) {
            (false, false) => None,
            (yields, _) => Some(yields),
        },
        scale: if args.block { Some(Scale::Block) } else { args.scale.map(Scale::Fixed) },
        wire: Some(args.wire),
        not_finite: Some(args.not_finite),
        timeout_s: args.timeout.map(|timeout| timeout.as_secs_f64()),
        ..JobSpec::new(&args.job, args.rank, args.world)
    };
    let mut options = JobOptions::from(spec);
    if let Some(secret) = secret(args)? {
        options = options.secret(secret);
    }
    if let Some(aggregator) = &args.aggregator {
        options = options.aggregator(aggregator);
    }
    Ok(client.open(&options)?)
}

fn secret(args: &Args) -> anyhow::Result<Option<String>> {
    let Some(path) = &args.secret_file else { return Ok(args.secret.clone()) };
    sumac_daemon::check_private(path)?;
    let secret = std::fs::read_to_string(path).map_err(|error| cannot_read(path, &error))?;
    Ok(Some(secret.trim_end().to_owned()))
}
