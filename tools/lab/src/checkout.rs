//! The paths of the lab's scripts and of what the checkout's make built, in the checkout that the lab was
//! built from.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The checkout.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// A file of the folder `tools`, such as `demo/train.py`: in `SUMAC_TOOLS_DIR`, or in the checkout.
pub fn script(name: &str) -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tools = match std::env::var_os("SUMAC_TOOLS_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => here.parent().unwrap_or(here).to_owned(),
    };
    let path = tools.join(name);
    if path.is_file() {
        return Ok(path);
    }
    let path = path.display();
    bail!(
        "{path} is not there; run sumac-lab beside its checkout, or name the folder tools of one in \
        SUMAC_TOOLS_DIR"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_is_there() {
        assert!(script("demo/train.py").is_ok());
        assert!(script("demo/no-such-script").unwrap_err().to_string().contains("SUMAC_TOOLS_DIR"));
    }
}
