//! Attaches XDP programs to interfaces: anew, in place of a former program, or in another mode.

use std::{
    error::Error as _,
    io, thread,
    time::{Duration, Instant},
};

use aya::programs::{
    ProgramError, Xdp,
    links::{FdLink, PinnedLink},
    xdp::{XdpLink, XdpMode as AyaMode},
};
use nix::errno::Errno;
use thiserror::Error;

use crate::{
    interface::Interface,
    mode::{BoundXdpMode, XdpMode},
    pins::{self, PinDirectory, PinError},
    program::{self, errno},
};

/// The time within which the kernel detaches a program whose last handle was closed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Error)]
pub enum AttachError {
    #[error("no interface {interface} in this network namespace: {source}; see `ip link`")]
    Interface { interface: String, source: io::Error },
    #[error(
        "{interface} carries XDP program {id} ({mode}) which is not Sumac's; if it is stale remove it: \
         ip link set dev {interface} xdp off"
    )]
    Occupied { interface: String, id: u32, mode: BoundXdpMode },
    #[error("could not attach to {interface} in {mode} mode: {advice} ({})", innermost(.source))]
    Bind { interface: String, mode: BoundXdpMode, source: Box<ProgramError>, advice: String },
    #[error(
        "could not attach to {interface}: this kernel makes no XDP link that outlives the process; 5.15 does"
    )]
    NoLink { interface: String },
    #[error(transparent)]
    Pins(#[from] PinError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    pub mode: BoundXdpMode,
    /// The reason for which `auto` fell back to generic mode, if it did.
    pub fallback: Option<String>,
}

/// An interface, and the program of Sumac's on it, if there is one, by its pinned link.
pub struct XdpAttachment<'a> {
    pub interface: Interface,
    /// Whether a link was pinned whose interface is gone. Its pin was removed.
    pub was_stale: bool,
    pins: &'a PinDirectory,
    link: String,
    current: Option<(PinnedLink, BoundXdpMode)>,
}

impl<'a> XdpAttachment<'a> {
    /// Looks up the program on an interface and the link pinned as `link`.
    ///
    /// # Errors
    /// [`AttachError::Occupied`] when the interface has a program that is not the link's.
    pub fn find(interface: &str, pins: &'a PinDirectory, link: &str) -> Result<Self, AttachError> {
        let interface = Interface::by_name(interface)
            .map_err(|source| AttachError::Interface { interface: interface.to_owned(), source })?;
        let (mut current, mut was_stale) = (None, false);
        let path = pins.pin(link);
        if path.exists() {
            let id = pins.linked_program(link)?;
            match interface.xdp.iter().find(|program| program.id == id) {
                Some(program) => {
                    let pinned =
                        PinnedLink::from_pin(&path).map_err(|source| PinError::Link { path, source })?;
                    current = Some((pinned, *program));
                }
                None => was_stale = pins.remove(link)?,
            }
        }
        let id = current.as_ref().map(|(_, program)| program.id);
        if let Some(foreign) = interface.xdp.iter().find(|program| Some(program.id) != id) {
            let (id, mode) = (foreign.id, foreign.mode);
            return Err(AttachError::Occupied { interface: interface.name, id, mode });
        }
        let current = current.map(|(link, program)| (link, program.mode));
        Ok(Self { interface, was_stale, pins, link: link.to_owned(), current })
    }

    /// Returns the mode of Sumac's program on the interface; `None` when there is none.
    pub fn bound_mode(&self) -> Option<BoundXdpMode> {
        self.current.as_ref().map(|(_, mode)| *mode)
    }

    /// Attaches `program` and pins its link.
    ///
    /// A program in an accepted mode is replaced in one step: no frame meets the interface without a program. Only a
    /// change between driver and generic mode detaches in between; when the new program cannot be attached then, the
    /// former one, pinned as [`pins::PROGRAM`], is attached again.
    pub fn attach(mut self, program: &mut Xdp, asked: XdpMode) -> Result<Bound, AttachError> {
        match self.current.take() {
            Some((link, mode)) if asked.accepts(mode) => self.replace(program, link, mode),
            Some((link, mode)) => self.change_mode(program, link, mode, asked),
            None => self.bind(program, asked),
        }
    }

