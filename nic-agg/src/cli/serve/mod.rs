//! `sumac-agg serve`: the control plane that lets remote daemons open jobs on this aggregator.

mod answers;
mod host;
mod metrics;
mod switch;

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use sd_notify::NotifyState;
use sumac_agg::{local, plane::EbpfPlane};
use sumac_control::{
    Credential, DataPlane, Endpoint, HostPort, Identity, NoDataPlane, Secret, Secrets, Trust,
    plane::PlaneInfo,
    rack::RackServer,
    server::{Listener, Listening, ServerOptions},
};
use sumac_loader::DEFAULT_PIN_ROOT;
use sumac_sandbox::{Capability, NETWORK, START, Sandbox};
use tokio::signal::unix::{SignalKind, signal};

use self::answers::{
    Deciding, answer_for_control, answer_for_ebpf, answer_for_host, answer_for_switch, answer_questions,
    follow_log, report,
};
use self::metrics::{for_ebpf, for_host, for_switch, serve_metrics, without_plane};
use self::switch::{Connect, SwitchArgs};
use super::identity::{StateDir, TlsFiles};

/// The longest start of a switch, for systemd: it answers, and loads the program.
const SWITCH_START: Duration = Duration::from_secs(180);

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
  sumac-agg serve --plane p4runtime --switch-address 127.0.0.1:9559 --switch switch.toml \
      --pipeline target/p4/bmv2/sumac.json --p4info target/p4/bmv2/sumac.p4info.txtpb
        program a P4 switch, here the behavioural model (docs/p4.md)
  sumac-agg serve --plane bfrt --switch switch.toml
        the same on a Tofino switch, on which this runs beside bf_switchd (docs/bfruntime.md)
  sumac-agg serve --plane none
        without an aggregator: dynamic jobs, which parameter hosts (`sumac daemon --parameter-host`) sum for
  sumac-agg serve --metrics 127.0.0.1:9403
        answers Prometheus at http://127.0.0.1:9403/metrics; `sumac-agg metrics` lists the metrics

SIGTERM and SIGINT end it: its static jobs fail on all workers by name, and nothing of them stays. Dynamic ones go on by
their parameter hosts; started again at the same address, it takes them up. After kill -9 it takes up all jobs.";

