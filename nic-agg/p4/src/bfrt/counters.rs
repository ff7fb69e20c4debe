//! Indexed counters of packets: synchronized from the chip by an operation, and read by index.

use std::{collections::BTreeMap, ops::Range};

use crate::{
    proto::bfrt_proto::{
        DataField, Entity, TableData, TableEntry, TableOperation, Update, data_field::Value, entity,
        key_field::MatchType, update::Type,
    },
    target::{Key, Match, SwitchError},
};

use super::{
    entry::{bytes, key_fields, number, of_entry, with_key, wrong},
    session::Session,
};

const INDEX: &str = "$COUNTER_INDEX";
const PACKETS: &str = "$COUNTER_SPEC_PKTS";
/// The operation that copies a table's counters from the chip to the server, which answers reads from its
/// copy.
const SYNC: &str = "Sync";

/// Returns cells of a counter.
pub async fn read(session: &mut Session, counter: &str, cells: Range<u32>) -> Result<Vec<u64>, SwitchError> {
    let schema = session.schema.clone();
    let table = schema.table(counter)?;
    let operation = TableOperation { table_id: table.id, table_operations_type: SYNC.to_owned() };
    let sync = Update {
        r#type: Type::Insert.into(),
        entity: Some(Entity { entity: Some(entity::Entity::TableOperation(operation)) }),
    };
    let synchronized = session.write(vec![sync]).await;
    synchronized.map_err(|error| error.of_all(&format!("synchronizing counter `{counter}`")))?;
    let keys = cells.clone().map(|index| with_key(table, &cell(index))).collect::<Result<_, _>>()?;
    let (index, packets) = (table.key_field(INDEX)?, table.data_field(PACKETS)?);
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for entry in session.read(keys, &format!("reading counter `{counter}`")).await? {
        let at = key_fields(&entry).iter().find(|part| part.field_id == index.id);
        let Some(MatchType::Exact(at)) = at.and_then(|part| part.match_type.as_ref()) else {
            return Err(wrong(table, index, "the switch sends a cell without an index"));
        };
        let fields = entry.data.as_ref().map_or(&[][..], |data| &data.fields);
        let count = fields.iter().find(|part| part.field_id == packets.id);
        let Some(Value::Stream(count)) = count.and_then(|part| part.value.as_ref()) else {
            return Err(wrong(table, packets, "the switch sends a cell without a count"));
        };
        counts.insert(number(table, index, &at.value)? as u32, number(table, packets, count)?);
    }
    let count = |index| counts.get(&index).copied();
    let counts: Option<Vec<u64>> = cells.map(count).collect();
    counts.ok_or_else(|| wrong(table, index, "the switch leaves out cells that it was asked for"))
}

/// Sets cells of a counter to zero.
pub async fn clear(session: &mut Session, counter: &str, cells: Range<u32>) -> Result<(), SwitchError> {
    let schema = session.schema.clone();
    let table = schema.table(counter)?;
    let packets = table.data_field(PACKETS)?;
    let updates = cells.map(|index| {
        let field = DataField { field_id: packets.id, value: Some(Value::Stream(bytes(table, packets, 0)?)) };
        let data = Some(TableData { action_id: 0, fields: vec![field] });
        Ok(of_entry(Type::Modify, TableEntry { data, ..with_key(table, &cell(index))? }))
    });
    let updates = updates.collect::<Result<Vec<_>, SwitchError>>()?;
    let cleared = session.write(updates).await;
    cleared.map_err(|error| error.of_all(&format!("clearing counter `{counter}`")))
}

fn cell(index: u32) -> Key {
    Key(BTreeMap::from([(INDEX.to_owned(), Match::Exact(index.into()))]))
}