    fn replace(&self, program: &mut Xdp, link: PinnedLink, mode: BoundXdpMode) -> Result<Bound, AttachError> {
        let link = XdpLink::try_from(FdLink::from(link))
            .map_err(|source| PinError::Link { path: self.pins.pin(&self.link), source })?;
        program.attach_to_link(link).map_err(|source| self.refused(mode, source))?;
        Ok(Bound { mode, fallback: None })
    }

    fn change_mode(
        &self,
        program: &mut Xdp,
        link: PinnedLink,
        old_mode: BoundXdpMode,
        asked: XdpMode,
    ) -> Result<Bound, AttachError> {
        let interface = &self.interface.name;
        tracing::warn!(
            interface,
            "leaving {old_mode} mode: the interface has no program for a moment, and its frames go to the kernel"
        );
        let mut former = program::open_pinned(&self.pins.pin(pins::PROGRAM));
        let path = self.pins.pin(&self.link);
        // Unpinned before it is closed: the last handle detaches.
        drop(link.unpin().map_err(PinError::at(&path))?);
        wait_for_release(interface);
        self.bind(program, asked).inspect_err(|_| {
            let restored = match &mut former {
                Ok(former) => self.bind_in(former, old_mode).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = restored {
                tracing::error!(interface, "the former program could not be attached again: {error}");
            }
        })
    }

    fn bind(&self, program: &mut Xdp, asked: XdpMode) -> Result<Bound, AttachError> {
        let mode = match asked {
            XdpMode::Generic => BoundXdpMode::Generic,
            XdpMode::Auto | XdpMode::Driver => BoundXdpMode::Driver,
        };
        match self.bind_in(program, mode) {
            Err(error @ AttachError::Bind { .. }) if asked == XdpMode::Auto => {
                tracing::warn!("{error}; falling back to generic mode, which is several times slower");
                self.bind_in(program, BoundXdpMode::Generic)?;
                Ok(Bound { mode: BoundXdpMode::Generic, fallback: Some(error.to_string()) })
            }
            outcome => outcome.map(|()| Bound { mode, fallback: None }),
        }
    }

    fn bind_in(&self, program: &mut Xdp, mode: BoundXdpMode) -> Result<(), AttachError> {
        let flag = if mode == BoundXdpMode::Generic { AyaMode::Skb } else { AyaMode::Driver };
        let link = program
            .attach_to_if_index(self.interface.index, flag)
            .and_then(|id| program.take_link(id))
            .map_err(|source| self.refused(mode, source))?;
        let link = FdLink::try_from(link)
            .map_err(|_| AttachError::NoLink { interface: self.interface.name.clone() })?;
        let path = self.pins.pin(&self.link);
        link.pin(&path).map_err(|source| PinError::Pin { path, source: Box::new(source) })?;
        Ok(())
    }

    fn refused(&self, mode: BoundXdpMode, source: ProgramError) -> AttachError {
        let interface = self.interface.name.clone();
        let advice = advice(errno(&source), &interface);
        AttachError::Bind { interface, mode, source: Box::new(source), advice }
    }
}

/// Waits until an interface has no program, for [`RELEASE_TIMEOUT`] at most. The kernel releases a pinned link only
/// after all readers of its bpffs, and a process that was forked a moment ago holds its parent's handles.
fn wait_for_release(interface: &str) {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    let is_bound = || Interface::by_name(interface).is_ok_and(|interface| !interface.xdp.is_empty());
    while is_bound() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
    }
}

fn advice(refusal: Option<Errno>, interface: &str) -> String {
    match refusal {
        Some(Errno::EOPNOTSUPP) => "its driver has no XDP; use --mode generic".to_owned(),
        Some(Errno::ERANGE) => format!(
            "its MTU, or its peer's, is too large for this program: ip link set dev {interface} mtu 1500, on both ends \
             of a veth; or more than 3506 on both, or --jumbo at an aggregator"
        ),
        Some(Errno::EINVAL) => {
            "the driver refused it; often an MTU above one page, LRO or too few queues; see dmesg".to_owned()
        }
        Some(Errno::EBUSY | Errno::EEXIST) => {
            format!("another XDP program was attached meanwhile: ip link show dev {interface}")
        }
        Some(Errno::EPERM) => "not permitted; run as root".to_owned(),
        _ => "see dmesg".to_owned(),
    }
}

/// Returns the text of an error's first cause: those around it name the system call only.
fn innermost(error: &ProgramError) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match error.source() {
        Some(_) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
