//! Attaches XDP programs to interfaces: anew, in place of a former program, or in another mode.

use std::{
    io,
    path::{Path, PathBuf},
    thread,
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
    chain::chain,
    interface::Interface,
    mode::{BoundXdpMode, XdpMode},
    pins::{PinDirectory, PinError},
    program::{self, LoadError, ProgramOwner, errno},
    replace::FormerLink,
};

/// The time within which the kernel detaches a program whose last handle was closed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Error)]
pub enum AttachError {
    #[error("no interface {interface} in this network namespace: {source}; see `ip link`")]
    Interface { interface: String, source: io::Error },
    #[error("{interface} carries XDP program {id} ({mode}), {}", .owner.advice(interface))]
    Occupied { interface: String, id: u32, mode: BoundXdpMode, owner: ProgramOwner },
    #[error("could not attach to {interface} in {mode} mode: {advice} ({})", chain(.source.as_ref()))]
    Bind { interface: String, mode: BoundXdpMode, source: Box<ProgramError>, advice: String },
    #[error(
        "could not attach to {interface}: this kernel makes no XDP link that outlives the process; 5.15 does"
    )]
    NoLink { interface: String },
    #[error(
        "the program on {interface} is gone again, or its link at {} is: did another command detach \
        it?", .link.display()
    )]
    Gone { interface: String, link: PathBuf },
    #[error(transparent)]
    Pins(#[from] PinError),
    #[error(transparent)]
    Load(#[from] LoadError),
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
    /// Whether a link is pinned whose interface is gone.
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
        if path.try_exists().map_err(PinError::at(&path))? {
            let id = pins.linked_program(link)?;
            match interface.xdp.iter().find(|program| program.id == id) {
                Some(program) => {
                    let pinned =
                        PinnedLink::from_pin(&path).map_err(|source| PinError::Link { path, source })?;
                    current = Some((pinned, *program));
                }
                None => was_stale = true,
            }
        }
        let id = current.as_ref().map(|(_, program)| program.id);
        if let Some(foreign) = interface.xdp.iter().find(|program| Some(program.id) != id) {
            let (id, mode) = (foreign.id, foreign.mode);
            let owner = program::owner(id);
            return Err(AttachError::Occupied { interface: interface.name, id, mode, owner });
        }
        let current = current.map(|(link, program)| (link, program.mode));
        Ok(Self { interface, was_stale, pins, link: link.to_owned(), current })
    }

    /// Returns the mode of Sumac's program on the interface; `None` when there is none.
    pub fn bound_mode(&self) -> Option<BoundXdpMode> {
        self.current.as_ref().map(|(_, mode)| *mode)
    }

    /// Attaches `program`; a new link is pinned under its second name (see [`crate::replace`]). The caller
    /// has staged the program, and after an error calls [`crate::recover::recover`].
    ///
    /// A program in an accepted mode is replaced in one step: no frame meets the interface without a program.
    /// Only a change between driver and generic mode detaches in between.
    pub fn attach(mut self, program: &mut Xdp, asked: XdpMode) -> Result<Bound, AttachError> {
        match self.current.take() {
            Some((link, mode)) if asked.accepts(mode) => self.replace(program, link, mode),
            Some((link, mode)) => {
                self.leave(link, mode)?;
                self.bind(program, asked)
            }
            None => self.bind(program, asked),
        }
    }

    fn replace(&self, program: &mut Xdp, link: PinnedLink, mode: BoundXdpMode) -> Result<Bound, AttachError> {
        relink(program, link, &self.pins.pin(&self.link))
            .map_err(|error| error.on(&self.interface.name, mode))?;
        Ok(Bound { mode, fallback: None })
    }

    /// Detaches the former program, which [`crate::recover::recover`] finds by its record.
    fn leave(&self, link: PinnedLink, mode: BoundXdpMode) -> Result<(), AttachError> {
        let interface = self.interface.name.clone();
        tracing::warn!(
            interface,
            "leaving {mode} mode: the interface has no program for a moment, and its frames go to the kernel"
        );
        self.pins.record_former(&FormerLink {
            link: self.link.clone(),
            interface: interface.clone(),
            mode,
        })?;
        let path = self.pins.pin(&self.link);
        // Unpinned before it is closed: the last handle detaches.
        drop(link.unpin().map_err(PinError::at(&path))?);
        wait_for_release(&interface);
        Ok(())
    }

    fn bind(&self, program: &mut Xdp, asked: XdpMode) -> Result<Bound, AttachError> {
        let mode = match asked {
            XdpMode::Generic => BoundXdpMode::Generic,
            XdpMode::Auto | XdpMode::Driver => BoundXdpMode::Driver,
        };
        let pin = self.pins.staged(&self.link);
        match bind(program, &self.interface, mode, &pin) {
            Err(error @ AttachError::Bind { .. }) if asked == XdpMode::Auto && !is_of_process(&error) => {
                tracing::warn!("{error}; falling back to generic mode, which is several times slower");
                bind(program, &self.interface, BoundXdpMode::Generic, &pin)?;
                Ok(Bound { mode: BoundXdpMode::Generic, fallback: Some(error.to_string()) })
            }
            outcome => outcome.map(|()| Bound { mode, fallback: None }),
        }
    }
}