/// Let remote daemons open jobs on this aggregator
///
/// Workers join a job by name, inside TLS 1.3, with the join token that `sumac-agg token` prints. A job starts when all of
/// its workers have joined, and fails on all of them when one stops answering.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Address on which workers' daemons reach the control plane (TCP)
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:48600")]
    listen: SocketAddr,

    /// Data path that aggregates: the attached XDP programs, this process, a switch, or none
    #[arg(long, default_value = "ebpf")]
    plane: Plane,

    #[command(flatten)]
    state: StateDir,

    #[command(flatten)]
    tls: TlsFiles,

    /// The secret of all jobs that have none of their own; without it and --job-secret the state directory's
    #[arg(long, value_name = "FILE", conflicts_with = "parent")]
    secret_file: Option<PathBuf>,

    /// The secret of one job; may be given several times
    #[arg(long, value_name = "JOB=FILE", value_parser = job_secret, conflicts_with = "parent")]
    job_secret: Vec<(String, PathBuf)>,

    /// The control plane of the aggregator above, which makes the jobs; this one is of a rack
    #[arg(long, value_name = "HOST:PORT")]
    parent: Option<HostPort>,

    /// Name of this rack at the aggregator above [default: its address towards it]
    #[arg(long, value_name = "NAME", requires = "parent")]
    rack_name: Option<String>,

    /// The secret of the aggregators of racks, and of parameter hosts; without it the one that `sumac-agg token --racks`
    /// made, and without that there are none. With --parent: the token that it printed at the aggregator above
    ///
    /// Let it be another than the jobs': a rack is given the tokens of its jobs, and no worker shall pass for one.
    #[arg(long, value_name = "FILE")]
    rack_secret_file: Option<PathBuf>,

    /// The authorities that sign the certificate of the aggregator above, PEM, in place of its token's fingerprint
    #[arg(long, value_name = "FILE", requires = "parent")]
    tls_ca: Option<PathBuf>,

    /// Let each slot take the chunks that its number says, even when it is late; a rack does as the one above does
    #[arg(long)]
    no_reassignment: bool,

    /// Seconds in which a dead worker of a dynamic job may be replaced, by one that joins with its rank, before the job fails
    #[arg(long, value_name = "SECONDS", default_value_t = 0, conflicts_with = "parent")]
    rejoin_grace: u64,

    /// Address at which Prometheus scrapes metrics; without it there are none
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,

    /// Do not restrict system calls (seccomp)
    #[arg(long)]
    no_seccomp: bool,

    /// Directory of the eBPF aggregator's pins
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

    #[command(flatten)]
    switch: SwitchArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Plane {
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

/// The role of this control plane.
enum Role {
    /// It decides on jobs.
    Root(ServerOptions),
    /// It relays its workers' messages, and executes the root's commands.
    Rack { parent: Endpoint, name: String, identity: Identity },
}

/// Serves until a signal ends it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    sumac_sandbox::limit_capabilities(&[NETWORK, START].concat())?;
    let role = args.role()?;
    let deciding = Deciding::default();
    let metrics = args.metrics.map(sumac_metrics::listen).transpose()?;
    if !matches!(args.plane, Plane::P4runtime | Plane::Bfrt) {
        args.switch.refuse()?;
    }
    match args.plane {
        Plane::Ebpf => {
            args.refuse_host_options()?;
            let plane = EbpfPlane::open(&args.pin_root)?;
            let _owner = plane.aggregator.pins().claim()?;
            // Programs are opened by number with CAP_SYS_ADMIN, which this process does not keep.
            let log = plane.aggregator.log().ok();
            let runtime = args.confined_runtime(&NETWORK)?;
            follow_log(plane.aggregator.clone(), log)?;
            let plane = Arc::new(plane);
            serve_metrics(metrics, &runtime, for_ebpf(&plane, &deciding))?;
            answer_questions(&local::ebpf_name(plane.aggregator.pins()), {
                let (plane, deciding) = (plane.clone(), deciding.clone());
                move |question| answer_for_ebpf(&plane, &deciding, &question)
            });
            runtime.block_on(serve(args.listen, plane, role, &deciding))?;
        }
        Plane::Host => {
            // For large socket buffers.
            let runtime = args.confined_runtime(&[Capability::CAP_NET_ADMIN])?;
            let plane = Arc::new(args.host_plane()?);
            serve_metrics(metrics, &runtime, for_host(&plane, &deciding))?;
            answer_questions(&local::host_name(plane.local().port()), {
                let (plane, deciding) = (plane.clone(), deciding.clone());
                move |question| answer_for_host(&plane, &deciding, &question)
            });
            let served = runtime.block_on(serve(args.listen, plane.clone(), role, &deciding));
            report(&plane);
            served?;
        }
        Plane::P4runtime => args.serve_switch(args.switch.p4runtime()?, metrics, role, &deciding)?,
        Plane::Bfrt => args.serve_switch(args.switch.bfrt()?, metrics, role, &deciding)?,
        Plane::None => {
            args.refuse_host_options()?;
            let runtime = args.confined_runtime(&[])?;
            serve_metrics(metrics, &runtime, without_plane(&deciding))?;
            runtime.block_on(serve(args.listen, Arc::new(NoDataPlane), role, &deciding))?;
        }
    }
    Ok(())
}

impl Args {
    fn serve_switch(
        &self,
        switch: Connect,
        metrics: Option<TcpListener>,
        role: Role,
        deciding: &Deciding,
    ) -> anyhow::Result<()> {
        self.refuse_host_options()?;
        let runtime = self.confined_runtime(&[])?;
        // Before the switch, which this process takes from another control plane: a second one started by mistake ends here.
        let listener = runtime.block_on(Listener::bind(self.listen))?;
        let port = switch.base_port();
        let questions = local::bind(&local::switch_name(port)).with_context(|| {
            format!(
                "another `sumac-agg serve` in this network namespace has a switch whose base_port is {port}: stop that one first"
            )
        })?;
        notify(NotifyState::ExtendTimeoutUsec(SWITCH_START.as_micros() as u32));
        let plane = Arc::new(switch.start(runtime.handle())?);
        serve_metrics(metrics, &runtime, for_switch(&plane, deciding))?;
        let answered = (plane.clone(), deciding.clone());
        let answer = move |question| answer_for_switch(&answered.0, &answered.1, &question);
        local::serve_on(questions, answer)
            .context("cannot start the thread that answers `sumac-agg status`")?;
        runtime.block_on(async { serve_on(listener, stop_signal()?, plane, role, deciding).await })
    }

