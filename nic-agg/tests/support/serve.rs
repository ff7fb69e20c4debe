//! `sumac-agg serve` as a process, whose first lines say where it listens.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

/// A server that waits for workers, and the line of its log that says so.
pub struct Serving {
    pub child: Child,
    line: String,
}

impl Serving {
    /// Starts it with these arguments after `serve`.
    pub fn start<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Serving {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sumac-agg"))
            .arg("serve")
            .args(arguments)
            .env("RUST_LOG", "info")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
        let line =
            lines.find_map(|line| line.ok().filter(|line| line.contains("waiting for workers"))).unwrap();
        Serving { child, line }
    }

    /// What the line says of `name`.
    pub fn field(&self, name: &str) -> &str {
        let (_, rest) = self.line.split_once(&format!("{name}=")).unwrap();
        rest.split(' ').next().unwrap()
    }
}
