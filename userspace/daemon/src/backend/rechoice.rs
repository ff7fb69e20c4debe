//! The choice of `auto`, made again while the backend is UDP for something that was missing: an interface, an
//! address, a route or a neighbour may come after the daemon, at boot above all.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sumac_api::{Code, Failure};

use super::setup::{FormerJobs, Setup, data_path, udp_beside, xdp};
use super::users::{Fallback, InUse};
use super::{Backend, BackendError, start_datapath, stop};

impl Backend {
    /// Returns the reason of a fallback; empty without one.
    pub(crate) fn fallback(&self) -> String {
        self.name_and_fallback().1
    }

    /// Returns whether the backend is UDP for something that may still come.
    pub(crate) fn may_become_xdp(&self) -> bool {
        self.fallback_state().as_ref().is_some_and(|fallback| fallback.may_end)
    }

    /// Waits until AF_XDP is chosen after the start; for ever where it was chosen then.
    pub(crate) async fn chosen_later(&self) {
        self.later.wait().await;
    }

    /// The backend's name, and the reason where it is not the requested one, both of the same moment.
    pub(crate) fn name_and_fallback(&self) -> (&'static str, String) {
        let fallback = self.fallback_state();
        (self.name(), fallback.as_ref().map_or_else(String::new, |fallback| fallback.reason.clone()))
    }

    /// Keeps the backend for a job. Waits for a choice that is being made.
    pub(crate) async fn in_use(&self) -> InUse {
        self.users.lock.clone().read_owned().await
    }

    /// As [`Backend::in_use`]; `None` while the choice is being made.
    pub(crate) fn try_in_use(&self) -> Option<InUse> {
        self.users.lock.clone().try_read_owned().ok()
    }

    /// Makes the choice again, if what was missing may have come and there are no jobs. It may wait for ARP.
    pub(crate) fn choose_again(&self) {
        let _choice = self.users.choice.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.may_become_xdp() {
            return;
        }
        // The longest wait is here, where jobs may begin meanwhile.
        if let Err(error) = data_path(&self.config, &self.control) {
            return self.fall_back(&error);
        }
        let Some(_none) = self.users.none() else {
            let jobs = "its path is there by now, and the choice is made again when no job is open";
            return self.fall_back(&BackendError::NotYet(jobs.into()));
        };
        let chosen =
            xdp(&self.config, &self.control, FormerJobs::Removed).and_then(|setup| self.change(setup));
        if let Err(error) = chosen {
            self.fall_back(&error);
        }
    }

    /// Continues over AF_XDP, without jobs.
    fn change(&self, setup: Setup) -> Result<(), BackendError> {
        let udp = udp_beside(&self.config, &setup);
        let (local, Some(mut admitted), ios) = setup else { return Ok(()) };
        if let Some(udp) = udp.first() {
            // As below.
            let _ = self.udp_beside.set(*udp.local().ip());
        }
        admitted.follow_log();
        let datapath = start_datapath(ios, udp, &self.config, &self.sink)?;
        // With it, so that none is given for AF_XDP.
        let mut fallback = self.fallback_state();
        // Both are set here only, once.
        let _ = (self.admitted.set(Mutex::new(admitted)), self.later.set(datapath));
        *self.local.lock().unwrap_or_else(PoisonError::into_inner) = local;
        *fallback = None;
        drop(fallback);
        stop(&self.first, "udp");
        tracing::info!("backend auto: AF_XDP from here on; what was missing has come");
        Ok(())
    }

    fn fall_back(&self, error: &BackendError) {
        let fallback = Fallback::because(error);
        let mut known = self.fallback_state();
        if known.as_ref() != Some(&fallback) {
            tracing::warn!(%error, "backend auto: still UDP");
            *known = Some(fallback);
        }
    }

    pub(crate) fn fallback_state(&self) -> MutexGuard<'_, Option<Fallback>> {
        self.fallback.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to a job's failure that the backend is not the one that `auto` prefers, and why.
    pub(crate) fn explain(&self, failure: Failure) -> Failure {
        let reason = self.fallback();
        let by_path = matches!(failure.code, Code::Unsupported | Code::Unreachable | Code::Handshake);
        if reason.is_empty() || !by_path {
            return failure;
        }
        let message = format!("{}; the backend `auto` is UDP: {reason}", failure.message);
        let hint = "see `sumac doctor` and `sumac status`: the choice is made again before each job";
        Failure { message: message.into(), hint: hint.into(), ..failure }
    }
}
