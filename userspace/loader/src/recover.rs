//! Completion or undoing of a replacement that was interrupted, by an error or by the end of the process.

use aya::programs::links::PinnedLink;

use crate::{
    attach::{AttachError, bind, relink, wait_for_release},
    interface::Interface,
    mode::BoundXdpMode,
    pins::{PROGRAM, PinDirectory, PinError},
    program,
    replace::FormerLink,
};

/// Completes the replacement of a directory's pins if it was committed, and else undoes it: every link has
/// its former program, in its former mode, and links that are new are removed. Returns whether there was one.
/// The caller holds the directory's lock.
///
/// # Errors
/// A change that could not be completed or undone. The next call tries again.
pub fn recover(pins: &PinDirectory) -> Result<bool, AttachError> {
    if !pins.is_interrupted()? {
        return Ok(false);
    }
    if pins.is_committed()? {
        pins.complete()?;
        return Ok(true);
    }
    restore_programs(pins)?;
    for former in pins.formers()? {
        restore_link(pins, &former)?;
        pins.forget_former(&former.link)?;
    }
    pins.discard()?;
    Ok(true)
}

/// Gives the links that have the staged program the former one again.
fn restore_programs(pins: &PinDirectory) -> Result<(), AttachError> {
    let staged = pins.staged(PROGRAM);
    if !staged.try_exists().map_err(PinError::at(&staged))? {
        return Ok(());
    }
    let staged = pins.pinned_program(&format!("{}{PROGRAM}", crate::pins::STAGED))?;
    for name in pins.links()? {
        if pins.linked_program(&name)? == staged {
            let path = pins.pin(&name);
            let link = PinnedLink::from_pin(&path)
                .map_err(|source| PinError::Link { path: path.clone(), source })?;
            let mut former = program::open_pinned(&pins.pin(PROGRAM))?;
            // A link keeps its mode.
            relink(&mut former, link, &path).map_err(|error| error.on(&name, BoundXdpMode::Driver))?;
        }
    }
    Ok(())
}

/// Binds a link again that was removed for a change of mode.
fn restore_link(pins: &PinDirectory, former: &FormerLink) -> Result<(), AttachError> {
    let FormerLink { link, interface, mode } = former;
    let path = pins.pin(link);
    if path.try_exists().map_err(PinError::at(&path))? {
        return Ok(());
    }
    pins.remove_link(&format!("{}{link}", crate::pins::STAGED))?;
    let Ok(interface) = Interface::by_name(interface) else {
        tracing::warn!(interface, "the interface is gone, whose program was about to change its mode");
        return Ok(());
    };
    wait_for_release(&interface.name);
    bind(&mut program::open_pinned(&pins.pin(PROGRAM))?, &interface, *mode, &path)
}
