//! The options of `sumac-agg serve`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use sumac_control::{HostPort, server::DataNetwork};
use sumac_job::LONGEST_OUTAGE_S;
use sumac_loader::DEFAULT_PIN_ROOT;

use super::switch::SwitchArgs;
use crate::cli::identity::{StateDir, TlsFiles};

const EXAMPLES: &str = "\
Examples:
  sumac-agg serve
  sumac-agg token
        jobs on the attached eBPF aggregator; what the second prints goes to the workers' daemons
  sumac-agg serve --job-secret train=/etc/sumac/train.secret --job-secret eval=/etc/sumac/eval.secret
        each job with a secret of its own; no others
  sumac-agg serve --plane host --slots 1024 --state-dir state
        aggregate in this process, over a UDP socket: no privilege needed
  sumac-agg token --racks > racks.token
        at the root: what its racks and parameter hosts need, and no worker has
  sumac-agg serve --parent 10.77.100.1:48600 --rack-secret-file racks.token
        as the aggregator of a rack: its workers join here, the one at 10.77.100.1 adds up the racks' sums
  sumac-agg token --racks --secret-file racks.token
        at that rack: what racks below it need, whose --parent is this one; for static jobs
  sumac-agg serve --plane p4runtime --switch-address 127.0.0.1:9559 --switch switch.toml \
      --pipeline target/p4/bmv2/sumac.json --p4info target/p4/bmv2/sumac.p4info.bin
        program a P4 switch, here the behavioural model (docs/p4.md)
  sumac-agg serve --plane bfrt --switch switch.toml
        the same on a Tofino switch, on which this runs beside bf_switchd (docs/bfruntime.md)
  sumac-agg serve --plane none
        without an aggregator: dynamic jobs, which parameter hosts (`sumac daemon --parameter-host`) sum for
  sumac-agg serve --metrics 127.0.0.1:9403
        answers Prometheus at http://127.0.0.1:9403/metrics; `sumac-agg metrics` lists the metrics

SIGTERM and SIGINT end it: its static jobs fail on all workers by name, and nothing of them stays. Dynamic
ones go on by their parameter hosts; started again at the same address, it takes them up. After kill -9 it
takes up all jobs.";

