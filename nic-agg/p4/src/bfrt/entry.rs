//! Entries of tables as messages of BFRuntime, and back.

use crate::{
    proto::bfrt_proto::{
        DataField, Entity, KeyField, TableData, TableEntry, TableKey, Update, data_field, entity,
        key_field::{Exact, MatchType, Ternary},
        table_entry,
        update::Type,
    },
    target::{Entry, Key, Match, SwitchError},
};

use super::schema::{Field, Table, last};

/// The key's field of an entry among those of a table with ternary fields; smaller numbers match first.
const PRIORITY: &str = "$MATCH_PRIORITY";

/// Returns the change of an entry.
pub fn of_entry(change: Type, entry: TableEntry) -> Update {
    Update { r#type: change.into(), entity: Some(Entity { entity: Some(entity::Entity::TableEntry(entry)) }) }
}

/// Returns an entry's key and action as a message.
pub fn encode(table: &Table, entry: &Entry) -> Result<TableEntry, SwitchError> {
    let action = table.action(&entry.action)?;
    for name in entry.parameters.keys() {
        if !action.data.iter().any(|field| field.name == *name) {
            return Err(SwitchError::Unknown { kind: "parameter", name: format!("{}/{name}", action.name) });
        }
    }
    let fields = action.data.iter().map(|field| {
        let value = entry.parameters.get(&field.name).copied();
        let value = value.ok_or_else(|| wrong(table, field, "the entry has no value for it"))?;
        Ok(DataField {
            field_id: field.id,
            value: Some(data_field::Value::Stream(bytes(table, field, value)?)),
        })
    });
    let fields = fields.collect::<Result<_, SwitchError>>()?;
    let data = Some(TableData { action_id: action.id, fields });
    Ok(TableEntry { data, ..with_key(table, &entry.key)? })
}

/// Returns a key as a message, with all fields of the table.
pub fn with_key(table: &Table, key: &Key) -> Result<TableEntry, SwitchError> {
    for name in key.0.keys() {
        table.key_field(name)?;
    }
    let fields = table.key.iter().map(|field| {
        let is_ternary = field.match_type.as_deref() == Some("Ternary");
        let value = |value| bytes(table, field, value);
        let match_type = match (key.0.get(&field.name), is_ternary) {
            (Some(Match::Exact(exact)), false) => MatchType::Exact(Exact { value: value(*exact)? }),
            (Some(Match::Ternary { value: bits, mask }), true) => {
                MatchType::Ternary(Ternary { value: value(*bits)?, mask: value(*mask)? })
            }
            (None, true) => MatchType::Ternary(Ternary { value: value(0)?, mask: value(0)? }),
            // Entries do not overlap: any will do.
            (None, false) if field.name == PRIORITY => MatchType::Exact(Exact { value: value(0)? }),
            (None, false) => return Err(wrong(table, field, "the entry has no value for it")),
            (Some(_), _) => return Err(wrong(table, field, "the program matches it in another way")),
        };
        Ok(KeyField { field_id: field.id, match_type: Some(match_type) })
    });
    let key = TableKey { fields: fields.collect::<Result<_, SwitchError>>()? };
    Ok(TableEntry { table_id: table.id, value: Some(table_entry::Value::Key(key)), ..TableEntry::default() })
}

/// Returns the entry of a message that the switch sent.
pub fn decode(name: &'static str, table: &Table, message: &TableEntry) -> Result<Entry, SwitchError> {
    let mut key = Key::default();
    for part in key_fields(message) {
        let Some(field) = table.key.iter().find(|field| field.id == part.field_id) else {
            return Err(unexpected(table, "a field of a key", part.field_id));
        };
        if field.name == PRIORITY {
            continue;
        }
        let matched = match &part.match_type {
            Some(MatchType::Exact(exact)) => Match::Exact(number(table, field, &exact.value)?),
            Some(MatchType::Ternary(ternary)) => {
                let mask = number(table, field, &ternary.mask)?;
                if mask == 0 {
                    continue;
                }
                Match::Ternary { value: number(table, field, &ternary.value)? & mask, mask }
            }
            _ => return Err(wrong(table, field, "the switch sends a match of another type")),
        };
        key.0.insert(field.name.clone(), matched);
    }
    let data = message.data.as_ref();
    let id = data.map_or(0, |data| data.action_id);
    let Some(action) = table.actions.iter().find(|action| action.id == id) else {
        return Err(unexpected(table, "an action", id));
    };
    let mut entry = Entry::new(name, last(&action.name));
    entry.key = key;
    for part in data.map_or(&[][..], |data| &data.fields) {
        // Direct counters and the like come with the action's own fields.
        if let Some(field) = action.data.iter().find(|field| field.id == part.field_id) {
            let Some(data_field::Value::Stream(value)) = &part.value else {
                return Err(wrong(table, field, "the switch sends a value of another type"));
            };
            entry.parameters.insert(field.name.clone(), number(table, field, value)?);
        }
    }
    Ok(entry)
}

pub fn key_fields(message: &TableEntry) -> &[KeyField] {
    match &message.value {
        Some(table_entry::Value::Key(key)) => &key.fields,
        Some(table_entry::Value::HandleId(_)) | None => &[],
    }
}

/// Returns a value as big-endian bytes of the field's width.
pub fn bytes(table: &Table, field: &Field, value: u64) -> Result<Vec<u8>, SwitchError> {
    let bits = field.bits().ok_or_else(|| wrong(table, field, "it holds no number"))?;
    if bits < 64 && value >> bits != 0 {
        return Err(wrong(table, field, &format!("the value needs more than its {bits} bits")));
    }
    let length = bits.div_ceil(8) as usize;
    let wide = [&vec![0; length.saturating_sub(8)][..], &value.to_be_bytes()].concat();
    Ok(wide[wide.len() - length..].to_vec())
}

/// Returns the number that big-endian bytes hold.
pub fn number(table: &Table, field: &Field, bytes: &[u8]) -> Result<u64, SwitchError> {
    crate::number::number(bytes, field.bits().unwrap_or(u64::BITS)).map_err(|what| wrong(table, field, &what))
}

pub fn wrong(table: &Table, field: &Field, what: &str) -> SwitchError {
    let (table, field) = (table.name.clone(), field.name.clone());
    SwitchError::Field { table, field, what: what.to_owned() }
}

fn unexpected(table: &Table, kind: &str, id: u32) -> SwitchError {
    let doing = format!("reading table `{}`", table.name);
    SwitchError::Refused {
        doing,
        what: format!("{kind} of number {id}, which its own bf-rt.json does not list"),
    }
}
