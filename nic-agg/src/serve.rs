//! `sumac-agg serve`: the control plane that lets remote daemons open jobs on this aggregator.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::AsFd,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sumac_agg::{
    Aggregator, control_status,
    local::{self, Question},
    plane::EbpfPlane,
    pool::{DEFAULT_DYNAMIC_SLOTS, DEFAULT_SLOT_TIMEOUT, DEFAULT_SLOTS},
    status::{host as host_status, text as status_text},
};
use sumac_agg_host::HostPlane;
use sumac_agg_layout::Drops;
use sumac_control::{
    DataPlane, NoPlane, Secret, Secrets,
    plane::PlaneInfo,
    rack::Station,
    server::{Listening, Overseer},
};
use sumac_loader::{DEFAULT_PIN_ROOT, log::ProgramLog};
use sumac_wire::{DEFAULT_BASE_PORT, MAX_ELEMENTS, Reason};
use tokio::signal::unix::{SignalKind, signal};

/// How often it is looked for whether the programs were replaced.
const LOOK: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  head -c 32 /dev/urandom | base64 > /etc/sumac/secret
  sumac-agg serve --secret-file /etc/sumac/secret
        jobs on the attached eBPF aggregator, one secret for all
  sumac-agg serve --job-secret train=/etc/sumac/train.secret --job-secret eval=/etc/sumac/eval.secret
        each job with a secret of its own; no others
  sumac-agg serve --plane host --slots 1024 --secret-file secret
        aggregate in this process, over a UDP socket: no privilege needed
  sumac-agg serve --secret-file /etc/sumac/secret --rack-secret-file /etc/sumac/racks.secret
        with racks below: only their aggregators have the second secret, no worker
  sumac-agg serve --parent 10.77.100.1:48600 --rack-secret-file /etc/sumac/racks.secret
        as the aggregator of a rack: its workers join here, the one at 10.77.100.1 adds up the racks' sums
  sumac-agg serve --plane none --secret-file /etc/sumac/secret --rack-secret-file /etc/sumac/racks.secret
        without an aggregator: dynamic jobs, which parameter hosts (`sumac daemon --parameter-host`) sum for

SIGTERM and SIGINT end it: its static jobs fail on all workers by name, and nothing of them stays. Dynamic ones go on by
their parameter hosts; started again at the same address, it takes them up.";

/// Let remote daemons open jobs on this aggregator
///
/// Workers join a job by name with a shared secret, which is never sent. A job starts when all of its
/// workers have joined, and fails on all of them when one stops answering.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where workers' daemons reach the control plane (TCP)
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:48600")]
    listen: SocketAddr,

    /// What adds the packets: the attached XDP programs, this process, or nothing
    #[arg(long, default_value = "ebpf")]
    plane: Plane,

    /// The secret of all jobs that have none of their own
    #[arg(long, value_name = "FILE", conflicts_with = "parent")]
    secret_file: Option<PathBuf>,

    /// The secret of one job; may be given several times
    #[arg(long, value_name = "JOB=FILE", value_parser = job_secret, conflicts_with = "parent")]
    job_secret: Vec<(String, PathBuf)>,

    /// The control plane of the aggregator above: this one is a rack's, and jobs are the other's business
    #[arg(long, value_name = "IP:PORT")]
    parent: Option<SocketAddr>,

    /// What this rack is called at the aggregator above; its address towards it unless given
    #[arg(long, value_name = "NAME", requires = "parent")]
    rack_name: Option<String>,

    /// The secret of the aggregators of racks, and of parameter hosts, at the one above them; without it that one takes
    /// neither
    ///
    /// Let it be another than the jobs': a rack is told the tokens of its jobs, and no worker shall pass for one.
    #[arg(long, value_name = "FILE")]
    rack_secret_file: Option<PathBuf>,

    /// Let each slot take the chunks that its number says, even when it is late; a rack does as the one above does
    #[arg(long)]
    no_stealing: bool,

    /// How long a dead worker of a dynamic job may be replaced, by one that joins with its rank, before the job fails
    #[arg(long, value_name = "SECONDS", default_value_t = 0, conflicts_with = "parent")]
    rejoin_grace: u64,

    /// Where the eBPF aggregator is pinned
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_ROOT)]
    pin_root: PathBuf,

    /// Slots in the pool (--plane host; the eBPF pool is made by `sumac-agg attach --slots`)
    #[arg(long, value_name = "N")]
    slots: Option<u32>,

    /// Slots of each shard that dynamic jobs share by hashing, 0 for none (--plane host; else `sumac-agg attach
    /// --dynamic-slots`)
    #[arg(long, value_name = "N")]
    dynamic_slots: Option<u32>,

    /// Milliseconds after which a dynamic job that sends nothing loses its slots (--plane host; else `sumac-agg attach
    /// --slot-timeout`)
    #[arg(long, value_name = "MS")]
    slot_timeout: Option<u32>,

    /// Most elements in a chunk (--plane host; else `sumac-agg attach --elements`)
    #[arg(long, value_name = "N")]
    elements: Option<u16>,

    /// UDP port for contributions (--plane host; else `sumac-agg attach --base-port`)
    #[arg(long, value_name = "PORT")]
    base_port: Option<u16>,

    /// Shards, each a thread with a pool and a port of its own (--plane host; else `sumac-agg attach --shards`)
    #[arg(long, value_name = "N")]
    shards: Option<u16>,

    /// Address for contributions (--plane host): all of this host's unless given
    #[arg(long, value_name = "IP")]
    data_ip: Option<Ipv4Addr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Plane {
    /// XDP programs, attached by `sumac-agg attach`
    Ebpf,
    /// This process, over a UDP socket
    Host,
    /// Nothing: dynamic jobs only, whose workers send to their parameter hosts
    None,
}