/// Checks that an interface has the program of a pinned link, as whoever looks next finds it.
///
/// # Errors
/// [`AttachError::Gone`], or what the look-up met.
pub fn verify(interface: &str, pins: &PinDirectory, link: &str) -> Result<(), AttachError> {
    let found = XdpAttachment::find(interface, pins, link)?;
    match found.current {
        Some(_) => Ok(()),
        None => Err(AttachError::Gone { interface: interface.to_owned(), link: pins.pin(link) }),
    }
}

/// Attaches a program to an interface, and pins the link.
pub(crate) fn bind(
    program: &mut Xdp,
    interface: &Interface,
    mode: BoundXdpMode,
    pin: &Path,
) -> Result<(), AttachError> {
    let flag = if mode == BoundXdpMode::Generic { AyaMode::Skb } else { AyaMode::Driver };
    let link = program
        .attach_to_if_index(interface.index, flag)
        .and_then(|id| program.take_link(id))
        .map_err(|source| refused(&interface.name, mode, source))?;
    let link =
        FdLink::try_from(link).map_err(|_| AttachError::NoLink { interface: interface.name.clone() })?;
    link.pin(pin).map_err(|source| PinError::Pin { path: pin.to_owned(), source: Box::new(source) })?;
    Ok(())
}

/// The error of the replacement of a link's program.
pub(crate) enum RelinkError {
    Link(PinError),
    Update(ProgramError),
}

impl RelinkError {
    pub(crate) fn on(self, interface: &str, mode: BoundXdpMode) -> AttachError {
        match self {
            Self::Link(error) => error.into(),
            Self::Update(source) => refused(interface, mode, source),
        }
    }
}

/// Replaces a link's program in one step.
pub(crate) fn relink(program: &mut Xdp, link: PinnedLink, pin: &Path) -> Result<(), RelinkError> {
    let link = XdpLink::try_from(FdLink::from(link))
        .map_err(|source| RelinkError::Link(PinError::Link { path: pin.to_owned(), source }))?;
    program.attach_to_link(link).map(drop).map_err(RelinkError::Update)
}

fn refused(interface: &str, mode: BoundXdpMode, source: ProgramError) -> AttachError {
    let advice = advice(errno(&source), interface);
    AttachError::Bind { interface: interface.to_owned(), mode, source: Box::new(source), advice }
}

/// Waits until an interface has no program, for [`RELEASE_TIMEOUT`] at most. The kernel releases a pinned
/// link only after all readers of its bpffs, and a process that was forked a moment ago holds its parent's
/// handles.
pub(crate) fn wait_for_release(interface: &str) {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    let is_bound = || Interface::by_name(interface).is_ok_and(|interface| !interface.xdp.is_empty());
    while is_bound() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
    }
}

/// Whether the kernel refused for a reason that generic mode would not mend: that of the process.
fn is_of_process(error: &AttachError) -> bool {
    matches!(errno(error), Some(Errno::EMFILE | Errno::ENFILE | Errno::EPERM | Errno::EACCES))
}

fn advice(refusal: Option<Errno>, interface: &str) -> String {
    match refusal {
        Some(Errno::EMFILE | Errno::ENFILE) => {
            "no more files may be open; raise the limit (ulimit -n)".to_owned()
        }
        Some(Errno::EOPNOTSUPP) => "its driver has no XDP; use --mode generic".to_owned(),
        Some(Errno::ERANGE) => format!(
            "its MTU, or its peer's, is too large for this program: ip link set dev {interface} mtu 1500, on \
            both ends of a veth; or more than 3506 on both, or --jumbo at an aggregator"
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
