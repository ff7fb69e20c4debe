//! The destination of spans.

use schemars::JsonSchema;
use serde::Deserialize;

/// Sends OpenTelemetry spans of operations and their steps to a collector, by OTLP over HTTP.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TracingConfig {
    /// The collector's address, such as `"http://127.0.0.1:4318"`; without a path `/v1/traces` is appended.
    pub otlp: String,
    /// The part of the operations that is traced, the same ones on all workers of a job.
    #[serde(default = "all")]
    pub sample_ratio: f64,
}

fn all() -> f64 {
    1.0
}

impl TracingConfig {
    /// Returns the address with its path.
    pub(crate) fn endpoint(&self) -> String {
        let has_path =
            self.otlp.strip_prefix("http://").is_some_and(|rest| rest.trim_end_matches('/').contains('/'));
        if has_path { self.otlp.clone() } else { format!("{}/v1/traces", self.otlp.trim_end_matches('/')) }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let is_http = self.otlp.starts_with("http://") && self.otlp.len() > "http://".len();
        ensure!(
            is_http,
            format!(
                "`otlp` {:?} is no address such as \"http://127.0.0.1:4318\"; for TLS run a collector on \
                this host",
                self.otlp
            )
        );
        let ratio = self.sample_ratio;
        ensure!((0.0..=1.0).contains(&ratio), format!("`sample_ratio` {ratio} is not between 0 and 1"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_path_has_that_of_the_standard() {
        let endpoint = |otlp: &str| TracingConfig { otlp: otlp.into(), sample_ratio: 1.0 }.endpoint();
        assert_eq!(endpoint("http://h:4318"), "http://h:4318/v1/traces");
        assert_eq!(endpoint("http://h:4318/"), "http://h:4318/v1/traces");
        assert_eq!(endpoint("http://h/tempo/traces"), "http://h/tempo/traces");
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let problem =
            |otlp: &str, sample_ratio| TracingConfig { otlp: otlp.into(), sample_ratio }.check().err();
        assert_eq!(problem("http://127.0.0.1:4318", 0.1), None);
        for (otlp, ratio, words) in [
            ("127.0.0.1:4318", 1.0, "is no address"),
            ("https://h", 1.0, "for TLS"),
            ("http://h", 1.5, "between 0 and 1"),
        ] {
            assert!(problem(otlp, ratio).is_some_and(|problem| problem.contains(words)), "{otlp}");
        }
    }
}
