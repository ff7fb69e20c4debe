//! A figure's result: a table, series over time, and the targets.

use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;
use sumac_sim::events::{Nanos, SECOND};

/// A figure's numbers. Column names carry the units.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figure {
    pub figure: &'static str,
    pub title: &'static str,
    /// The command that reproduces it.
    pub command: String,
    /// Description of the simulated network.
    pub lab: String,
    pub columns: Vec<&'static str>,
    /// Medians over the seeds.
    #[serde(rename = "table")]
    pub rows: Vec<Vec<Value>>,
    /// Series of the first seed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
    pub targets: Vec<Target>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Series {
    pub name: String,
    /// Seconds between values.
    pub step_s: f64,
    pub values: Vec<f64>,
}

impl Series {
    pub fn new(name: &str, step: Nanos, values: Option<&Vec<f64>>) -> Series {
        let values = values.cloned().unwrap_or_default();
        Series { name: name.to_owned(), step_s: step as f64 / SECOND as f64, values }
    }
}

/// A target and whether it was reached.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    pub what: String,
    pub wanted: String,
    pub measured: String,
    pub reached: bool,
}

impl Target {
    pub fn new(what: &str, wanted: &str, measured: String, reached: bool) -> Target {
        Target { what: what.to_owned(), wanted: wanted.to_owned(), measured, reached }
    }
}

impl Figure {
    pub fn table(&self) -> String {
        let mut out =
            format!("{}: {}\n{}\nSeeds from 0: {}\n\n", self.figure, self.title, self.lab, self.command);
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

/// The median; of an even number of values, the lower one.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// The least and the largest of the seeds' values.
pub fn interval(values: impl IntoIterator<Item = f64>) -> Value {
    let (least, most) = values
        .into_iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
    serde_json::json!(format!("{least:.2} to {most:.2}"))
}

/// The value that so many percent of all do not exceed (nearest rank).
pub fn percentile(values: &mut [f64], percent: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let rank = (values.len() as f64 * percent / 100.0).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

pub fn rounded(value: f64) -> Value {
    serde_json::json!((value * 1e4).round() / 1e4)
}