fn job_secret(argument: &str) -> Result<(String, PathBuf), String> {
    match argument.split_once('=') {
        Some((job, file)) if !job.is_empty() && !file.is_empty() => Ok((job.into(), file.into())),
        _ => Err("give JOB=FILE".into()),
    }
}

/// What this control plane does.
enum Role {
    /// It decides on jobs.
    Root { secrets: Secrets, is_stealing: bool, rejoin_grace: Duration },
    /// It passes its workers' calls on, and does what the root orders.
    Rack { parent: SocketAddr, name: String, secret: Secret },
}

/// Serves until a signal ends it.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let role = args.role()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the control plane's threads")?;
    match args.plane {
        Plane::Ebpf => {
            args.refuse_host_options()?;
            let plane = EbpfPlane::open(&args.pin_root)?;
            follow_log(plane.aggregator().clone())?;
            let plane = Arc::new(plane);
            answer_questions(&local::ebpf_name(plane.aggregator().pins()), {
                let plane = plane.clone();
                move |question| answer_for_ebpf(&plane, &question)
            });
            runtime.block_on(serve(args.listen, plane, role))?;
        }
        Plane::Host => {
            let plane = Arc::new(args.host_plane()?);
            answer_questions(&local::host_name(plane.running().local().port()), {
                let plane = plane.clone();
                move |question| answer_for_host(&plane, question)
            });
            let served = runtime.block_on(serve(args.listen, plane.clone(), role));
            report(&plane);
            served?;
        }
        Plane::None => {
            args.refuse_host_options()?;
            runtime.block_on(serve(args.listen, NoPlane, role))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn role(&self) -> anyhow::Result<Role> {
        let default = self.secret_file.as_deref().map(Secret::from_file).transpose()?;
        let racks = self.rack_secret_file.as_deref().map(Secret::from_file).transpose()?;
        if let Some(parent) = self.parent {
            let secret = racks.context(
                "the aggregator above lets no stranger in: give --rack-secret-file FILE, as there",
            )?;
            if self.plane == Plane::None {
                bail!("a rack without an aggregator adds nothing: let its workers join at the one above");
            }
            return Ok(Role::Rack { parent, name: self.name_towards(parent)?, secret });
        }
        let jobs = self.job_secret.iter().map(|(job, file)| Ok((job.clone(), Secret::from_file(file)?)));
        let jobs = jobs.collect::<anyhow::Result<HashMap<_, _>>>()?;
        if self.plane == Plane::None && racks.is_none() {
            bail!(
                "no parameter host could ever enter, as they have the racks' secret: give --rack-secret-file FILE"
            );
        }
        if default.is_none() && jobs.is_empty() {
            bail!("no job could ever join: give --secret-file FILE, or --job-secret JOB=FILE for each job");
        }
        Ok(Role::Root {
            secrets: Secrets { default, jobs, racks },
            is_stealing: !self.no_stealing,
            rejoin_grace: Duration::from_secs(self.rejoin_grace),
        })
    }

    /// The rack's name: as given, or the address that packets to the aggregator above leave from.
    fn name_towards(&self, parent: SocketAddr) -> anyhow::Result<String> {
        if let Some(name) = &self.rack_name {
            return Ok(name.clone());
        }
        let local = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.connect(parent)?;
            socket.local_addr()
        });
        let local = local.with_context(|| format!("there is no way to the aggregator above at {parent}"))?;
        Ok(local.ip().to_string())
    }

    fn refuse_host_options(&self) -> anyhow::Result<()> {
        let given = [
            ("--slots", self.slots.is_some()),
            ("--dynamic-slots", self.dynamic_slots.is_some()),
            ("--slot-timeout", self.slot_timeout.is_some()),
            ("--elements", self.elements.is_some()),
            ("--base-port", self.base_port.is_some()),
            ("--shards", self.shards.is_some()),
            ("--data-ip", self.data_ip.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => {
                bail!("{option} is for --plane host; the eBPF aggregator is made by `sumac-agg attach`")
            }
            None => Ok(()),
        }
    }

    fn host_plane(&self) -> anyhow::Result<HostPlane> {
        let elements = self.elements.unwrap_or(MAX_ELEMENTS as u16);
        if elements == 0 || usize::from(elements) > MAX_ELEMENTS {
            bail!("--elements {elements}: give 1 to {MAX_ELEMENTS}");
        }
        let ip = self.data_ip.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let slots = self.slots.unwrap_or(DEFAULT_SLOTS);
        if slots == 0 {
            bail!("--slots 0: no job could ever start; give at least 1");
        }
        let port = self.base_port.unwrap_or(DEFAULT_BASE_PORT);
        let plane = HostPlane::start(slots, elements, self.shards.unwrap_or(1), ip, port)?;
        let patience = self.slot_timeout.map_or(DEFAULT_SLOT_TIMEOUT, |ms| Duration::from_millis(ms.into()));
        Ok(plane.with_dynamic(self.dynamic_slots.unwrap_or(DEFAULT_DYNAMIC_SLOTS), patience)?)
    }
}

