//! Watches the data path's interface and threads while the daemon runs.

use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use sd_notify::NotifyState;
use sumac_loader::Interface;
use sumac_transport::JobError;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::state::DaemonState;

/// The interval between two looks at the interface.
const INTERVAL: Duration = Duration::from_millis(500);

/// Fails the jobs when the interface of the XDP backend is removed, opens it again when it was made anew, and
/// follows its MAC address. A job whose aggregator still has the former one ends when no probe is answered.
pub(crate) async fn interface(daemon: Arc<DaemonState>) {
    let mut is_lost = false;
    while let Some((name, opened)) = daemon.backend.interface() {
        sleep(INTERVAL).await;
        let asked = name.clone();
        // Off this thread, which answers the control plane: the kernel may be reconfiguring a NIC, under a
        // lock, for seconds.
        let found = match spawn_blocking(move || Interface::by_name(&asked)).await {
            Ok(Ok(interface)) => Some(interface),
            Ok(Err(error)) if error.raw_os_error() == Some(Errno::ENODEV as i32) => None,
            // The look-up failed, for example without free descriptors; the interface may be there.
            Ok(Err(_)) | Err(_) => continue,
        };
        if let Some(interface) = found.as_ref().filter(|interface| interface.index == opened) {
            if let Some(mac) = interface.mac().filter(|mac| *mac != daemon.backend.local().mac) {
                tracing::warn!(
                    interface = name,
                    address = interface.address,
                    "the interface has another MAC address"
                );
                daemon.backend.set_mac(mac);
            }
            continue;
        }
        if !is_lost {
            let reason = format!("interface {name} of this host was removed, or made anew");
            tracing::warn!(interface = name, "the interface is another than before; all jobs end");
            daemon.core.call(|host, _, out| host.fail_all(&JobError::PathLost { reason }, out));
        }
        is_lost = true;
        if found.is_none() {
            continue;
        }
        let state = daemon.clone();
        match spawn_blocking(move || state.backend.reopen(&state.config)).await {
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
        if spawn_blocking(move || state.backend.datapath.is_alive()).await.unwrap_or(false) {
            daemon.service.notify(&NotifyState::Watchdog);
        }
        sleep(timeout / 3).await;
    }
}
