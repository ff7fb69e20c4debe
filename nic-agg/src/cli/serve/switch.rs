//! The options of a P4 switch, and the connection to it.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use sumac_agg::SwitchPlane;
use sumac_agg_p4::{
    bfrt::{self, BfRuntime},
    p4runtime::{P4Runtime, Program, Server},
    target::Target,
    wiring::Wiring,
};
use sumac_control::HostPort;
use tokio::runtime::Handle;

/// TCP port of P4Runtime servers, by IANA.
const P4RUNTIME_PORT: u16 = 9559;
/// The time in which the switch must answer. Loading the program may take longer, and has a limit of its own.
const START_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Options of a switch (--plane p4runtime and bfrt)")]
pub struct SwitchArgs {
    /// The switch's server [default: 127.0.0.1:9559, or :50052 of BFRuntime]
    #[arg(long, value_name = "HOST:PORT")]
    switch_address: Option<HostPort>,

    /// The switch's ports, its own addresses, and the hosts behind each port, TOML
    #[arg(long, value_name = "FILE")]
    switch: Option<PathBuf>,

    /// The compiled program: the JSON of p4c-bm2-ss, or bf_switchd's configuration, whose program may be
    /// loaded already
    #[arg(long, value_name = "FILE")]
    pipeline: Option<PathBuf>,

    /// The compiler's P4Info of the program, in binary form (--plane p4runtime)
    #[arg(long, value_name = "FILE")]
    p4info: Option<PathBuf>,

    /// The number of the device at its server
    #[arg(long, value_name = "N")]
    device_id: Option<u32>,

    /// The largest number is the primary control plane of a switch [default: the time, so that the latest is]
    /// (--plane p4runtime)
    #[arg(long, value_name = "N")]
    election_id: Option<u64>,

    /// The name under which the switch runs the program [default: that of --pipeline, or the only one there]
    /// (--plane bfrt)
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
}

impl SwitchArgs {
    /// Refuses these options for another plane.
    pub fn refuse(&self) -> anyhow::Result<()> {
        refuse(
            &[
                ("--switch-address", self.switch_address.is_some()),
                ("--switch", self.switch.is_some()),
                ("--pipeline", self.pipeline.is_some()),
                ("--device-id", self.device_id.is_some()),
                ("--p4info", self.p4info.is_some()),
                ("--election-id", self.election_id.is_some()),
                ("--program", self.program.is_some()),
            ],
            "--plane p4runtime or --plane bfrt",
        )
    }

    fn wiring(&self) -> anyhow::Result<Wiring> {
        let file = self.switch.as_deref().context(
            "--switch is missing: give the file of the switch's ports and the hosts behind them (docs/p4.md)",
        )?;
        Ok(Wiring::read(file)?)
    }

    /// Returns the address of the server as a URL.
    fn url(&self, default_port: u16) -> anyhow::Result<String> {
        Ok(format!("http://{}", self.address(default_port)?))
    }

    fn address(&self, default_port: u16) -> anyhow::Result<String> {
        match &self.switch_address {
            Some(given) => Ok(given.resolve()?.to_string()),
            None => Ok(format!("127.0.0.1:{default_port}")),
        }
    }

    /// Reads the files of a switch that speaks P4Runtime. Before privileges are dropped.
    pub fn p4runtime(&self) -> anyhow::Result<Connect> {
        refuse(&[("--program", self.program.is_some())], "--plane bfrt")?;
        let (Some(pipeline), Some(p4info)) = (&self.pipeline, &self.p4info) else {
            bail!(
                "--plane p4runtime needs --pipeline FILE and --p4info FILE: what p4c-bm2-ss has made of \
                p4/bmv2/sumac.p4 (make p4)"
            );
        };
        let (mut wiring, program) = (self.wiring()?, Program::read(pipeline, p4info)?);
        wiring.fit(&program.compiled_sizes()?)?;
        let server = Server {
            address: self.url(P4RUNTIME_PORT)?,
            device: self.device_id.unwrap_or(0).into(),
            election: self.election_id.unwrap_or_else(now),
        };
        let connect = |runtime: &Handle, _: &mut Wiring| -> anyhow::Result<AnySwitch> {
            Ok(Box::new(P4Runtime::start(runtime, server, program, START_TIMEOUT)?))
        };
        Ok(Connect { wiring, connect: Box::new(connect) })
    }

