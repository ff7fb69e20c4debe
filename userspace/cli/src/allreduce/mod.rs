//! `sumac allreduce`: sums an array from a file into a file.

mod npy;

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{anyhow, bail};
use sumac_client::{
    Client, ClientError, Importance, Job, JobOptions, JobSpec, OpOptions, Reduction, Scale, bf16, f16,
};

use self::npy::{Form, Input, Output, Stored};

use crate::{exit, options::Socket};

/// Sums an array over all workers of a job: reads IN.npy, writes OUT.npy.
///
/// Arrays are float32, float16 or int32, or bfloat16 as uint16, of any shape. All workers run it at the same
/// time with the same job, world and shape, and each with its own rank.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP, after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    spec: JobSpec,
    /// Block floating point, as --scale block. The default of static jobs, unless the daemon's configuration
    /// has a scale.
    #[arg(long, conflicts_with = "scale")]
    block: bool,
    /// Disable the congestion window, as --congestion-control=false.
    #[arg(long, conflicts_with = "congestion_control")]
    no_congestion_control: bool,
    /// The join token of `sumac-agg token`, or the job's secret; default: the daemon's. Command lines are
    /// visible to other users: prefer --secret-file.
    #[arg(long, env = "SUMAC_SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// A file with the join token, or the job's secret.
    #[arg(long, value_name = "FILE", conflicts_with = "secret")]
    secret_file: Option<PathBuf>,
    /// A control plane of the daemon's configuration; default: its `aggregator`.
    #[arg(long, value_name = "NAME or HOST:PORT")]
    aggregator: Option<String>,
    /// The reduction of the workers' values.
    #[arg(long, value_name = "OP", default_value = "sum")]
    op: Reduction,
    /// The priority of its packets, 0 (lowest) to 7; from 4 on it overtakes operations below.
    #[arg(long, value_name = "PRIORITY", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(..=7))]
    priority: u8,
    /// The rule that distinguishes packets, so that switches drop unimportant ones first.
    #[arg(long, value_name = "RULE", default_value = "none")]
    importance: Importance,
    /// The fraction of its elements that each worker may be left out with; 0 for exact results. For sums and
    /// means of floats in static jobs.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0)]
    loss_bound: f32,
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
    "  sumac allreduce --job demo --rank 1 --world 2 --secret-file demo.token --timeout 10 mine.npy \
    sum.npy\n",
    "  sumac allreduce --job demo --rank 0 --world 2 --op mean --wire int16 mine.npy mean.npy\n",
    "  sumac allreduce --job demo --rank 0 --world 2 --mode dynamic --parameter-hosts 2 mine.npy sum.npy\n",
    "  sumac allreduce --job demo --rank 0 --world 2 --mode direct --priority 3 --importance magnitude \
    mine.npy sum.npy\n\n",
    exit::help_text!(),
);

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
    match array.try_data::<bf16>() {
        Ok(values) => sum::<bf16>(args, &form()?, values),
        Err(array) => bail!(
            "{path} has type {}; expected an array of float32, float16, int32, or uint16 for bfloat16, for \
            example numpy.save(.., a.astype(\"f4\"))",
            array.descr
        ),
    }
}

fn sum<T: Stored>(
    args: &Args,
    form: &Form,
    values: impl Iterator<Item = io::Result<T>>,
) -> anyhow::Result<ExitCode> {
    let client = Client::connect(&args.socket.path)?;
    // Before the job is opened: an error of the files must not affect other workers.
    let mut tensor = client.tensor::<T>(form.count)?;
    for (element, value) in tensor.iter_mut().zip(values) {
        *element = value.map_err(|error| cannot_read(&args.input, &error))?;
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
    let options = OpOptions {
        reduction: args.op,
        priority: args.priority,
        importance: args.importance,
        loss_bound: args.loss_bound,
        ..OpOptions::default()
    };
    let mut pending = job.allreduce_with(tensor, options).map_err(ClientError::from)?;
    pending.wait_timeout(Duration::MAX).map_err(ClientError::from)?;
    let left_out = pending.loss().map(|loss| loss.by_worker.iter().sum::<u64>());
    let (tensor, duration) = pending.wait_timed().map_err(ClientError::from)?;
    // The sum is complete: save it even if closing the job fails.
    output.save(form, &tensor).map_err(write)?;
    job.close()?;
    tracing::info!(elements = form.count, workers = args.spec.world, ?duration, left_out,
        output = %args.output.display(), "summed");
    Ok(ExitCode::SUCCESS)
}

fn open(client: &Client, args: &Args) -> anyhow::Result<Job> {
    let mut spec = args.spec.clone();
    if args.block {
        spec.scale = Some(Scale::Block);
    }
    if args.no_congestion_control {
        spec.congestion_control = Some(false);
    }
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
