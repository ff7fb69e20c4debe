//! Whether frames arrive after a zero-copy bind. A driver may bind, and the queue then receive nothing: the
//! wake-up of igb in Linux 6.16 raises the interrupt of the transmit queue. Unless the receive queue shares
//! it, the chunks that are filled after the bind never come to the NIC.

use std::net::SocketAddr;

use sumac_netutil::neighbour;

/// The reason for copy mode where zero-copy was tried.
const SILENT: &str = "zero-copy: the driver bound the queues, and then no frame arrived";

/// Opens sockets, and opens them again in copy mode where zero-copy receives nothing. `refuse`: makes that an
/// error in place of copy mode.
///
/// `open` opens them in the configured mode, or in copy mode for a reason. `answers`: whether a peer answers
/// over the interface; `None` when there is none to ask. A peer that is silent in copy mode, too, may be off:
/// then zero-copy stays, unless `open` fails.
pub(super) fn open_and_verify<S, E>(
    refuse: Option<fn(String) -> E>,
    mut open: impl FnMut(Option<&'static str>) -> Result<S, E>,
    is_zero_copy: impl Fn(&S) -> bool,
    mut answers: impl FnMut() -> Option<bool>,
) -> Result<S, E> {
    let sockets = open(None)?;
    if !is_zero_copy(&sockets) || answers() != Some(false) {
        return Ok(sockets);
    }
    // A queue has one socket.
    drop(sockets);
    let copying = open(Some(SILENT))?;
    if answers() != Some(true) {
        tracing::warn!(
            "no frame arrived over zero-copy sockets, nor in copy mode: the control plane's host or router \
            may be off; continuing with zero-copy"
        );
        drop(copying);
        return open(None);
    }
    if let Some(refuse) = refuse {
        return Err(refuse(format!(
            "{SILENT}, while copy mode works: a fault of the driver; use mode auto or copy, or another kernel"
        )));
    }
    tracing::warn!("{SILENT}; continuing in copy mode, which works");
    Ok(copying)
}

/// Asks the next hops towards the control plane, as far as they are on the interface. Returns whether one of
/// them answers; `None` when there is none to ask.
pub(super) fn answers(interface: &str, control: &[SocketAddr]) -> Option<bool> {
    let mut any = None;
    for address in control {
        let SocketAddr::V4(address) = address else { continue };
        if !neighbour::outlet(*address.ip()).is_ok_and(|ifname| ifname == interface) {
            continue;
        }
        match neighbour::answers(*address.ip()) {
            Ok(Some(true)) => return Some(true),
            Ok(answer) => any = any.or(answer),
            Err(error) => tracing::debug!(%error, "cannot ask whether frames arrive"),
        }
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Mode {
        ZeroCopy,
        Copy,
    }

    #[test]
    fn a_zero_copy_queue_that_receives_nothing_is_opened_in_copy_mode() {
        use Mode::{Copy, ZeroCopy};
        let yes = |_| Some(true);
        // Case, what the driver binds, whether zero-copy is required, the answers in each mode, the modes
        // that are opened in turn; the last one stays.
        type Answers = fn(Mode) -> Option<bool>;
        type Row = (&'static str, Mode, bool, Answers, &'static [Mode], bool);
        let table: [Row; 7] = [
            ("zero-copy works", ZeroCopy, false, yes, &[ZeroCopy], true),
            ("no zero-copy: nothing is asked", Copy, false, |_| Some(false), &[Copy], true),
            ("no peer to ask", ZeroCopy, false, |_| None, &[ZeroCopy], true),
            ("deaf", ZeroCopy, false, |mode| Some(mode == Copy), &[ZeroCopy, Copy], true),
            ("deaf and required", ZeroCopy, true, |mode| Some(mode == Copy), &[ZeroCopy, Copy], false),
            ("the peer is off", ZeroCopy, false, |_| Some(false), &[ZeroCopy, Copy, ZeroCopy], true),
            ("off and required", ZeroCopy, true, |_| Some(false), &[ZeroCopy, Copy, ZeroCopy], true),
        ];
        for (case, bound, required, answers, expected, is_ok) in table {
            let opened = std::cell::RefCell::new(Vec::new());
            let open = |copy: Option<&str>| {
                let mode = if copy.is_some() { Copy } else { bound };
                opened.borrow_mut().push(mode);
                Ok(mode)
            };
            let ask = || opened.borrow().last().copied().and_then(answers);
            let refuse = required.then_some(std::convert::identity as fn(String) -> String);
            let outcome = open_and_verify(refuse, open, |mode| *mode == ZeroCopy, ask);
            assert_eq!(*opened.borrow(), expected, "{case}");
            match outcome {
                Ok(mode) => assert!(is_ok && Some(&mode) == expected.last(), "{case}: {mode:?}"),
                Err(error) => assert!(!is_ok && error.contains("no frame arrived"), "{case}"),
            }
        }
    }
}
