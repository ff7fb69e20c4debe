//! `sumac-lab list`.

use std::process::ExitCode;

use clap::Args;
use sumac_lab::record::Record;

#[derive(Debug, Args)]
pub struct List {
    /// Print the labs' records as JSON
    #[arg(long)]
    json: bool,
}

impl List {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut records = Vec::new();
        for name in Record::names()? {
            match Record::load(&name) {
                Ok(record) => records.push(record),
                Err(error) => eprintln!("sumac-lab: {error}"),
            }
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&records)?);
            return Ok(ExitCode::SUCCESS);
        }
        if records.is_empty() {
            println!("no labs");
        }
        for record in records {
            let spec = &record.spec;
            let rate = spec.rate.map_or("unlimited".to_owned(), |rate| rate.to_string());
            let made = if record.owner_lives() { "in use by pid" } else { "made by pid" };
            println!(
                "{}  {} workers, {rate}, loss {}, {} programs, {made} {}",
                spec.name,
                spec.workers,
                spec.faults.loss,
                record.processes.len(),
                record.owner.pid
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}