/// Let remote daemons open jobs on this aggregator
///
/// Workers join a job by name, inside TLS 1.3, with the join token that `sumac-agg token` prints. A job
/// starts when all of its workers have joined, and fails on all of them when one stops answering.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Address on which workers' daemons reach the control plane (TCP)
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:48600")]
    pub(super) listen: SocketAddr,

    /// Data path that aggregates: the attached XDP programs, this process, a switch, or none
    #[arg(long, default_value = "ebpf")]
    pub(super) plane: Plane,

    #[command(flatten)]
    pub(super) state: StateDir,

    #[command(flatten)]
    pub(super) tls: TlsFiles,

    /// The secret of all jobs that have none of their own; without it and --job-secret the state directory's
    #[arg(long, value_name = "FILE", conflicts_with = "parent")]
    pub(super) secret_file: Option<PathBuf>,

    /// The secret of one job; may be given several times
    #[arg(long, value_name = "JOB=FILE", value_parser = job_secret, conflicts_with = "parent")]
    pub(super) job_secret: Vec<(String, PathBuf)>,

    /// The control plane of the aggregator above, the root's or another rack's; this one is of a rack
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) parent: Option<HostPort>,

    /// Name of this rack at the aggregator above [default: its address towards it]
    #[arg(long, value_name = "NAME", requires = "parent")]
    pub(super) rack_name: Option<String>,

    /// The secret of the aggregators of racks, and of parameter hosts; without it the one that `sumac-agg
    /// token --racks` made, and without that there are none. With --parent: the token that it printed at the
    /// aggregator above
    ///
    /// Let it be another than the jobs': a rack is given the tokens of its jobs, and no worker shall pass for
    /// one.
    #[arg(long, value_name = "FILE")]
    pub(super) rack_secret_file: Option<PathBuf>,

    /// The authorities that sign the certificate of the aggregator above, PEM, in place of its token's
    /// fingerprint
    #[arg(long, value_name = "FILE", requires = "parent")]
    pub(super) tls_ca: Option<PathBuf>,

    /// Let each slot take the chunks that its number says, even when it is late; a rack does as the one above
    /// does
    #[arg(long)]
    pub(super) no_reassignment: bool,

    /// Seconds in which a dead worker of a dynamic job may be replaced, by one that joins with its rank,
    /// before the job fails
    #[arg(long, value_name = "SECONDS", default_value_t = 0, conflicts_with = "parent")]
    pub(super) rejoin_grace: u64,

    /// Longest outage of a worker's network that its jobs survive, in seconds, such as a port that negotiates
    /// its speed anew; a worker that is silent for longer is dead
    ///
    /// A worker whose process ends is named after 2 s, whatever this is.
    #[arg(long, value_name = "SECONDS", default_value_t = LONGEST_OUTAGE_S, conflicts_with = "parent")]
    #[arg(value_parser = clap::value_parser!(u16).range(5..=3600))]
    pub(super) longest_outage: u16,

    /// Longest time that a worker may wait for the other ranks of its job, in seconds, whatever it asks for
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, conflicts_with = "parent")]
    pub(super) longest_wait: u64,

    /// Part of all job numbers and slots that one host, user or secret may hold, in percent; 100: all
    #[arg(long, value_name = "PERCENT", default_value_t = 50, conflicts_with = "parent")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(super) share: u64,

    /// Network of hosts whose packets have another address than their control connection, such as
    /// 10.1.0.0/16, because that comes from a management network; may be given several times
    ///
    /// Else packets for a worker or parameter host are sent to the source of its control connection alone.
    #[arg(long, value_name = "NETWORK", conflicts_with = "parent")]
    pub(super) data_network: Vec<DataNetwork>,

    /// Address at which Prometheus scrapes metrics; without it there are none
    #[arg(long, value_name = "IP:PORT")]
    pub(super) metrics: Option<SocketAddr>,

    /// Do not restrict system calls (seccomp)
    #[arg(long)]
    pub(super) no_seccomp: bool,

    /// Directory of the eBPF aggregator's pins
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_ROOT)]
    pub(super) pin_root: PathBuf,

    /// Slots in the pool (--plane host; the eBPF pool is made by `sumac-agg attach --slots`)
    #[arg(long, value_name = "N")]
    pub(super) slots: Option<u32>,

    /// Slots of each shard that dynamic jobs share by hashing, 0 for none (--plane host; else `sumac-agg
    /// attach --dynamic-slots`)
    #[arg(long, value_name = "N")]
    pub(super) dynamic_slots: Option<u32>,

    /// Milliseconds after which a dynamic job that sends nothing loses its slots (--plane host; else
    /// `sumac-agg attach --slot-timeout`)
    #[arg(long, value_name = "MS")]
    pub(super) slot_timeout: Option<u32>,

    /// Most elements in a chunk (--plane host; else `sumac-agg attach --elements`)
    #[arg(long, value_name = "N")]
    pub(super) elements: Option<u16>,

    /// UDP port for contributions (--plane host; else `sumac-agg attach --base-port`)
    #[arg(long, value_name = "PORT")]
    pub(super) base_port: Option<u16>,

    /// Shards, each a thread with a pool and a port of its own (--plane host; else `sumac-agg attach
    /// --shards`)
    #[arg(long, value_name = "N")]
    pub(super) shards: Option<u16>,

    /// Address for contributions (--plane host): all of this host's unless given
    #[arg(long, value_name = "IP")]
    pub(super) data_ip: Option<Ipv4Addr>,

    #[command(flatten)]
    pub(super) switch: SwitchArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Plane {
    /// XDP programs, attached by `sumac-agg attach`
    Ebpf,
    /// This process, over a UDP socket
    Host,
    /// A P4 program on a switch with a P4Runtime server, such as the behavioural model's
    P4runtime,
    /// The same on a Tofino switch, through BFRuntime of its `bf_switchd`
    Bfrt,
    /// No data path: dynamic jobs only, whose workers send to their parameter hosts
    None,
}

fn job_secret(argument: &str) -> Result<(String, PathBuf), String> {
    match argument.split_once('=') {
        Some((job, file)) if !job.is_empty() && !file.is_empty() => Ok((job.into(), file.into())),
        _ => Err("give JOB=FILE".into()),
    }
}