async fn serve<P: DataPlane>(listen: SocketAddr, plane: P, role: Role) -> anyhow::Result<()> {
    let info = plane.info()?;
    // Before the socket: whoever sees it open may send a signal.
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = async move {
        let name = tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "ending all jobs");
    };
    match role {
        Role::Root { secrets, is_stealing, rejoin_grace } => {
            let listening = Listening::open(listen, plane, secrets).await?.with_rejoin_grace(rejoin_grace);
            announce(listening.address(), &info);
            let overseer = listening.overseer();
            answer_questions(&local::control_name(listening.address().port()), move |question| {
                answer_for_control(&overseer, &question)
            });
            let listening = if is_stealing { listening } else { listening.without_stealing() };
            listening.serve(stop).await?;
        }
        Role::Rack { parent, name, secret } => {
            tracing::info!(%parent, name, "a rack's aggregator, below another");
            let station = Station::open(listen, plane, parent, name, secret).await?;
            announce(station.address(), &info);
            station.serve(stop).await?;
        }
    }
    Ok(())
}

fn announce(control: SocketAddr, info: &PlaneInfo) {
    tracing::info!(
        %control, plane = info.kind.name(), slots = info.slots, elements = info.max_elements,
        data_port = info.base_port, shards = info.shards, "waiting for workers"
    );
}

/// Lets `sumac-agg status` and `drop` ask. Jobs do without.
fn answer_questions(name: &str, answer: impl Fn(Question) -> Result<String, String> + Send + 'static) {
    if let Err(error) = local::serve(name, answer) {
        tracing::warn!(%error, "cannot listen as @{name}: `sumac-agg status` cannot ask this process");
    }
}

fn answer_for_ebpf(plane: &EbpfPlane, question: &Question) -> Result<String, String> {
    match question {
        Question::SlotsReasons => {
            serde_json::to_string(&plane.slots_reasons()).map_err(|error| error.to_string())
        }
        Question::Status { .. } | Question::Drop { .. } | Question::Control { .. } => {
            Err("the eBPF aggregator tells that itself: ask without --host".into())
        }
    }
}

fn answer_for_host(plane: &HostPlane, question: Question) -> Result<String, String> {
    match question {
        Question::Status { json } => {
            let status = host_status::status(plane).map_err(|error| error.to_string())?;
            status_text::text(&status, json).map_err(|error| error.to_string())
        }
        Question::Drop { job, up, down } => {
            tracing::warn!(job, up, down, "dropping packets on purpose: so many in 2^32");
            let set = host_status::set_drops(plane, job, Drops { up, down });
            set.map(|()| String::new()).map_err(|error| error.to_string())
        }
        Question::SlotsReasons => Err("a host aggregator's status has them".into()),
        Question::Control { .. } => Err("its control plane tells that, by its TCP port".into()),
    }
}

