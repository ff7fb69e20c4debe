//! `sumac-lab up`.

use std::process::ExitCode;

use clap::Args;
use sumac_lab::Lab;

use sumac_lab::options::LabOptions;

#[derive(Debug, Args)]
pub struct Up {
    #[command(flatten)]
    lab: LabOptions,
    /// Print the lab's record as JSON
    #[arg(long)]
    json: bool,
}

impl Up {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let record = Lab::up(self.lab.spec())?.keep();
        if self.json {
            println!("{}", serde_json::to_string_pretty(&record)?);
            return Ok(ExitCode::SUCCESS);
        }
        println!("lab {} stands:", record.spec.name);
        for (namespace, rank) in record.namespaces.iter().zip(0..record.spec.workers) {
            let spec = &record.spec;
            println!("  {namespace}  {}  aggregator {}", spec.worker_ip(rank), spec.aggregator_ip(rank));
        }
        for host in 0..record.spec.parameter_hosts {
            println!("  {}-ph{host}  {}  parameter host", record.spec.name, record.spec.host_ip(host));
        }
        println!("enter a host:  nsenter --net=/run/netns/{} bash", record.namespaces[0]);
        println!("remove it:     sumac-lab down --name {}", record.spec.name);
        Ok(ExitCode::SUCCESS)
    }
}
