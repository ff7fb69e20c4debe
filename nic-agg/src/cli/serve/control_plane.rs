//! The running control plane: its listener, the signals that end it, and its notifications to systemd.

use std::{net::SocketAddr, sync::Arc};

use sd_notify::NotifyState;
use sumac_agg::local;
use sumac_control::{
    DataPlane,
    plane::PlaneInfo,
    rack::RackServer,
    server::{Listener, Listening},
};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    answers::{Deciding, about_control, answer_questions},
    role::Role,
};

pub async fn serve<P: DataPlane>(
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
pub fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        let name = tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "ending all jobs");
    })
}

pub async fn serve_on<P: DataPlane>(
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
            answer_questions(&local::control_name(listening.address().port()), about_control(Some(monitor)));
            listening.serve(stop).await?;
        }
        Role::Rack { parent, name, identity } => {
            tracing::info!(parent = %parent.address, name, "a rack's aggregator, below another");
            let server = RackServer::on(listener, plane.clone(), identity, parent, name);
            announce(server.address(), &info, plane);
            answer_questions(&local::control_name(server.address().port()), about_control(None));
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
pub fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
