//! Binds the program to its interface: anew, in place of the last, or in another mode.

use std::{
    error::Error,
    io, thread,
    time::{Duration, Instant},
};

use aya::programs::{
    ProgramError, Xdp, XdpMode,
    links::{FdLink, PinnedLink},
    xdp::XdpLink,
};
use nix::errno::Errno;

use crate::{
    attach::{AttachError, AttachOptions, at},
    interface::Interface,
    mode::{BoundMode, Mode},
    pins::{self, PinDir},
    program,
};

/// How long the kernel may take to let go of a program whose link was given up.
const RELEASE: Duration = Duration::from_secs(2);

/// Why `auto` came down to generic mode, if it did.
pub type Fallback = Option<String>;

/// Whether a program that runs in `bound` mode is what `asked` wants.
pub fn fits(asked: Mode, bound: BoundMode) -> bool {
    match asked {
        Mode::Generic => bound == BoundMode::Generic,
        Mode::Auto | Mode::ZeroCopy | Mode::Copy => bound != BoundMode::Generic,
    }
}

/// Puts the program in place of the one on the link: from one frame to the next, and in the mode of the link.
pub fn replace(
    program: &mut Xdp,
    link: PinnedLink,
    options: &AttachOptions,
    pins: &PinDir,
) -> Result<Fallback, AttachError> {
    let link = XdpLink::try_from(FdLink::from(link))
        .map_err(|source| AttachError::Link { path: pins.pin(pins::LINK), source })?;
    program.attach_to_link(link).map_err(|error| refused(&options.ifname, BoundMode::Driver, &error))?;
    Ok(None)
}

/// Takes the old program off, which the kernel demands between driver and generic mode, and binds the new one. When
/// that cannot be, the old one comes back.
pub fn change_mode(
    program: &mut Xdp,
    link: PinnedLink,
    old: BoundMode,
    options: &AttachOptions,
    pins: &PinDir,
) -> Result<Fallback, AttachError> {
    tracing::warn!(
        interface = options.ifname,
        "changing from {old} mode needs a moment without the program; frames go to the kernel meanwhile"
    );
    let mut old_program = program::open(&pins.pin(pins::PROGRAM))?;
    // Unpinned before it is closed: the last handle detaches.
    drop(link.unpin().map_err(|source| at(&pins.pin(pins::LINK), source))?);
    wait_for_release(&options.ifname);
    bind(program, options, pins).inspect_err(|_| {
        let back = bind_in(&mut old_program, &options.ifname, old).and_then(|link| pin(link, pins));
        if let Err(lost) = back {
            tracing::error!("the program that was there is gone: {lost}");
        }
    })
}

/// Waits until an interface has no program, for [`RELEASE`] at most: the kernel gives up what a pin held only after all
/// readers of its file system, and a process that was forked just now holds what its parent had.
fn wait_for_release(ifname: &str) {
    let deadline = Instant::now() + RELEASE;
    let is_bound = || Interface::by_name(ifname).is_ok_and(|interface| !interface.xdp.is_empty());
    while is_bound() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
    }
}

/// Binds the program to an interface that has none.
pub fn bind(program: &mut Xdp, options: &AttachOptions, pins: &PinDir) -> Result<Fallback, AttachError> {
    let ifname = &options.ifname;
    let (link, fallback) = match options.mode {
        Mode::Generic => (bind_in(program, ifname, BoundMode::Generic)?, None),
        Mode::ZeroCopy | Mode::Copy => (bind_in(program, ifname, BoundMode::Driver)?, None),
        Mode::Auto => match bind_in(program, ifname, BoundMode::Driver) {
            Ok(link) => (link, None),
            Err(error) => {
                tracing::warn!("{error}; falling back to generic mode, which is several times slower");
                (bind_in(program, ifname, BoundMode::Generic)?, Some(error.to_string()))
            }
        },
    };
    pin(link, pins)?;
    Ok(fallback)
}

fn bind_in(program: &mut Xdp, ifname: &str, mode: BoundMode) -> Result<FdLink, AttachError> {
    let failed = |error: ProgramError| refused(ifname, mode, &error);
    let flag = if mode == BoundMode::Generic { XdpMode::Skb } else { XdpMode::Driver };
    let id = program.attach(ifname, flag).map_err(failed)?;
    let link = program.take_link(id).map_err(failed)?;
    FdLink::try_from(link).map_err(|_| AttachError::Bind {
        ifname: ifname.to_owned(),
        mode,
        reason: "this kernel gave no link that could outlive the process".to_owned(),
    })
}

fn pin(link: FdLink, pins: &PinDir) -> Result<(), AttachError> {
    let path = pins.pin(pins::LINK);
    link.pin(&path).map_err(|source| AttachError::Pin { path, source })?;
    Ok(())
}

fn refused(ifname: &str, mode: BoundMode, error: &ProgramError) -> AttachError {
    AttachError::Bind { ifname: ifname.to_owned(), mode, reason: explain(error, ifname) }
}

/// The kernel's answer in words that help, and its own text behind.
fn explain(error: &ProgramError, ifname: &str) -> String {
    let advice = match system_error(error) {
        Some(Errno::EOPNOTSUPP) => "its driver has no XDP; use --mode generic".to_owned(),
        Some(Errno::ERANGE) => format!(
            "its MTU, or its peer's, is too large for this program: ip link set dev {ifname} mtu 1500, on both ends of a veth, or more than 3506 on both"
        ),
        Some(Errno::EINVAL) => {
            "the driver refused it; often an MTU above one page, LRO or too few queues (dmesg tells)"
                .to_owned()
        }
        Some(Errno::EBUSY | Errno::EEXIST) => {
            format!("another XDP program came in between: ip link show dev {ifname}")
        }
        Some(Errno::EPERM) => "not permitted; run as root".to_owned(),
        _ => return error.to_string(),
    };
    format!("{advice} ({error})")
}

/// The system's error number at the bottom of an error, if there is one.
fn system_error(error: &ProgramError) -> Option<Errno> {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(this) = cause {
        if let Some(number) = this.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(Errno::from_raw(number));
        }
        cause = this.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_generic_and_driver_need_a_fresh_link() {
        for mode in Mode::ALL {
            assert_eq!(fits(mode, BoundMode::Generic), mode == Mode::Generic, "{mode}");
            assert_eq!(fits(mode, BoundMode::Driver), mode != Mode::Generic, "{mode}");
        }
    }
}
