//! What a figure came to: a table, lines over time, and what was to be reached.

use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;

/// A figure's numbers. Units stand in the columns' names.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Which figure.
    pub figure: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The command that makes the same numbers.
    pub command: String,
    /// The simulated lab, in a sentence or two.
    pub lab: String,
    /// Names of the columns.
    pub columns: Vec<&'static str>,
    /// The table: medians over the seeds.
    #[serde(rename = "table")]
    pub rows: Vec<Vec<Value>>,
    /// Lines over time, of the first seed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
    /// What was to be reached.
    pub targets: Vec<Target>,
}

/// A line over time.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// What it shows.
    pub name: String,
    /// Seconds from one value to the next.
    pub step_s: f64,
    /// The values.
    pub values: Vec<f64>,
}

/// Something that was to be reached.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// What.
    pub what: String,
    /// What was wanted, in words.
    pub wanted: String,
    /// What came out, in words.
    pub measured: String,
    /// Whether that is enough.
    pub reached: bool,
}

impl Target {
    /// A target of its words.
    pub fn new(what: &str, wanted: &str, measured: String, reached: bool) -> Target {
        Target { what: what.to_owned(), wanted: wanted.to_owned(), measured, reached }
    }
}

impl Report {
    /// For people.
    pub fn table(&self) -> String {
        let mut out = format!("{}: {}\n{}\n\n", self.figure, self.title, self.lab);
        let cells: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let longest = cells.iter().filter_map(|row| row.get(column)).map(String::len).max();
                longest.unwrap_or(0).max(self.columns[column].len())
            })
            .collect();
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded: Vec<String> =
                cells.zip(&widths).map(|(cell, width)| format!("{cell:>width$}", width = *width)).collect();
            let _ = writeln!(out, "{}", padded.join("  "));
        };
        line(&mut self.columns.iter().copied());
        cells.iter().for_each(|row| line(&mut row.iter().map(String::as_str)));
        out.push('\n');
        for target in &self.targets {
            let verdict = if target.reached { "reached" } else { "NOT REACHED" };
            let _ = writeln!(
                out,
                "{}: wanted {}, measured {}: {verdict}",
                target.what, target.wanted, target.measured
            );
        }
        out
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            let value = number.as_f64().unwrap_or(0.0);
            if value.abs() >= 100.0 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.3}") }
        }
        other => other.to_string(),
    }
}

/// The middle one; of an even number the lower of the two.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// To three digits after the point, for tables and files that shall be read.
pub fn rounded(value: f64) -> Value {
    serde_json::json!((value * 1e4).round() / 1e4)
}
