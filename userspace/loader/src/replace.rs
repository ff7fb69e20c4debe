//! Replacement of several pins at once: whatever ends the process, it is done or not done.
//!
//! ```text
//!   new-prog  new-link-eth1 ...    pins that are staged under second names
//!   mode-link-eth0 -> driver eth0  the link was removed, since its mode changes; it was the interface's in driver mode
//!   commit -> .                    all are staged: from now on the replacement is completed, before it undone
//! ```
//!
//! Every step is one entry of the directory that appears, moves or goes. [`crate::recover::recover`]
//! completes or undoes what a process left that ended between two of them; both change nothing when repeated.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::{
    mode::BoundXdpMode,
    pins::{ABI, LINK, PinDirectory, PinError, STAGED, entries, file_name},
};

const COMMIT: &str = "commit";
const MODE: &str = "mode-";

/// A link that was removed from its interface for a change of mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FormerLink {
    pub link: String,
    pub interface: String,
    pub mode: BoundXdpMode,
}

impl PinDirectory {
    /// Returns the path at which a pin is staged.
    pub fn staged(&self, name: &str) -> PathBuf {
        self.pin(&format!("{STAGED}{name}"))
    }

    /// Pins an object under a second name, from which [`PinDirectory::commit`] moves it over the old pin.
    pub fn stage(
        &self,
        name: &str,
        pin: impl FnOnce(&Path) -> Result<(), aya::pin::PinError>,
    ) -> Result<(), PinError> {
        let staged = self.staged(name);
        pin(&staged).map_err(|source| PinError::Pin { path: staged, source: Box::new(source) })
    }

    /// Stages the record of the layout's version.
    pub fn stage_abi(&self, abi: u32) -> Result<(), PinError> {
        self.record(&format!("{STAGED}{ABI}"), &abi.to_string())
    }

    /// Moves all staged pins over the old ones.
    ///
    /// # Errors
    /// When the commit cannot be recorded: nothing is moved then. What fails after it is completed by
    /// [`crate::recover::recover`].
    pub fn commit(&self) -> Result<(), PinError> {
        self.record(COMMIT, ".")?;
        // Completed steps are skipped; a lack of memory may have passed.
        if let Err(error) = self.complete().or_else(|_| self.complete()) {
            tracing::warn!("{error}; the next command completes it");
        }
        if let Err(error) = self.give_to_owner() {
            tracing::warn!(
                "cannot give the pins at {} to the owner of the directory above: {error}",
                self.path().display()
            );
        }
        Ok(())
    }

    pub(crate) fn is_committed(&self) -> Result<bool, PinError> {
        Ok(self.names()?.iter().any(|name| name == COMMIT))
    }

    /// Completes a committed replacement.
    pub(crate) fn complete(&self) -> Result<(), PinError> {
        for name in self.names()? {
            if let Some(target) = name.strip_prefix(STAGED) {
                let target = self.pin(target);
                fs::rename(self.pin(&name), &target).map_err(PinError::at(&target))?;
            } else if name.starts_with(MODE) {
                self.remove(&name)?;
            }
        }
        self.remove(COMMIT).map(drop)
    }

    /// Returns whether a replacement was begun and neither completed nor undone.
    pub fn is_interrupted(&self) -> Result<bool, PinError> {
        Ok(self
            .names()?
            .iter()
            .any(|name| name.starts_with(STAGED) || name.starts_with(MODE) || name == COMMIT))
    }

    /// Removes all staged pins; links first, as [`PinDirectory::remove_pins`] does.
    pub(crate) fn discard(&self) -> Result<(), PinError> {
        let (links, others): (Vec<_>, Vec<_>) = self
            .names()?
            .into_iter()
            .filter(|name| name.starts_with(STAGED))
            .partition(|name| name[STAGED.len()..].starts_with(LINK));
        links.iter().try_for_each(|link| self.remove_link(link).map(drop))?;
        others.iter().try_for_each(|name| self.remove(name).map(drop))
    }