    /// Drops privileges except these capabilities, and starts the control plane's threads, which have no more.
    fn confined_runtime(&self, keep: &[Capability]) -> anyhow::Result<tokio::runtime::Runtime> {
        // The port of `--listen` may be below 1024.
        let keep = [keep, &[Capability::CAP_NET_BIND_SERVICE]].concat();
        let Sandbox { capabilities, seccomp, .. } = sumac_sandbox::confine(&keep, !self.no_seccomp)?;
        tracing::info!(?capabilities, seccomp, "privileges are dropped");
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("cannot start the control plane's threads")
    }

    fn role(&self) -> anyhow::Result<Role> {
        let racks = self.rack_secret_file.as_deref().map(Credential::from_file).transpose()?;
        if let Some(parent) = &self.parent {
            let address = parent.resolve()?;
            let credential = racks.context(
                "the aggregator above lets no stranger in: give --rack-secret-file FILE with what `sumac-agg token --racks` \
                 prints there",
            )?;
            if self.plane == Plane::None {
                bail!("a rack without an aggregator adds nothing: let its workers join at the one above");
            }
            let identity = self.tls.identity(&self.state)?;
            let own = self.tls.is_given().then(|| identity.clone());
            let trust = match (&self.tls_ca, credential.fingerprint) {
                (Some(authorities), _) => Trust::from_file(authorities, own)?,
                (None, Some(fingerprint)) => Trust::Pinned(fingerprint),
                (None, None) => bail!(
                    "--rack-secret-file holds a secret without a fingerprint: give what `sumac-agg token --racks` prints at \
                     the aggregator above, or --tls-ca FILE"
                ),
            };
            let name = self.name_towards(address)?;
            return Ok(Role::Rack {
                parent: Endpoint { address, trust, secret: credential.secret },
                name,
                identity,
            });
        }
        let racks = match racks {
            Some(given) => Some(given.secret),
            None => self.state.has_rack_secret().then(|| self.state.rack_secret()).transpose()?,
        };
        if self.plane == Plane::None && racks.is_none() {
            tracing::warn!(
                "only direct jobs will run: there is no aggregator, and no parameter host can enter without the racks' secret; \
                 `sumac-agg token --racks` makes it"
            );
        }
        Ok(Role::Root(ServerOptions {
            identity: self.tls.identity(&self.state)?,
            secrets: Secrets { default: self.default_secret()?, jobs: self.job_secrets()?, racks },
            state_dir: self.state.path(),
            stealing: !self.no_reassignment,
            rejoin_grace: Duration::from_secs(self.rejoin_grace),
        }))
    }

    fn job_secrets(&self) -> anyhow::Result<HashMap<String, Secret>> {
        let secret = |(job, file): &(String, PathBuf)| Ok((job.clone(), Credential::from_file(file)?.secret));
        self.job_secret.iter().map(secret).collect()
    }

    /// The secret of jobs without one of their own.
    fn default_secret(&self) -> anyhow::Result<Option<Secret>> {
        match &self.secret_file {
            Some(file) => Ok(Some(Credential::from_file(file)?.secret)),
            None if self.job_secret.is_empty() => Ok(Some(self.state.job_secret()?)),
            None => Ok(None),
        }
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
}

async fn serve<P: DataPlane>(
    listen: SocketAddr,
    plane: Arc<P>,
    role: Role,
    deciding: &Deciding,
) -> anyhow::Result<()> {
    // Before the socket: whoever sees it open may send a signal.
    let stop = stop_signal()?;
    serve_on(Listener::bind(listen).await?, stop, plane, role, deciding).await
}

/// Returns the wait for a signal that ends the process; none that comes from now on is missed.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        let name = tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "ending all jobs");
    })
}

