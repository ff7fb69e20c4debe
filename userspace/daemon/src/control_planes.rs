//! The control planes of this daemon: those that its configuration names, and no others.

use std::net::SocketAddr;

use sumac_api::{Code, Failure, Open};
use sumac_control::{Credential, Endpoint, HostPort, ResolveError, Secret, SecretError};
use sumac_host::{AccessRules, Credentials};

use crate::access::user_name;
use crate::config::{Config, ControlPlaneConfig, EndpointError};

/// The name of the control plane that the key `aggregator` gives.
const DEFAULT: &str = "aggregator";

#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    #[error("{key}: {source}")]
    Resolve { key: String, source: ResolveError },
    #[error("{key}: {source}")]
    Secret { key: String, source: SecretError },
    #[error("{key}: {source}")]
    Endpoint { key: String, source: EndpointError },
}

#[derive(Debug)]
struct ControlPlane {
    name: String,
    given: HostPort,
    /// The addresses of its name.
    addresses: Vec<SocketAddr>,
    /// `None`: that of the key `aggregator`.
    config: Option<ControlPlaneConfig>,
}

impl ControlPlane {
    fn resolve(
        name: &str,
        given: &HostPort,
        config: Option<ControlPlaneConfig>,
    ) -> Result<ControlPlane, ControlPlaneError> {
        let key = || if config.is_some() { format!("control_planes.{name}") } else { name.to_owned() };
        let addresses =
            given.resolve_control().map_err(|source| ControlPlaneError::Resolve { key: key(), source })?;
        Ok(ControlPlane { name: name.to_owned(), given: given.clone(), addresses, config })
    }

    fn key(&self) -> String {
        if self.config.is_some() { format!("control_planes.{}", self.name) } else { self.name.clone() }
    }

    /// Returns the daemon's own secret for this control plane. It is read anew for each job: it may have been
    /// replaced.
    fn credential(&self, config: &Config) -> Result<Option<Credential>, SecretError> {
        self.config.as_ref().map_or_else(|| config.default_credential(), ControlPlaneConfig::credential)
    }

    fn is(&self, asked: &str) -> bool {
        let is_address = || asked.parse().is_ok_and(|asked| self.addresses.contains(&asked));
        asked == self.name || asked == self.given.to_string() || is_address()
    }
}

/// The control planes, and the users that may use the daemon's secrets for them.
#[derive(Debug)]
pub(crate) struct ControlPlanes {
    planes: Vec<ControlPlane>,
    rules: AccessRules,
}

impl ControlPlanes {
    /// Resolves their names, and reads their secrets and certificates, so that an invalid one fails the
    /// start.
    pub(crate) fn resolve(config: &Config, rules: AccessRules) -> Result<ControlPlanes, ControlPlaneError> {
        let first = config.aggregator.iter().map(|given| ControlPlane::resolve(DEFAULT, given, None));
        let further = config.control_planes.iter();
        let further =
            further.map(|(name, plane)| ControlPlane::resolve(name, &plane.address, Some(plane.clone())));
        let planes = ControlPlanes { planes: first.chain(further).collect::<Result<_, _>>()?, rules };
        for plane in &planes.planes {
            let failed = |source| ControlPlaneError::Secret { key: plane.key(), source };
            let Some(credential) = plane.credential(config).map_err(failed)? else { continue };
            match config.endpoint(&plane.addresses, credential) {
                // A job may bring the fingerprint.
                Ok(_) | Err(EndpointError::NoFingerprint) => {}
                Err(source) => return Err(ControlPlaneError::Endpoint { key: plane.key(), source }),
            }
        }
        Ok(planes)
    }

    /// Returns the addresses of the control plane of jobs whose trainers name none.
    pub(crate) fn default_addresses(&self) -> Option<&[SocketAddr]> {
        self.planes.iter().find(|plane| plane.config.is_none()).map(|plane| &*plane.addresses)
    }

    /// Returns the control plane of a job with the secret for it: the trainer's, or the daemon's own where a
    /// rule lets it.
    pub(crate) fn endpoint(
        &self,
        config: &Config,
        open: &Open,
        peer: &Credentials,
    ) -> Result<Endpoint, Failure> {
        let plane = self.named(open.aggregator.as_deref())?;
        let given = open.secret.as_ref().map(|secret| Credential::new(secret.0.as_bytes())).transpose();
        let given = given.map_err(bad)?;
        let own = plane.credential(config).map_err(bad)?;
        let fingerprint = own.as_ref().and_then(|own| own.fingerprint);
        let mut credential = match (given, own) {
            (Some(given), _) => given,
            (None, Some(own)) => {
                self.rules.check(peer, &user_name(peer.uid), &open.spec.job)?;
                own
            }
            (None, None) => {
                let key = plane.key();
                return Err(bad(format!("neither the job nor the daemon has a secret for {key}")).hint(
                    "give `secret`, or secret_file in the daemon's configuration: what `sumac-agg token` \
                    prints",
                ));
            }
        };
        credential.fingerprint = credential.fingerprint.or(fingerprint);
        let endpoint = config.endpoint(&plane.addresses, credential);
        endpoint.map_err(|error| bad(error).hint("see `secret` in docs/api.md"))
    }