    /// The same of a switch that speaks BFRuntime.
    pub fn bfrt(&self) -> anyhow::Result<Connect> {
        let others = [("--p4info", self.p4info.is_some()), ("--election-id", self.election_id.is_some())];
        refuse(&others, "--plane p4runtime")?;
        let mut wiring = self.wiring()?;
        let pipeline = self.pipeline.as_deref().map(bfrt::Pipeline::open).transpose()?;
        // Before the switch loads it: that ends what runs there.
        if let Some(pipeline) = &pipeline {
            wiring.fit(&pipeline.compiled()?)?;
        }
        let named = pipeline.as_ref().map(|pipeline| pipeline.program().to_owned());
        let options = bfrt::Options {
            address: self.address(bfrt::DEFAULT_PORT)?,
            device: self.device_id.unwrap_or(0),
            program: self.program.clone().or(named),
            pipeline,
        };
        let connect = |_: &Handle, wiring: &mut Wiring| -> anyhow::Result<AnySwitch> {
            let switch = BfRuntime::connect(options)?;
            wiring.fit(&switch.compiled()?)?;
            Ok(Box::new(switch))
        };
        Ok(Connect { wiring, connect: Box::new(connect) })
    }
}

type AnySwitch = Box<dyn Target>;
type ConnectCall = dyn FnOnce(&Handle, &mut Wiring) -> anyhow::Result<AnySwitch>;

/// A switch that is to be connected.
pub struct Connect {
    wiring: Wiring,
    connect: Box<ConnectCall>,
}

impl Connect {
    pub fn base_port(&self) -> u16 {
        self.wiring.program.base_port
    }

    pub fn start(mut self, runtime: &Handle) -> anyhow::Result<SwitchPlane> {
        let switch = (self.connect)(runtime, &mut self.wiring)?;
        Ok(SwitchPlane::start(switch, self.wiring)?)
    }
}

/// Returns the time in milliseconds.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn refuse(given: &[(&str, bool)], plane: &str) -> anyhow::Result<()> {
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => bail!("{option} is for {plane}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: SwitchArgs,
    }

    fn args(line: &[&str]) -> SwitchArgs {
        Line::try_parse_from([&["serve"], line].concat()).unwrap().args
    }

    #[test]
    fn options_are_of_the_plane_that_has_them() {
        assert!(args(&[]).refuse().is_ok());
        for option in ["--switch", "--pipeline", "--p4info", "--device-id", "--election-id", "--program"] {
            let refused = args(&[option, "7"]).refuse().unwrap_err().to_string();
            assert_eq!(refused, format!("{option} is for --plane p4runtime or --plane bfrt"));
        }
        let error = |result: anyhow::Result<Connect>| result.err().unwrap().to_string();
        assert_eq!(error(args(&["--program", "a"]).p4runtime()), "--program is for --plane bfrt");
        assert_eq!(error(args(&["--election-id", "1"]).bfrt()), "--election-id is for --plane p4runtime");
        assert!(error(args(&["--pipeline", "a"]).p4runtime()).contains("--p4info FILE"));
        assert!(error(args(&[]).bfrt()).contains("--switch is missing"));
        let missing = ["--pipeline", "a", "--p4info", "b", "--switch", "/nonexistent.toml"];
        assert!(error(args(&missing).p4runtime()).contains("/nonexistent.toml: No such file"));
    }

    #[test]
    fn a_server_is_an_address_with_a_port() {
        assert_eq!(args(&[]).url(9559).unwrap(), "http://127.0.0.1:9559");
        assert_eq!(args(&["--switch-address", "127.0.0.1:1"]).url(9559).unwrap(), "http://127.0.0.1:1");
        assert!(Line::try_parse_from(["serve", "--switch-address", "127.0.0.1"]).is_err());
    }
}