async fn serve_on<P: DataPlane>(
    listener: Listener,
    stop: impl Future<Output = ()> + Send,
    plane: Arc<P>,
    role: Role,
    deciding: &Deciding,
) -> anyhow::Result<()> {
    let info = plane.info()?;
    match role {
        Role::Root(options) => {
            let listening = Listening::on(listener, plane.clone(), options);
            announce(listening.address(), &info, plane);
            let monitor = listening.monitor();
            let monitor = deciding.get_or_init(|| monitor).clone();
            answer_questions(&local::control_name(listening.address().port()), move |question| {
                answer_for_control(&monitor, &question)
            });
            listening.serve(stop).await?;
        }
        Role::Rack { parent, name, identity } => {
            tracing::info!(parent = %parent.address, name, "a rack's aggregator, below another");
            let server = RackServer::on(listener, plane.clone(), identity, parent, name);
            announce(server.address(), &info, plane);
            server.serve(stop).await?;
        }
    }
    Ok(())
}

fn announce<P: DataPlane>(control: SocketAddr, info: &PlaneInfo, plane: Arc<P>) {
    tracing::info!(
        %control, plane = info.kind.name(), slots = info.slots, elements = info.max_elements,
        data_port = info.base_port, shards = info.shards, "waiting for workers"
    );
    notify(NotifyState::Ready);
    if let Some(timeout) = sd_notify::watchdog_enabled() {
        tokio::spawn(async move {
            loop {
                if plane.is_alive() {
                    notify(NotifyState::Watchdog);
                }
                tokio::time::sleep(timeout / 3).await;
            }
        });
    }
}

/// Notifies systemd, if it has started the process with a notification socket.
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use sumac_control::tls::write_private;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &[&str]) -> Args {
        Line::try_parse_from([&["serve"], line].concat()).unwrap().args
    }

    #[test]
    fn secrets_are_made_or_given_and_host_options_belong_to_the_host_plane() {
        let directory = std::env::temp_dir().join(format!("sumac-serve-{}", std::process::id()));
        let state = directory.display().to_string();
        let with = |line: &[&str]| args(&[line, &["--state-dir", &state]].concat()).role();
        let refused = |line: &[&str]| with(line).err().unwrap().to_string();
        let token = directory.join("token");
        std::fs::create_dir_all(&directory).unwrap();
        let given = directory.join("given");
        write_private(&given, b"a secret of some length").unwrap();
        let given = given.display().to_string();
        let train = format!("train={given}");
        let default = |line: &[&str]| match with(line).unwrap() {
            Role::Root(options) => options.secrets,
            Role::Rack { .. } => panic!("a rack without a parent"),
        };
        assert!(default(&[]).default.is_some(), "made in the state directory");
        assert_eq!(default(&[]).default, default(&[]).default, "once");
        assert!(default(&["--job-secret", &train]).default.is_none());
        assert!(default(&["--secret-file", &given]).racks.is_none(), "no worker passes for a rack");
        assert!(refused(&["--parent", "127.0.0.1:48600"]).contains("--rack-secret-file"));
        let bare = ["--plane", "none"];
        assert!(default(&bare).racks.is_none(), "no parameter host enters, and direct jobs run");
        let racks = ["--rack-secret-file", &given];
        assert!(with(&[&bare[..], &racks].concat()).is_ok());
        let rack = [&["--plane", "none", "--parent", "127.0.0.1:48600"][..], &racks].concat();
        assert!(refused(&rack).contains("adds nothing"));
        let rack = [&["--parent", "127.0.0.1:48600"][..], &racks].concat();
        assert!(refused(&rack).contains("without a fingerprint"));
        let printed = sumac_control::JoinToken {
            fingerprint: sumac_control::Fingerprint([1; 32]),
            secret: Secret::new("the racks' secret").unwrap(),
        };
        write_private(&token, printed.to_string().as_bytes()).unwrap();
        let line = ["--parent", "127.0.0.1:48600", "--rack-secret-file", token.to_str().unwrap()];
        assert!(matches!(with(&line).unwrap(), Role::Rack { .. }));
        std::fs::remove_dir_all(&directory).unwrap();
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
