//! Watches the data path's interface and threads while the daemon runs.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use sumac_api::Failure;
use sumac_host::JobId;
use sumac_loader::Interface;
use sumac_netutil::Changes;
use sumac_transport::JobError;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::backend::{Backend, Followed};
use crate::core::Core;
use crate::job::blocking;
use crate::state::DaemonState;

/// The interval between two looks at the interface.
const INTERVAL: Duration = Duration::from_millis(500);

/// The time between two choices of the backend while nothing is known to have changed: a neighbour that
/// answers again is no event before it is asked.
const CHOICE_INTERVAL: Duration = Duration::from_secs(5);

/// Makes the choice of the backend `auto` again when the network changes, until nothing can come of it or it
/// is AF_XDP; then watches the interface.
pub(crate) async fn backend(daemon: Arc<DaemonState>) {
    if daemon.backend.may_become_xdp() {
        choices(&daemon).await;
    }
    interface(daemon).await;
}

/// Makes the choice again while it may become AF_XDP. The socket for changes of the network is open as long.
async fn choices(daemon: &DaemonState) {
    let changes = Changes::open();
    if let Err(error) = &changes {
        tracing::warn!(%error, "changes of the network are noticed late");
    }
    let has_changed = || changes.as_ref().is_ok_and(|changes| changes.any().unwrap_or(false));
    let mut chosen = Instant::now();
    while daemon.backend.may_become_xdp() {
        sleep(INTERVAL).await;
        if !has_changed() && chosen.elapsed() < CHOICE_INTERVAL {
            continue;
        }
        // Fails when the daemon stops.
        let _ = choose_again(&daemon.core, &daemon.backend).await;
        // Discards the events of the ARP entries that the choice itself made.
        has_changed();
        chosen = Instant::now();
    }
}

/// Makes the choice of the backend `auto` again, where something else may come of it.
pub(crate) async fn choose_again(core: &Core, backend: &Arc<Backend>) -> Result<(), Failure> {
    if !backend.may_become_xdp() {
        return Ok(());
    }
    let choosing = backend.clone();
    blocking(move || choosing.choose_again()).await?;
    core.call(|host, _, _| host.set_backend(backend.name()));
    Ok(())
}

/// Follows the interface's name and addresses. When another address takes the place of one that is gone, all
/// jobs but `beginning` end.
pub(crate) async fn follow(
    core: &Core,
    backend: &Arc<Backend>,
    beginning: Option<JobId>,
) -> Result<io::Result<Followed>, Failure> {
    // Off this thread, which answers the control plane: the kernel may be reconfiguring a NIC, under a lock,
    // for seconds.
    let following = backend.clone();
    let followed = blocking(move || following.follow()).await?;
    match &followed {
        Ok(Followed::Readdressed(reason)) => {
            log_limited!(warn, reason, "the data path has another address; jobs with the former one end");
            let error = JobError::PathLost { reason: reason.clone() };
            core.call(|host, _, out| host.fail_all(beginning, &error, out));
        }
        // It may be the same again in a moment: a job whose packets do not arrive meanwhile ends by its
        // silence.
        Ok(Followed::NoAddress(reason)) => log_limited!(warn, reason, "the data path has no address"),
        Ok(Followed::Same | Followed::Gone) | Err(_) => {}
    }
    Ok(followed)
}

/// Follows the interface of the XDP backend; fails the jobs when it is removed, and opens it again when it
/// was made anew. A job whose aggregator still has the former MAC address ends when no probe is answered.
async fn interface(daemon: Arc<DaemonState>) {
    let mut is_lost = false;
    while let Some((name, _)) = daemon.backend.interface() {
        sleep(INTERVAL).await;
        // The look-up may fail, for example without free descriptors, while the interface is there.
        let Ok(Ok(followed)) = follow(&daemon.core, &daemon.backend, None).await else { continue };
        if followed != Followed::Gone {
            continue;
        }
        if !is_lost {
            let reason = format!("interface {name} of this host was removed, or made anew");
            tracing::warn!(interface = name, "the interface is another than before; all jobs end");
            daemon.core.call(|host, _, out| host.fail_all(None, &JobError::PathLost { reason }, out));
        }
        is_lost = true;
        let asked = name.clone();
        if !matches!(spawn_blocking(move || Interface::by_name(&asked)).await, Ok(Ok(_))) {
            continue;
        }
        let state = daemon.clone();
        match spawn_blocking(move || state.backend.reopen()).await {
            Ok(Ok(())) => {
                tracing::info!(interface = name, "the interface is in service again");
                is_lost = false;
            }
            Ok(Err(error)) => tracing::warn!(interface = name, %error, "cannot open the interface yet"),
            Err(error) => tracing::error!(%error, "opening the interface panicked; please report it"),
        }
    }
}

/// Notifies systemd's watchdog, if there is one, as long as the data path's threads answer.
pub(crate) async fn watchdog(daemon: Arc<DaemonState>) {
    let Some(timeout) = daemon.service.watchdog else { return };
    loop {
        let state = daemon.clone();
        if spawn_blocking(move || state.backend.datapath().is_alive()).await.unwrap_or(false) {
            daemon.service.notify(&NotifyState::Watchdog);
        }
        sleep(timeout / 3).await;
    }
}
