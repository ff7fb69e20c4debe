//! `sumac-lab down`.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use sumac_lab::record::Record;
use sumac_lab::spec::check_name;

#[derive(Debug, Args)]
pub struct Down {
    /// The lab
    #[arg(long, required_unless_present = "all")]
    name: Option<String>,
    /// All labs whose maker is gone
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

impl Down {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let names = match self.name {
            Some(name) => vec![name],
            None => orphans()?,
        };
        for name in names {
            check_name(&name)?;
            let record = Record::load(&name)?;
            if record.owner_lives() && record.owner.pid != std::process::id() {
                bail!(
                    "lab {name} is in use by pid {}; end that process and it removes the lab",
                    record.owner.pid
                );
            }
            record.remove()?;
            println!("removed lab {name}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn orphans() -> anyhow::Result<Vec<String>> {
    let mut orphans = Record::names()?;
    orphans.retain(|name| Record::load(name).is_ok_and(|record| !record.owner_lives()));
    Ok(orphans)
}
