//! The backend between two daemons of a live upgrade.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use sumac_datapath::UdpFrameIo;

use super::setup::{FormerJobs, udp_beside, udp_of, xdp};
use super::{Backend, BackendError, Fallback, PreparedBackend};
use crate::config::Config;

/// The longest wait for queues of AF_XDP that another daemon has just left.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(3);
const REOPEN_PAUSE: Duration = Duration::from_millis(20);

/// The backend of a daemon that hands over.
pub(crate) struct HandedBackend {
    /// The UDP sockets of each shard, also those beside AF_XDP.
    pub(crate) sockets: Vec<Vec<OwnedFd>>,
    pub(crate) fallback: Option<Fallback>,
    pub(crate) is_xdp: bool,
}

impl Backend {
    /// Sets up the backend of another daemon, which has frozen it: with its UDP sockets, or with sockets of
    /// its own where the other one has closed those of AF_XDP.
    pub(crate) fn take_over(
        config: &Config,
        control: Vec<SocketAddr>,
        handed: HandedBackend,
    ) -> Result<PreparedBackend, BackendError> {
        let HandedBackend { sockets, fallback, is_xdp } = handed;
        let deadline = Instant::now() + REOPEN_TIMEOUT;
        let mut udp = Vec::new();
        let setup = if !is_xdp {
            udp_of(config, sockets)?
        } else {
            // A thread may have none.
            let sockets = sockets.into_iter().filter(|shard| !shard.is_empty()).collect();
            let from_handed = |source| BackendError::Udp { address: Ipv4Addr::UNSPECIFIED, source };
            udp = UdpFrameIo::from_sockets(sockets).map_err(from_handed)?;
            loop {
                match xdp(config, &control, FormerJobs::Kept) {
                    // The kernel releases a queue some time after its socket was closed.
                    Err(error) if Instant::now() < deadline => {
                        tracing::debug!(%error, "the queues are not free yet");
                    }
                    setup => break setup?,
                }
                std::thread::sleep(REOPEN_PAUSE);
            }
        };
        if udp.is_empty() {
            udp = udp_beside(config, &setup);
        }
        Ok(PreparedBackend { setup, udp, fallback, control })
    }

    /// Closes the sockets of AF_XDP, and lets another daemon claim the program. Returns whether every frame
    /// is accounted for.
    pub(crate) fn close_interface(&self) -> bool {
        let is_conserved = self.datapath().close_io();
        if let Some(mut admitted) = self.admitted() {
            admitted.program.release();
        }
        is_conserved
    }

    /// Opens the sockets of AF_XDP again, after another daemon has not taken over.
    pub(crate) fn open_interface(&self) -> Result<(), BackendError> {
        let deadline = Instant::now() + REOPEN_TIMEOUT;
        loop {
            match self.reopen() {
                Err(error) if Instant::now() < deadline => {
                    tracing::debug!(%error, "the queues are not free yet");
                }
                reopened => return reopened,
            }
            std::thread::sleep(REOPEN_PAUSE);
        }
    }
}
