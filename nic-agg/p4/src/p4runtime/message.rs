//! Entries, groups and counters as P4Runtime's messages, and back.

use std::collections::BTreeMap;

use super::program::{Program, Table};
use crate::{
    number::number,
    proto::p4::v1::{
        self as p4, CounterData, CounterEntry, Entity, FieldMatch, Index, MulticastGroupEntry,
        PacketReplicationEngineEntry, TableAction, TableEntry, action, entity, field_match,
        packet_replication_engine_entry, replica, table_action, update,
    },
    target::{Change, Entry, Group, Key, Match, Replica, SwitchError, Update},
};

/// The priority of all entries of tables with ternary fields: they do not overlap.
const PRIORITY: i32 = 1;

pub fn update(program: &Program, update: &Update) -> Result<p4::Update, SwitchError> {
    let (change, entity) = match update {
        Update::Entry(change, entry) => (change, entity::Entity::TableEntry(table_entry(program, entry)?)),
        Update::Group(change, group) => (change, multicast(group)),
    };
    let kind = match change {
        Change::Insert => update::Type::Insert,
        Change::Modify => update::Type::Modify,
        Change::Delete => update::Type::Delete,
    };
    Ok(p4::Update { r#type: kind.into(), entity: Some(Entity { entity: Some(entity) }) })
}

/// Returns the message of a counter's cell; with `packets`, to set it.
pub fn counter(id: u32, cell: u32, packets: Option<i64>) -> Entity {
    let data = packets.map(|packet_count| CounterData { packet_count, ..CounterData::default() });
    let index = Some(Index { index: cell.into() });
    Entity { entity: Some(entity::Entity::CounterEntry(CounterEntry { counter_id: id, index, data })) }
}

/// Returns the message that asks for all entries of a table.
pub fn all_entries(table: &Table) -> Entity {
    let all = TableEntry { table_id: table.id, ..TableEntry::default() };
    Entity { entity: Some(entity::Entity::TableEntry(all)) }
}

/// Returns the message that asks for all multicast groups.
pub fn all_groups() -> Entity {
    Entity { entity: Some(multicast(&Group { id: 0, replicas: Vec::new() })) }
}

fn table_entry(program: &Program, entry: &Entry) -> Result<TableEntry, SwitchError> {
    let table = program.table(entry.table)?;
    let action = program.action(table, &entry.action)?;
    let field = |(name, value): (&String, &Match)| {
        let field = table.field(name)?;
        let value = match *value {
            Match::Exact(value) => {
                field_match::FieldMatchType::Exact(field_match::Exact { value: bytes(value) })
            }
            Match::Ternary { value, mask } => field_match::FieldMatchType::Ternary(field_match::Ternary {
                value: bytes(value),
                mask: bytes(mask),
            }),
        };
        Ok(FieldMatch { field_id: field.id, field_match_type: Some(value) })
    };
    let parameter = |(name, value): (&String, &u64)| {
        let unknown = || SwitchError::Unknown {
            kind: "parameter",
            name: format!("{name}` of action `{}", entry.action),
        };
        let param_id = action.parameters.get(name).ok_or_else(unknown)?.id;
        Ok(action::Param { param_id, value: bytes(*value) })
    };
    let params = entry.parameters.iter().map(parameter).collect::<Result<_, SwitchError>>()?;
    let called = p4::Action { action_id: action.id, params };
    Ok(TableEntry {
        table_id: table.id,
        r#match: entry.key.0.iter().map(field).collect::<Result<_, SwitchError>>()?,
        action: Some(TableAction { r#type: Some(table_action::Type::Action(called)) }),
        priority: if table.has_priority() { PRIORITY } else { 0 },
        ..TableEntry::default()
    })
}

/// Returns an entry that was read; `None`: it is of another kind, which this control plane does not write.
pub fn entry(program: &Program, name: &'static str, entity: &Entity) -> Result<Option<Entry>, SwitchError> {
    let Some(entity::Entity::TableEntry(read)) = &entity.entity else { return Ok(None) };
    let Some(table_action::Type::Action(called)) =
        read.action.as_ref().and_then(|action| action.r#type.as_ref())
    else {
        return Ok(None);
    };
    let table = program.table(name)?;
    let action = program.action_of(called.action_id)?;
    let checked = |of: &str, bits: u32, bytes: &[u8]| {
        number(bytes, bits).map_err(|what| SwitchError::Field {
            table: name.to_owned(),
            field: of.to_owned(),
            what,
        })
    };
    let mut key = BTreeMap::new();
    for field in &read.r#match {
        let Some(known) = table.fields.iter().find(|known| known.id == field.field_id) else { continue };
        let value = |bytes: &[u8]| checked(&known.name, known.bits, bytes);
        let value = match &field.field_match_type {
            Some(field_match::FieldMatchType::Exact(exact)) => Match::Exact(value(&exact.value)?),
            Some(field_match::FieldMatchType::Ternary(ternary)) => {
                Match::Ternary { value: value(&ternary.value)?, mask: value(&ternary.mask)? }
            }
            _ => continue,
        };
        key.insert(known.name.clone(), value);
    }
    let mut parameters = BTreeMap::new();
    for read in &called.params {
        let known = action.parameters.iter().find(|(_, known)| known.id == read.param_id);
        if let Some((of, known)) = known {
            parameters.insert(of.clone(), checked(of, known.bits, &read.value)?);
        }
    }
    Ok(Some(Entry { table: name, key: Key(key), action: action.name.clone(), parameters }))
}

fn multicast(group: &Group) -> entity::Entity {
    #[expect(deprecated, reason = "the form that servers of before P4Runtime 1.4 know too")]
    let replica = |replica: &Replica| p4::Replica {
        instance: replica.instance,
        port_kind: Some(replica::PortKind::EgressPort(replica.port)),
        ..p4::Replica::default()
    };
    let entry = MulticastGroupEntry {
        multicast_group_id: group.id,
        replicas: group.replicas.iter().map(replica).collect(),
        ..MulticastGroupEntry::default()
    };
    let of = packet_replication_engine_entry::Type::MulticastGroupEntry(entry);
    entity::Entity::PacketReplicationEngineEntry(PacketReplicationEngineEntry { r#type: Some(of) })
}

/// Returns a group that was read; `None`: it is of another kind.
pub fn group(entity: &Entity) -> Result<Option<Group>, SwitchError> {
    let Some(entity::Entity::PacketReplicationEngineEntry(engine)) = &entity.entity else { return Ok(None) };
    let Some(packet_replication_engine_entry::Type::MulticastGroupEntry(read)) = &engine.r#type else {
        return Ok(None);
    };
    let wide = || SwitchError::Refused {
        doing: format!("reading multicast group {}", read.multicast_group_id),
        what: "a port of more than 32 bits".to_owned(),
    };
    let port = |replica: &p4::Replica| match &replica.port_kind {
        #[expect(deprecated, reason = "servers of before P4Runtime 1.4")]
        Some(replica::PortKind::EgressPort(port)) => Ok(*port),
        Some(replica::PortKind::Port(port)) => {
            number(port, u32::BITS).ok().and_then(|port| u32::try_from(port).ok()).ok_or_else(wide)
        }
        None => Ok(0),
    };
    let replica = |read: &p4::Replica| Ok(Replica { port: port(read)?, instance: read.instance });
    let replicas = read.replicas.iter().map(replica).collect::<Result<Vec<_>, SwitchError>>()?;
    Ok(Some(Group::new(read.multicast_group_id, replicas)))
}

/// Returns the cell and packets of a counter that was read.
pub fn cell(entity: &Entity) -> Option<(u32, u64)> {
    let Some(entity::Entity::CounterEntry(read)) = &entity.entity else { return None };
    let cell = u32::try_from(read.index.as_ref()?.index).ok()?;
    Some((cell, u64::try_from(read.data.as_ref()?.packet_count).ok()?))
}

/// Returns a number as P4Runtime writes it: big endian, without leading zeros.
fn bytes(value: u64) -> Vec<u8> {
    let all = value.to_be_bytes();
    let zeros = (value.leading_zeros() / 8).min(7) as usize;
    all[zeros..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_leading_zeros() {
        let table: [(u64, &[u8]); 5] = [
            (0, &[0]),
            (255, &[255]),
            (256, &[1, 0]),
            (0x0200_0000_0001, &[2, 0, 0, 0, 0, 1]),
            (u64::MAX, &[255; 8]),
        ];
        for (value, expected) in table {
            assert_eq!(bytes(value), expected, "{value}");
            assert_eq!(number(expected, 64), Ok(value));
        }
    }
}
