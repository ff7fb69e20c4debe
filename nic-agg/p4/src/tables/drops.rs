//! `drops.p4` and `egress.p4`: the parts of a job's packets that are dropped intentionally, of 2^32.

use sumac_agg_layout::Drops;

use crate::target::Entry;

pub fn entries(job: u16, drops: Drops) -> Vec<Entry> {
    let arriving = entry("drops", "drop_arriving", "arriving", job, drops.up);
    let leaving = entry("copy_drops", "drop_leaving", "leaving", job, drops.down);
    [(arriving, drops.up), (leaving, drops.down)]
        .into_iter()
        .filter(|(_, part)| *part > 0)
        .map(|(entry, _)| entry)
        .collect()
}

fn entry(table: &'static str, action: &str, name: &str, job: u16, part: u32) -> Entry {
    Entry::new(table, action).exact("job", job).parameter(name, part)
}

/// Returns the drops of a job among entries.
pub fn of_job<'a>(job: u16, entries: impl Iterator<Item = &'a Entry>) -> Drops {
    let mut drops = Drops::default();
    for entry in entries.filter(|entry| entry.exact_field("job") == Some(job.into())) {
        let part = |name| entry.parameters.get(name).and_then(|part| u32::try_from(*part).ok()).unwrap_or(0);
        match entry.table {
            "drops" => drops.up = part("arriving"),
            "copy_drops" => drops.down = part("leaving"),
            _ => {}
        }
    }
    drops
}