    fn named(&self, asked: Option<&str>) -> Result<&ControlPlane, Failure> {
        let Some(asked) = asked else {
            let default = self.planes.iter().find(|plane| plane.config.is_none());
            return default.ok_or_else(|| {
                bad("neither the job nor the daemon has an aggregator")
                    .hint("set `aggregator` in the daemon's configuration, or name one of its control_planes")
            });
        };
        self.planes.iter().find(|plane| plane.is(asked)).ok_or_else(|| {
            let known: Vec<_> =
                self.planes.iter().map(|plane| format!("{} ({})", plane.name, plane.given)).collect();
            let known = if known.is_empty() {
                "it has none".to_owned()
            } else {
                format!("it has {}", known.join(", "))
            };
            let message = format!("aggregator {asked:?} is no control plane of this daemon: {known}");
            Failure::new(Code::Denied, message)
                .hint("have it added as [control_planes.NAME] with `address` to the daemon's configuration")
        })
    }
}

/// Returns the secret of a job that its trainer has given.
pub(crate) fn given_secret(open: &Open) -> Result<Option<Secret>, Failure> {
    let given = open.secret.as_ref().map(|secret| Credential::new(secret.0.as_bytes())).transpose();
    Ok(given.map_err(bad)?.map(|given| given.secret))
}

fn bad(problem: impl std::fmt::Display) -> Failure {
    Failure::new(Code::BadField, format!("open: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use sumac_api::Secret as ApiSecret;
    use sumac_control::{Fingerprint, JoinToken};

    fn token(byte: u8) -> String {
        let secret = sumac_control::Secret::new([byte; 32]).unwrap();
        JoinToken { fingerprint: Fingerprint([byte; 32]), secret }.to_string()
    }

    fn planes(allow: &str) -> (Config, ControlPlanes) {
        let text = format!(
            "aggregator = \"127.0.0.1:1\"\nsecret = {:?}\n{allow}\n[control_planes.east]\naddress = \
            \"localhost:2\"\nsecret = {:?}\n[control_planes.bare]\naddress = \"127.0.0.1:3\"\n",
            token(1),
            token(2)
        );
        let config = Config::parse(&text, Path::new("test.toml")).unwrap();
        let rules = crate::access::resolve(&config.allow, 5).unwrap();
        let planes = ControlPlanes::resolve(&config, rules).unwrap();
        (config, planes)
    }

    fn open(aggregator: Option<&str>, secret: Option<String>) -> Open {
        let secret = secret.map(ApiSecret);
        Open { aggregator: aggregator.map(str::to_owned), secret, ..Open::new("job", 0, 2) }
    }

    fn peer(uid: u32) -> Credentials {
        Credentials { pid: 1, uid, groups: [uid].into() }
    }

    #[test]
    fn each_control_plane_receives_its_own_secret() {
        let (config, planes) = planes("");
        let cases = [
            (None, 1, 1),
            (Some("aggregator"), 1, 1),
            (Some("127.0.0.1:1"), 1, 1),
            (Some("east"), 2, 2),
            (Some("localhost:2"), 2, 2),
            (Some("127.0.0.1:2"), 2, 2),
        ];
        for (asked, port, byte) in cases {
            let endpoint = planes.endpoint(&config, &open(asked, None), &peer(5)).unwrap();
            assert_eq!(endpoint.address.port(), port, "{asked:?}");
            assert!(endpoint.secret.is(&[byte; 32]), "{asked:?}");
        }
    }

    #[test]
    fn a_control_plane_that_is_not_listed_is_denied_whoever_names_it() {
        let (config, planes) = planes("");
        for asked in ["127.0.0.1:4", "127.0.0.2:1", "north", "", "somewhere"] {
            for (uid, secret) in [(0, None), (0, Some(token(9))), (70001, Some(token(9)))] {
                let refused = planes.endpoint(&config, &open(Some(asked), secret), &peer(uid)).unwrap_err();
                assert_eq!(refused.code, Code::Denied, "{asked}");
                assert!(refused.hint.contains("[control_planes.NAME]"), "{refused}");
                assert!(refused.message.contains("east (localhost:2)"), "{refused}");
            }
        }
    }

    #[test]
    fn a_secret_of_the_daemon_needs_a_rule_and_a_trainers_own_does_not() {
        let (config, planes) = planes("[[allow]]\nusers = [70002]\njobs = [\"jo?\"]");
        let endpoint = |uid, secret| planes.endpoint(&config, &open(Some("east"), secret), &peer(uid));
        assert_eq!(endpoint(70001, None).unwrap_err().code, Code::Denied);
        assert!(endpoint(70002, None).unwrap().secret.is(&[2; 32]));
        assert!(endpoint(70001, Some(token(9))).unwrap().secret.is(&[9; 32]));
        let bare = planes.endpoint(&config, &open(Some("bare"), None), &peer(0)).unwrap_err();
        assert!(bare.message.contains("control_planes.bare"), "{bare}");
    }

    #[test]
    fn what_cannot_be_resolved_or_read_is_named_by_its_key() {
        let cases = [
            ("aggregator = \"nowhere.invalid:1\"", "aggregator: cannot resolve"),
            ("aggregator = \"127.0.0.1:1\"\nsecret_file = \"/nonexistent\"", "aggregator: cannot read"),
            ("[control_planes.a]\naddress = \"nowhere.invalid:1\"", "control_planes.a: cannot resolve"),
            ("[control_planes.a]\naddress = \"a:1\"\nsecret = \"sumac1.x\"", "control_planes.a"),
        ];
        for (text, named) in cases {
            let config = Config::parse(text, Path::new("test.toml")).unwrap();
            let rules = crate::access::resolve(&[], 5).unwrap();
            let failed = ControlPlanes::resolve(&config, rules).unwrap_err().to_string();
            assert!(failed.contains(named), "{text}: {failed}");
        }
    }
}
