//! The role of the control plane: the root, which decides on jobs, or a rack below one.

use std::{collections::HashMap, io, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use sumac_control::{
    Credential, Endpoint, Identity, JoinLimits, Secret, Secrets, Trust, server::ServerOptions,
};
use sumac_udp::source_for;

use super::args::{Args, Plane};

/// The role of this control plane.
pub enum Role {
    /// It decides on jobs.
    Root(ServerOptions),
    /// It relays its workers' messages, and executes the root's commands.
    Rack { parent: Endpoint, name: String, identity: Identity },
}

impl Args {
    pub(super) fn role(&self) -> anyhow::Result<Role> {
        let racks = self.rack_secret_file.as_deref().map(Credential::from_file).transpose()?;
        if let Some(parent) = &self.parent {
            let addresses = parent.resolve_control()?;
            let (&address, others) = addresses.split_first().context("--parent has no address")?;
            let credential = racks.context(
                "the aggregator above lets no stranger in: give --rack-secret-file FILE with what `sumac-agg \
                token --racks` prints there",
            )?;
            if self.plane == Plane::None {
                bail!("a rack without an aggregator adds nothing: let its workers join at the one above");
            }
            let identity = self.tls.identity(&self.state)?;
            let own = self.tls.is_given().then(|| identity.clone());
            let trust = match (&self.tls_ca, credential.fingerprint) {
                (Some(authorities), _) => Trust::from_file(authorities, own)?,
                (None, Some(fingerprint)) => Trust::Pinned(fingerprint),
                (None, None) => bail!(
                    "--rack-secret-file holds a secret without a fingerprint: give what `sumac-agg token \
                    --racks` prints at the aggregator above, or --tls-ca FILE"
                ),
            };
            let name = self.name_towards(address)?;
            return Ok(Role::Rack {
                parent: Endpoint { address, others: others.to_vec(), trust, secret: credential.secret },
                name,
                identity,
            });
        }
        // Made here, so that `sumac-agg token --racks` needs no other `serve`.
        let racks = match racks {
            Some(given) => given.secret,
            None => self.state.rack_secret()?,
        };
        Ok(Role::Root(ServerOptions {
            identity: self.tls.identity(&self.state)?,
            secrets: Secrets { default: self.default_secret()?, jobs: self.job_secrets()?, racks },
            state_dir: self.state.path(),
            stealing: !self.no_reassignment,
            rejoin_grace: Duration::from_secs(self.rejoin_grace),
            longest_outage: Duration::from_secs(self.longest_outage.into()),
            join_limits: JoinLimits {
                longest_wait: Duration::from_secs(self.longest_wait),
                share_percent: self.share,
            },
            data_networks: self.data_network.clone(),
        }))
    }

    fn job_secrets(&self) -> anyhow::Result<HashMap<String, Secret>> {
        let secret = |(job, file): &(String, PathBuf)| Ok((job.clone(), Credential::from_file(file)?.secret));
        self.job_secret.iter().map(secret).collect()
    }

    /// The secret of jobs without one of their own.
    fn default_secret(&self) -> anyhow::Result<Option<Secret>> {
        match &self.secret_file {
            Some(file) => Ok(Some(Credential::from_file(file)?.secret)),
            None if self.job_secret.is_empty() => Ok(Some(self.state.job_secret()?)),
            None => Ok(None),
        }
    }

    /// The rack's name: as given, or the address that packets to the aggregator above leave from.
    fn name_towards(&self, parent: SocketAddr) -> anyhow::Result<String> {
        if let Some(name) = &self.rack_name {
            return Ok(name.clone());
        }
        let local = match parent {
            SocketAddr::V4(parent) => source_for(parent),
            SocketAddr::V6(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
        };
        let local = local.with_context(|| format!("there is no way to the aggregator above at {parent}"))?;
        Ok(local.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use sumac_control::state_dir::write_private;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &[&str]) -> Args {
        Line::try_parse_from([&["serve"], line].concat()).unwrap().args
    }

    #[test]
    fn secrets_are_made_or_given_and_host_options_belong_to_the_host_plane() {
        let directory = std::env::temp_dir().join(format!("sumac-serve-{}", std::process::id()));
        let state = directory.display().to_string();
        let with = |line: &[&str]| args(&[line, &["--state-dir", &state]].concat()).role();
        let refused = |line: &[&str]| with(line).err().unwrap().to_string();
        let token = directory.join("token");
        std::fs::create_dir_all(&directory).unwrap();
        let given = directory.join("given");
        write_private(&given, b"a secret of some length").unwrap();
        let given = given.display().to_string();
        let train = format!("train={given}");
        let default = |line: &[&str]| match with(line).unwrap() {
            Role::Root(options) => options.secrets,
            Role::Rack { .. } => panic!("a rack without a parent"),
        };
        assert!(default(&[]).default.is_some(), "made in the state directory");
        assert_eq!(default(&[]).default, default(&[]).default, "once");
        assert!(default(&["--job-secret", &train]).default.is_none());
        let racks = sumac_control::Secret::of_state_dir(&directory, "rack-secret").unwrap();
        assert_eq!(default(&["--secret-file", &given]).racks, racks, "no worker passes for a rack");
        assert!(refused(&["--parent", "127.0.0.1:48600"]).contains("--rack-secret-file"));
        let bare = ["--plane", "none"];
        assert_eq!(default(&bare).racks, racks, "made before the first parameter host asks for it");
        let racks = ["--rack-secret-file", &given];
        assert!(with(&[&bare[..], &racks].concat()).is_ok());
        let rack = [&["--plane", "none", "--parent", "127.0.0.1:48600"][..], &racks].concat();
        assert!(refused(&rack).contains("adds nothing"));
        let rack = [&["--parent", "127.0.0.1:48600"][..], &racks].concat();
        assert!(refused(&rack).contains("without a fingerprint"));
        let printed = sumac_control::JoinToken {
            fingerprint: sumac_control::Fingerprint([1; 32]),
            secret: Secret::new("the racks' secret").unwrap(),
        };
        write_private(&token, printed.to_string().as_bytes()).unwrap();
        let line = ["--parent", "127.0.0.1:48600", "--rack-secret-file", token.to_str().unwrap()];
        assert!(matches!(with(&line).unwrap(), Role::Rack { .. }));
        std::fs::remove_dir_all(&directory).unwrap();
        let missing = refused(&["--job-secret", "train=/nonexistent/secret"]);
        assert!(missing.contains("/nonexistent/secret"), "{missing}");
        assert!(Line::try_parse_from(["serve", "--job-secret", "train"]).is_err());
        for line in [
            &["--rack-name", "a"][..],
            &["--parent", "127.0.0.1:1", "--job-secret", "a=b"],
            &["--parent", "127.0.0.1:1", "--secret-file", "a"],
            &["--parent", "127.0.0.1:1", "--data-network", "10.1.0.0/16"],
            &["--data-network", "10.1.0.1/16"],
        ] {
            assert!(Line::try_parse_from([&["serve"], line].concat()).is_err(), "{line:?}");
        }
        let networks = args(&["--data-network", "10.1.0.0/16", "--data-network", "10.2.0.0/16"]).data_network;
        assert_eq!(networks.len(), 2);
        for option in
            ["--slots", "--dynamic-slots", "--slot-timeout", "--elements", "--base-port", "--shards"]
        {
            let refused = args(&[option, "64"]).refuse_host_options().unwrap_err();
            assert!(refused.to_string().contains(option), "{refused}");
        }
        assert!(args(&[]).refuse_host_options().is_ok());
        for line in [["--elements", "2225"], ["--elements", "0"], ["--slots", "0"], ["--shards", "0"]] {
            let refused = args(&[&["--plane", "host", "--base-port", "0"], &line[..]].concat()).host_plane();
            assert!(refused.err().unwrap().to_string().contains(&line[0][2..]), "{line:?}");
        }
    }
}