    /// Records that a link is about to be removed, and how to bind it again.
    pub(crate) fn record_former(&self, former: &FormerLink) -> Result<(), PinError> {
        let FormerLink { link, interface, mode } = former;
        self.record(&format!("{MODE}{link}"), &format!("{mode} {interface}"))
    }

    pub(crate) fn forget_former(&self, link: &str) -> Result<(), PinError> {
        self.remove(&format!("{MODE}{link}")).map(drop)
    }

    pub(crate) fn formers(&self) -> Result<Vec<FormerLink>, PinError> {
        let mut found = Vec::new();
        for name in self.names()? {
            let Some(link) = name.strip_prefix(MODE) else { continue };
            let path = self.pin(&name);
            let target = fs::read_link(&path).map_err(PinError::at(&path))?;
            let target = target.to_string_lossy();
            let Some((mode, interface)) = target.split_once(' ') else { continue };
            let mode = if mode == BoundXdpMode::Generic.to_string() {
                BoundXdpMode::Generic
            } else {
                BoundXdpMode::Driver
            };
            found.push(FormerLink { link: link.to_owned(), interface: interface.to_owned(), mode });
        }
        Ok(found)
    }

    /// Makes a symbolic link, whose target is text: a bpffs holds no ordinary files.
    fn record(&self, name: &str, text: &str) -> Result<(), PinError> {
        let path = self.pin(name);
        symlink(text, &path).map_err(PinError::at(&path))
    }

    fn names(&self) -> Result<Vec<String>, PinError> {
        let entries = entries(self.path()).map_err(PinError::at(self.path()))?;
        Ok(entries.iter().map(|path| file_name(path).to_owned()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pins::PROGRAM;

    fn directory(test: &str) -> PinDirectory {
        let root = std::env::temp_dir().join(format!("sumac-{test}-{}", std::process::id()));
        let pins = PinDirectory::new(root.join("agg/7"), 7);
        drop(pins.create_locked().unwrap());
        pins
    }

    fn stage(pins: &PinDirectory, name: &str, text: &'static str) {
        pins.stage(name, |path| {
            fs::write(path, text).unwrap();
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn staged_pins_replace_the_old_ones_together() {
        let pins = directory("replace");
        stage(&pins, PROGRAM, "first");
        pins.stage_abi(3).unwrap();
        assert_eq!((pins.abi().unwrap(), pins.is_interrupted().unwrap()), (None, true));
        pins.commit().unwrap();
        assert_eq!((pins.abi().unwrap().as_deref(), pins.is_interrupted().unwrap()), (Some("3"), false));
        stage(&pins, PROGRAM, "second");
        pins.discard().unwrap();
        assert_eq!(fs::read_to_string(pins.pin(PROGRAM)).unwrap(), "first");
        stage(&pins, PROGRAM, "third");
        pins.record(COMMIT, ".").unwrap();
        assert!(pins.is_committed().unwrap() && pins.is_interrupted().unwrap(), "a process ended here");
        pins.complete().unwrap();
        assert_eq!(fs::read_to_string(pins.pin(PROGRAM)).unwrap(), "third");
        assert_eq!(pins.remove_all().unwrap().len(), 3, "program, version and directory");
    }

    #[test]
    fn a_removed_link_is_recorded_with_its_mode() {
        let pins = directory("formers");
        let former = FormerLink {
            link: "link-eth0:7".into(),
            interface: "eth0.7".into(),
            mode: BoundXdpMode::Generic,
        };
        pins.record_former(&former).unwrap();
        assert_eq!(pins.formers().unwrap(), [former]);
        assert!(pins.is_interrupted().unwrap());
        pins.forget_former("link-eth0:7").unwrap();
        assert!(!pins.is_interrupted().unwrap());
        pins.remove_all().unwrap();
    }
}
