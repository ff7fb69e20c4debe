//! Multicast groups: `$pre.mgid` lists the nodes of a group, and `$pre.node` the ports of a node.
//!
//! A node is the replicas of a group that have the same replication id. Its number is made of the group's and
//! of that id, so that groups have no node in common.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    proto::bfrt_proto::{
        DataField, TableData, TableEntry, Update,
        data_field::{BoolArray, IntArray, Value},
        key_field::MatchType,
        update::Type,
    },
    target::{Change, Group, Key, Match, Replica, SwitchError},
};

use super::{
    entry::{bytes, key_fields, number, of_entry, with_key, wrong},
    schema::{Schema, Table},
    session::Session,
};

const GROUPS: &str = "$pre.mgid";
const GROUP: &str = "$MGID";
const NODES: &str = "$pre.node";
/// The key of a node, and the field of a group that lists its nodes.
const NODE: &str = "$MULTICAST_NODE_ID";
const NODE_IS_PRUNED: &str = "$MULTICAST_NODE_L1_XID_VALID";
const NODE_PRUNING: &str = "$MULTICAST_NODE_L1_XID";
const REPLICATION_ID: &str = "$MULTICAST_RID";
const LAGS: &str = "$MULTICAST_LAG_ID";
const PORTS: &str = "$DEV_PORT";
/// A replication id has 16 bits.
const REPLICATION_IDS: u32 = 1 << 16;

/// Returns the updates that change a group, given the nodes that it has now.
pub fn updates(
    schema: &Schema,
    change: Change,
    group: &Group,
    present: &BTreeSet<u32>,
) -> Result<Vec<Update>, SwitchError> {
    let mut ports: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    if change != Change::Delete {
        for replica in &group.replicas {
            ports.entry(node(group.id, replica.instance)?).or_default().push(replica.port);
        }
    }
    let nodes: Vec<u32> = ports.keys().copied().collect();
    let of_node = |node: &u32| {
        let change = if present.contains(node) { Type::Modify } else { Type::Insert };
        Ok(of_entry(change, node_entry(schema, *node, Some(&ports[node]))?))
    };
    // A node is there before a group lists it, and leaves after that.
    let mut updates = nodes.iter().map(of_node).collect::<Result<Vec<_>, SwitchError>>()?;
    updates.push(match change {
        Change::Insert => of_entry(Type::Insert, group_entry(schema, group.id, Some(&nodes))?),
        Change::Modify => of_entry(Type::Modify, group_entry(schema, group.id, Some(&nodes))?),
        Change::Delete => of_entry(Type::Delete, group_entry(schema, group.id, None)?),
    });
    for gone in present.iter().filter(|node| !ports.contains_key(node)) {
        updates.push(of_entry(Type::Delete, node_entry(schema, *gone, None)?));
    }
    Ok(updates)
}

/// Returns the numbers of the nodes that were made for a group, be they listed by it or not.
pub async fn nodes_of(session: &mut Session, group: u32) -> Result<BTreeSet<u32>, SwitchError> {
    let nodes = nodes(session).await?;
    Ok(nodes.into_keys().filter(|node| node / REPLICATION_IDS == group).collect())
}

/// Returns all groups.
pub async fn read(session: &mut Session) -> Result<Vec<Group>, SwitchError> {
    let nodes = nodes(session).await?;
    let schema = session.schema.clone();
    let table = schema.table(GROUPS)?;
    let mut groups = Vec::new();
    for entry in session.read(vec![all_of(table)], "reading the multicast groups").await? {
        let id = key(table, &entry, GROUP)?;
        let listed = list(table, &entry, NODE)?;
        let replicas = listed.iter().filter_map(|node| nodes.get(node)).flatten().copied();
        groups.push(Group::new(id, replicas));
    }
    Ok(groups)
}

