//! A sample as text or JSON, for scripts and for output that is no terminal.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::sample::{Cell, Sample, Table, Unit};

/// Returns the sample as text: the facts, the jobs, and the parts of each.
pub(crate) fn plain(sample: &Sample) -> String {
    let mut text = String::new();
    for (name, value) in &sample.facts {
        let _ = writeln!(text, "{name}: {value}");
    }
    if sample.jobs.rows.is_empty() {
        return text + "no jobs\n";
    }
    text += &table(&sample.jobs);
    for (job, parts) in sample.jobs.rows.iter().zip(&sample.parts) {
        let name = job.first().map(|name| name.shown(Unit::Text)).unwrap_or_default();
        let _ = write!(text, "\n{} of {name}\n{}", sample.parts_name, table(parts));
    }
    text
}

fn table(table: &Table) -> String {
    let headings = table.columns.iter().map(|column| column.title.to_owned()).collect();
    let (widths, mut text) = (table.widths(), String::new());
    for row in [vec![headings], table.shown()].concat() {
        let line: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text += line.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Returns the sample as a JSON object: numbers in base units, null where they are not known.
pub(crate) fn json(sample: &Sample) -> Value {
    let mut jobs = objects(&sample.jobs);
    for (job, parts) in jobs.iter_mut().zip(&sample.parts) {
        job.insert(sample.parts_name.to_owned(), json!(objects(parts)));
    }
    let facts: Map<String, Value> =
        sample.facts.iter().map(|(name, value)| (name.replace(' ', "_"), json!(value))).collect();
    json!({ "facts": facts, "jobs": jobs })
}

fn objects(table: &Table) -> Vec<Map<String, Value>> {
    let value = |cell: &Cell| match cell {
        Cell::Text(text) => json!(text),
        Cell::Number(number) => json!(number),
        Cell::Unknown => Value::Null,
    };
    let object = |row: &Vec<Cell>| {
        row.iter().zip(table.columns).map(|(cell, column)| (column.key.to_owned(), value(cell))).collect()
    };
    table.rows.iter().map(object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::sample;

    #[test]
    fn scripts_read_numbers_in_base_units() {
        let json = json(&sample());
        assert_eq!(json["facts"]["control_plane"], "2 jobs");
        assert_eq!(json["jobs"][0]["name"], "train");
        assert_eq!(json["jobs"][0]["sent_bytes_per_second"], 250e6);
        assert_eq!(json["jobs"][1]["sent_bytes_per_second"], Value::Null);
        assert_eq!(json["jobs"][0]["lanes"][1]["lane"], 1.0);
    }

    #[test]
    fn people_read_columns() {
        let expected = "\
backend: udp
control plane: 2 jobs
job    sent
train  250.0 MB/s
eval   -

lanes of train
lane  loss
0     0.00%
1     1.50%

lanes of eval
lane  loss
";
        assert_eq!(plain(&sample()), expected);
    }
}
