//! The list of a program's metrics, for its command line and for the documentation.

use std::io::{self, Write};

use serde::Serialize;

/// A metric as Prometheus stores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Description {
    /// With the unit, and `_total` of a counter. A histogram's series have `_bucket`, `_count` and `_sum`
    /// behind it.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub labels: Vec<&'static str>,
    pub help: &'static str,
}

/// Writes the list as one JSON array.
pub fn write_json(out: &mut impl Write, metrics: &[Description]) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, metrics).map_err(io::Error::from)?;
    writeln!(out)
}

/// Writes the list as a table in Markdown.
pub fn write_markdown(out: &mut impl Write, metrics: &[Description]) -> io::Result<()> {
    writeln!(out, "| metric | type | labels | |\n| --- | --- | --- | --- |")?;
    metrics.iter().try_for_each(|Description { name, kind, labels, help }| {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(out, "| `{name}` | {kind} | {} | {help} |", labels.join(", "))
    })
}