/// Returns the replicas of each node.
async fn nodes(session: &mut Session) -> Result<BTreeMap<u32, Vec<Replica>>, SwitchError> {
    let schema = session.schema.clone();
    let table = schema.table(NODES)?;
    let entries = session.read(vec![all_of(table)], "reading the multicast nodes").await?;
    let replicas = entries.iter().map(|entry| {
        let field = table.data_field(REPLICATION_ID)?;
        let instance = match data(entry, field.id) {
            Some(Value::Stream(value)) => number(table, field, value)? as u32,
            _ => return Err(wrong(table, field, "the switch sends no number")),
        };
        let ports = list(table, entry, PORTS)?;
        Ok((key(table, entry, NODE)?, ports.iter().map(|port| Replica { port: *port, instance }).collect()))
    });
    replicas.collect()
}

fn node(group: u32, instance: u32) -> Result<u32, SwitchError> {
    let node = group.checked_mul(REPLICATION_IDS).filter(|_| instance < REPLICATION_IDS);
    node.map(|base| base + instance).ok_or_else(|| SwitchError::Refused {
        doing: format!("numbering the nodes of multicast group {group}"),
        what: format!("that group and replication id {instance} have 16 bits each"),
    })
}

/// The entry of a node; without ports, its key.
fn node_entry(schema: &Schema, node: u32, ports: Option<&[u32]>) -> Result<TableEntry, SwitchError> {
    let table = schema.table(NODES)?;
    let entry = with_key(table, &exact(NODE, node))?;
    let Some(ports) = ports else { return Ok(entry) };
    let id = table.data_field(REPLICATION_ID)?;
    let instance = bytes(table, id, u64::from(node % REPLICATION_IDS))?;
    let fields = vec![
        DataField { field_id: id.id, value: Some(Value::Stream(instance)) },
        numbers(table, LAGS, &[])?,
        numbers(table, PORTS, ports)?,
    ];
    Ok(TableEntry { data: Some(TableData { action_id: 0, fields }), ..entry })
}

/// The entry of a group; without nodes, its key.
fn group_entry(schema: &Schema, group: u32, nodes: Option<&[u32]>) -> Result<TableEntry, SwitchError> {
    let table = schema.table(GROUPS)?;
    let entry = with_key(table, &exact(GROUP, group))?;
    let Some(nodes) = nodes else { return Ok(entry) };
    let pruned = BoolArray { val: vec![false; nodes.len()] };
    let fields = vec![
        numbers(table, NODE, nodes)?,
        DataField { field_id: table.data_field(NODE_IS_PRUNED)?.id, value: Some(Value::BoolArrVal(pruned)) },
        numbers(table, NODE_PRUNING, &vec![0; nodes.len()])?,
    ];
    Ok(TableEntry { data: Some(TableData { action_id: 0, fields }), ..entry })
}

pub fn exact(field: &str, value: u32) -> Key {
    Key(BTreeMap::from([(field.to_owned(), Match::Exact(value.into()))]))
}

fn numbers(table: &Table, field: &str, values: &[u32]) -> Result<DataField, SwitchError> {
    let value = Some(Value::IntArrVal(IntArray { val: values.to_vec() }));
    Ok(DataField { field_id: table.data_field(field)?.id, value })
}

fn all_of(table: &Table) -> TableEntry {
    TableEntry { table_id: table.id, ..TableEntry::default() }
}

fn key(table: &Table, entry: &TableEntry, name: &str) -> Result<u32, SwitchError> {
    let field = table.key_field(name)?;
    let found = key_fields(entry).iter().find(|part| part.field_id == field.id);
    match found.and_then(|part| part.match_type.as_ref()) {
        Some(MatchType::Exact(exact)) => Ok(number(table, field, &exact.value)? as u32),
        _ => Err(wrong(table, field, "the switch sends no exact match")),
    }
}

pub fn list(table: &Table, entry: &TableEntry, name: &str) -> Result<Vec<u32>, SwitchError> {
    let field = table.data_field(name)?;
    match data(entry, field.id) {
        Some(Value::IntArrVal(list)) => Ok(list.val.clone()),
        _ => Err(wrong(table, field, "the switch sends no list of numbers")),
    }
}

pub fn data(entry: &TableEntry, field: u32) -> Option<&Value> {
    let fields = &entry.data.as_ref()?.fields;
    fields.iter().find(|part| part.field_id == field)?.value.as_ref()
}
