//! The number of the switch's memory: BFRuntime has none, so an entry of a table holds it.
//!
//! The entry has the key of a job that there cannot be, so that no packet meets it. A switch that has lost
//! its tables has lost the entry as well, and gets another number. The table has place for it: job 0 is none.

use crate::{
    proto::bfrt_proto::{TableEntry, update::Type},
    target::{Entry, SwitchError},
};

use super::{
    entry::{decode, encode, of_entry},
    session::Session,
};

const TABLE: &str = "drops";
const ACTION: &str = "drop_arriving";
const JOB: &str = "job";
/// No job's number: they are below `sizes::JOBS`.
const NO_JOB: u64 = 0xffff;

pub fn is_mark(entry: &Entry) -> bool {
    entry.table == TABLE && entry.exact_field(JOB) == Some(NO_JOB)
}

/// Returns the number that the switch holds, or has it hold a new one.
pub async fn instance(session: &mut Session) -> Result<u64, SwitchError> {
    let schema = session.schema.clone();
    let table = schema.table(TABLE)?;
    let all = TableEntry { table_id: table.id, ..TableEntry::default() };
    for entry in session.read(vec![all], "reading the number of the switch's memory").await? {
        let entry = decode(TABLE, table, &entry)?;
        if is_mark(&entry) {
            return Ok(entry.parameters.into_values().next().unwrap_or_default());
        }
    }
    let number: u32 = rand::random();
    let mut mark = Entry::new(TABLE, ACTION).exact(JOB, NO_JOB);
    mark.parameters =
        table.action(ACTION)?.data.iter().map(|field| (field.name.clone(), number.into())).collect();
    let insert = of_entry(Type::Insert, encode(table, &mark)?);
    let written = session.write(vec![insert]).await;
    written.map_err(|error| error.of_all("numbering the switch's memory"))?;
    Ok(number.into())
}
