//! `sumac-agg serve`: the control plane that lets remote daemons open jobs on this aggregator.

mod answers;
mod args;
mod control_plane;
mod host;
mod log;
mod metrics;
mod role;
mod switch;

use std::{net::TcpListener, sync::Arc, time::Duration};

use anyhow::Context as _;
use sd_notify::NotifyState;
use sumac_agg::{local, plane::EbpfPlane};
use sumac_control::{NoDataPlane, server::Listener};
use sumac_sandbox::{Capability, NETWORK, START, Sandbox};

pub use self::args::Args;
use self::{
    answers::{Deciding, about_plane, answer_questions},
    args::Plane,
    control_plane::{notify, serve, serve_on, stop_signal},
    log::{follow_log, report},
    metrics::{of_plane, serve_metrics, without_plane},
    role::Role,
    switch::Connect,
};

/// The longest start of a switch, for systemd: it answers, and loads the program.
const SWITCH_START: Duration = Duration::from_secs(180);

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
            serve_metrics(metrics, &runtime, of_plane(&plane, &deciding))?;
            let name = local::ebpf_name(plane.aggregator.pins());
            answer_questions(&name, about_plane(&plane, &deciding));
            runtime.block_on(serve(args.listen, plane, role, &deciding))?;
        }
        Plane::Host => {
            // For large socket buffers.
            let runtime = args.confined_runtime(&[Capability::CAP_NET_ADMIN])?;
            let plane = Arc::new(args.host_plane()?);
            serve_metrics(metrics, &runtime, of_plane(&plane, &deciding))?;
            let name = local::host_name(plane.local().port());
            answer_questions(&name, about_plane(&plane, &deciding));
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
        // Before the switch, which this process takes from another control plane: a second one started by
        // mistake ends here.
        let listener = runtime.block_on(Listener::bind(self.listen))?;
        let port = switch.base_port();
        let questions = local::bind(&local::switch_name(port)).with_context(|| {
            format!(
                "another `sumac-agg serve` in this network namespace has a switch whose base_port is {port}: \
                stop that one first"
            )
        })?;
        notify(NotifyState::ExtendTimeoutUsec(SWITCH_START.as_micros() as u32));
        let plane = Arc::new(switch.start(runtime.handle())?);
        serve_metrics(metrics, &runtime, of_plane(&plane, deciding))?;
        local::serve_on(questions, about_plane(&plane, deciding))
            .context("cannot start the thread that answers `sumac-agg status`")?;
        runtime.block_on(async { serve_on(listener, stop_signal()?, plane, role, deciding).await })
    }

    /// Drops privileges except these capabilities, and starts the control plane's threads, which have no
    /// more.
    fn confined_runtime(&self, keep: &[Capability]) -> anyhow::Result<tokio::runtime::Runtime> {
        // The port of `--listen` may be below 1024.
        let keep = [keep, &[Capability::CAP_NET_BIND_SERVICE]].concat();
        let Sandbox { capabilities, seccomp, .. } = sumac_sandbox::confine(&keep, !self.no_seccomp)?;
        sumac_log::in_background().context("cannot start the thread that writes the log")?;
        tracing::info!(?capabilities, seccomp, "privileges are dropped");
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("cannot start the control plane's threads")
    }
}
