//! The paths of Sumac's programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// A folder that holds `sumac` and `sumac-agg`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// The folder in `SUMAC_BIN_DIR`, the one of the running program, or cargo's release or debug folder when
    /// a test runs.
    pub fn find() -> Result<Programs> {
        let candidates = match std::env::var_os("SUMAC_BIN_DIR") {
            Some(folder) => vec![PathBuf::from(folder)],
            None => near_this_program(),
        };
        let searched: Vec<_> = candidates.iter().map(|folder| folder.display().to_string()).collect();
        let folder = candidates.into_iter().find(|folder| complete(folder));
        folder.map(|folder| Programs { folder }).with_context(|| {
            let searched = searched.join(", ");
            format!(
                "no sumac and sumac-agg in {searched}; run `make build`, or name their folder in \
            SUMAC_BIN_DIR"
            )
        })
    }

    /// A command of the hosts' program.
    pub fn sumac(&self) -> Command {
        Command::new(self.folder.join("sumac"))
    }

    /// A command of the lab's own program, which runs trainers.
    pub fn sumac_lab(&self) -> Command {
        Command::new(self.folder.join("sumac-lab"))
    }

    /// A command of the aggregator's program.
    pub fn sumac_agg(&self) -> Command {
        Command::new(self.folder.join("sumac-agg"))
    }
}

fn complete(folder: &Path) -> bool {
    folder.join("sumac").is_file() && folder.join("sumac-agg").is_file()
}

fn near_this_program() -> Vec<PathBuf> {
    let Some(folder) = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned())) else {
        return Vec::new();
    };
    let mut candidates = vec![folder.clone()];
    // Tests lie in target/<profile>/deps, the programs of `make build` in target/release.
    if let (Some(profile), Some(target)) = (folder.parent(), folder.parent().and_then(Path::parent)) {
        candidates.push(target.join("release"));
        candidates.push(profile.to_owned());
    }
    candidates
}