fn answer_for_control(overseer: &Overseer, question: &Question) -> Result<String, String> {
    let Question::Control { json } = question else {
        return Err("the aggregator tells that, and not its control plane".into());
    };
    let overview = overseer.overview().ok_or("it is being started; ask again")?;
    if !*json {
        return Ok(control_status::text(&overview));
    }
    let line = serde_json::to_string(&overview).map_err(|error| error.to_string())?;
    Ok(line + "\n")
}

/// Gives the messages of the eBPF programs to the log, until the process ends.
fn follow_log(aggregator: Aggregator) -> anyhow::Result<()> {
    let follow = move || {
        loop {
            match aggregator.log() {
                Ok(log) => follow_instance(&aggregator, log),
                Err(error) => tracing::debug!(%error, "no messages of the eBPF programs for now"),
            }
            thread::sleep(LOOK);
        }
    };
    thread::Builder::new().name("ebpf-log".into()).spawn(follow).context("cannot start the log's thread")?;
    Ok(())
}

/// Returns when the aggregator is another one than at the start.
fn follow_instance(aggregator: &Aggregator, mut log: ProgramLog) {
    let instance = || aggregator.state().ok().map(|state| state.instance);
    let first = instance();
    while instance() == first {
        let mut waiting = [PollFd::new(log.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::MAX);
        if let Err(error) = poll(&mut waiting, timeout) {
            tracing::debug!(%error, "waiting for messages of the eBPF programs");
            thread::sleep(LOOK);
        }
        log.flush();
    }
}

/// Says what the host aggregator did.
fn report(plane: &HostPlane) {
    let running = plane.running();
    for reason in Reason::ALL.iter().filter(|reason| running.counter(**reason) > 0) {
        tracing::info!(reason = reason.name(), packets = running.counter(*reason), "host aggregator");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &[&str]) -> Args {
        Line::try_parse_from([&["serve"], line].concat()).unwrap().args
    }

    #[test]
    fn a_secret_is_required_and_host_options_belong_to_the_host_plane() {
        let refused = |line: &[&str]| args(line).role().err().unwrap().to_string();
        assert!(refused(&[]).contains("--secret-file"));
        assert!(refused(&["--parent", "127.0.0.1:48600"]).contains("--rack-secret-file"));
        let bare = ["--plane", "none", "--secret-file", "/proc/self/comm"];
        assert!(refused(&bare).contains("--rack-secret-file"), "no parameter host passes without");
        let racks = ["--rack-secret-file", "/proc/self/comm"];
        assert!(args(&[&bare[..], &racks].concat()).role().is_ok());
        let rack = [&["--plane", "none", "--parent", "127.0.0.1:48600"][..], &racks].concat();
        assert!(refused(&rack).contains("adds nothing"));
        match args(&["--secret-file", "/proc/self/comm"]).role().unwrap() {
            Role::Root { secrets, .. } => assert!(secrets.racks.is_none(), "no worker passes for a rack"),
            Role::Rack { .. } => panic!("a rack without a parent"),
        }
        let missing = refused(&["--job-secret", "train=/nonexistent/secret"]);
        assert!(missing.contains("/nonexistent/secret"), "{missing}");
        assert!(Line::try_parse_from(["serve", "--job-secret", "train"]).is_err());
        for line in [
            &["--rack-name", "a"][..],
            &["--parent", "127.0.0.1:1", "--job-secret", "a=b"],
            &["--parent", "127.0.0.1:1", "--secret-file", "a"],
        ] {
            assert!(Line::try_parse_from([&["serve"], line].concat()).is_err(), "{line:?}");
        }
        for option in
            ["--slots", "--dynamic-slots", "--slot-timeout", "--elements", "--base-port", "--shards"]
        {
            let refused = args(&[option, "64"]).refuse_host_options().unwrap_err();
            assert!(refused.to_string().contains(option), "{refused}");
        }
        assert!(args(&[]).refuse_host_options().is_ok());
        for line in [["--elements", "2225"], ["--elements", "0"], ["--slots", "0"], ["--shards", "0"]] {
            let refused = args(&[&["--plane", "host", "--base-port", "0"], &line[..]].concat()).host_plane();
            assert!(refused.err().unwrap().to_string().contains(&line[0][2..]), "{line:?}");
        }
    }
}
