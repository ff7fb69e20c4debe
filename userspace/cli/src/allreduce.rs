//! `sumac allreduce`: one sum, from a file into a file, for shells.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use npyz::{NpyFile, NpyHeader, Order, WriterBuilder};
use sumac_client::{Client, ClientError, Element, Job, JobOptions};
use thiserror::Error;

use crate::{exit, socket::Socket};

/// Sums an array over all workers of a job: reads IN.npy, writes OUT.npy.
///
/// Takes float32 and int32 arrays of any shape. All workers run it at the same time with the same job, world and
/// shape, and each with a rank of its own.
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
    /// Elements per packet; without it the daemon's default.
    #[arg(long)]
    elements: Option<u16>,
    /// Slots to stream through, a power of two; without it the aggregator decides.
    #[arg(long)]
    slots: Option<u32>,
    /// What floats are multiplied with before they are rounded.
    #[arg(long)]
    scale: Option<f32>,
    /// How long to wait for the other workers.
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
    "  sumac allreduce --job demo --rank 1 --world 2 --secret-file demo.key --timeout 10 mine.npy sum.npy\n\n",
    exit::help_text!(),
);

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "give a number of seconds, 0 or more".to_owned())
}

/// Why there is no sum.
#[derive(Debug, Error)]
enum AllreduceError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{path} holds {found}; give an array of float32 or int32, for example numpy.save(.., a.astype(\"f4\"))"
    )]
    Type { path: PathBuf, found: String },
    #[error("{path} is cut off: its header promises {promised} elements")]
    Short { path: PathBuf, promised: u64 },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// An array's form, which the sum shares.
struct Form {
    shape: Vec<u64>,
    order: Order,
    count: usize,
}

/// Sums one array.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let read = |source| AllreduceError::Read { path: args.input.clone(), source };
    let file = File::open(&args.input).map_err(read)?;
    let metadata = file.metadata().map_err(read)?;
    if !metadata.is_file() {
        return Err(read(io::Error::other("it is no ordinary file")).into());
    }
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let header = NpyHeader::from_reader(&mut reader).map_err(read)?;
    // Used once the type is known to be one of four bytes.
    let form = form(&args.input, &header, metadata.len());
    let array = NpyFile::with_header(header, reader);
    match array.try_data::<f32>() {
        Ok(values) => sum(args, &form?, values)?,
        Err(array) => match array.try_data::<i32>() {
            Ok(values) => sum(args, &form?, values)?,
            Err(array) => {
                let found = array.dtype().descr();
                return Err(AllreduceError::Type { path: args.input.clone(), found }.into());
            }
        },
    }
    Ok(ExitCode::SUCCESS)
}

/// Looks at the header before anything is allocated for what it promises.
fn form(path: &Path, header: &NpyHeader, length: u64) -> Result<Form, AllreduceError> {
    let shape = header.shape().to_vec();
    let promised = shape.iter().try_fold(1u64, |count, &size| count.checked_mul(size));
    let count = promised.filter(|count| count.checked_mul(4).is_some_and(|bytes| bytes <= length));
    match count.map(usize::try_from) {
        Some(Ok(count)) => Ok(Form { shape, order: header.order(), count }),
        _ => Err(AllreduceError::Short { path: path.to_owned(), promised: promised.unwrap_or(u64::MAX) }),
    }
}

fn sum<T>(args: &Args, form: &Form, values: impl Iterator<Item = io::Result<T>>) -> Result<(), AllreduceError>
where
    T: Element + npyz::AutoSerialize,
{
    let client = Client::connect(&args.socket.path)?;
    // Before the job is opened: what is wrong with the file is no other worker's business.
    let mut tensor = client.tensor::<T>(form.count)?;
    for (place, value) in tensor.iter_mut().zip(values) {
        *place = value.map_err(|source| AllreduceError::Read { path: args.input.clone(), source })?;
    }
    let job = open(&client, args)?;
    let pending = job.allreduce(tensor).map_err(ClientError::from)?;
    let (tensor, duration) = pending.wait_timed().map_err(ClientError::from)?;
    job.close()?;
    let write = |source| AllreduceError::Write { path: args.output.clone(), source };
    save(&args.output, form, &tensor).map_err(write)?;
    tracing::info!(elements = form.count, workers = args.world, ?duration, output = %args.output.display(), "summed");
    Ok(())
}

fn open(client: &Client, args: &Args) -> Result<Job, AllreduceError> {
    let mut options = JobOptions::new(&args.job, args.rank, args.world);
    if let Some(secret) = secret(args)? {
        options = options.secret(secret);
    }
    if let Some(aggregator) = &args.aggregator {
        options = options.aggregator(aggregator);
    }
    if let Some(elements) = args.elements {
        options = options.elements(elements);
    }
    if let Some(slots) = args.slots {
        options = options.slots(slots);
    }
    if let Some(scale) = args.scale {
        options = options.scale(scale);
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

/// Writes an array of the input's form.
fn save<T: npyz::AutoSerialize + Copy>(path: &Path, form: &Form, values: &[T]) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut writer = npyz::WriteOptions::new()
        .default_dtype()
        .shape(&form.shape)
        .order(form.order)
        .writer(&mut file)
        .begin_nd()?;
    writer.extend(values.iter().copied())?;
    writer.finish()?;
    file.flush()
}
