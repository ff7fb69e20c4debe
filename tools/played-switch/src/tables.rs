//! The tables of a played switch, which take what their bf-rt.json allows and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use tonic::Code;

use crate::definitions::{Action, Definition, Field, File, data_fields};
use crate::proto::bfrt_proto::{
    DataField, Error, KeyField, TableData, TableEntry, TableKey,
    data_field::{IntArray, Value},
    key_field::MatchType,
    table_entry,
    update::Type,
};

/// The table of a chip's ports.
const PORTS: &str = "TmPortCfg";
/// A field of the keys of queues, beside those of the table: fields have numbers from 1 on.
const PIPE: u32 = 0;
/// The number that stands for all pipes.
const ALL_PIPES: u32 = 0xffff;

/// The fields of a key by number: value and mask.
type Stored = BTreeMap<u32, (Vec<u8>, Vec<u8>)>;

/// Definitions and contents of all tables.
#[derive(Default)]
pub struct Tables {
    definitions: BTreeMap<u32, Definition>,
    entries: BTreeMap<u32, BTreeMap<Stored, TableData>>,
    /// Counters on the chip, by table and index.
    chip: BTreeMap<(u32, u32), u64>,
    /// The server's copies of them.
    copies: BTreeMap<(u32, u32), u64>,
}

/// An entry by names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Value, and mask of a ternary field.
    pub key: BTreeMap<String, (u64, Option<u64>)>,
    pub action: String,
    pub data: BTreeMap<String, Vec<u64>>,
}

type Answer<T> = Result<T, Error>;

impl Tables {
    /// Adds the tables of a bf-rt.json.
    pub fn add(&mut self, json: &[u8]) -> Result<(), serde_json::Error> {
        let file: File = serde_json::from_slice(json)?;
        self.definitions.extend(file.tables.into_iter().map(|table| (table.id, table)));
        Ok(())
    }

    pub fn change(&mut self, pipe: u32, change: Type, entry: &TableEntry) -> Answer<()> {
        let table = self.definition(entry.table_id)?.clone();
        let mut key = stored(&table, entry)?;
        if table.is_of_queues() {
            return self.set_queue(&table, pipe, change, (&mut key, entry));
        }
        if table.table_type == "Counter" {
            return self.set_counter(&table, change, &key, entry);
        }
        if change != Type::Delete {
            check_data(&table, entry.data.as_ref())?;
            self.check_references(&table, entry.data.as_ref())?;
        }
        let is_listed = change == Type::Delete && self.is_listed(&table, &key);
        let entries = self.entries.entry(table.id).or_default();
        let data = entry.data.clone().unwrap_or_default();
        match (change, entries.contains_key(&key)) {
            (Type::Insert, true) => Err(error(Code::AlreadyExists, &table, "Already exists")),
            (Type::Insert, false) if entries.len() >= table.size => {
                Err(error(Code::ResourceExhausted, &table, "Not enough space"))
            }
            (Type::Modify | Type::Delete, false) => Err(error(Code::NotFound, &table, "Object not found")),
            (Type::Delete, true) if is_listed => {
                Err(error(Code::AlreadyExists, &table, "Entry References Exist"))
            }
            (Type::Insert, false) | (Type::Modify, true) => {
                entries.insert(key, data);
                Ok(())
            }
            (Type::Delete, true) => {
                entries.remove(&key);
                Ok(())
            }
            _ => Err(error(
                Code::Unimplemented,
                &table,
                "this played server does not take that type of update",
            )),
        }
    }

    /// Copies a counter from the chip.
    pub fn operate(&mut self, table: u32, operation: &str) -> Answer<()> {
        let table = self.definition(table)?;
        let is_sync = table.table_type == "Counter" && ["Sync", "SyncCounters"].contains(&operation);
        if !is_sync {
            return Err(error(Code::InvalidArgument, table, "Operation not supported"));
        }
        let id = table.id;
        let counts =
            self.chip.iter().filter(|((table, _), _)| *table == id).map(|(cell, count)| (*cell, *count));
        self.copies.extend(counts);
        Ok(())
    }

    pub fn read(&self, entry: &TableEntry) -> Answer<Vec<TableEntry>> {
        let table = self.definition(entry.table_id)?;
        if table.table_type == "Counter" {
            let index = index(table, &stored(table, entry)?)?;
            return Ok(vec![counter(
                table,
                index,
                self.copies.get(&(table.id, index)).copied().unwrap_or(0),
            )]);
        }
        let entries = self.entries.get(&table.id);
        if entry.value.is_none() {
            let entries = entries.into_iter().flatten().map(|(key, data)| message(table, key, data));
            // A server also returns the default entry, which nobody wrote.
            let default = TableEntry { table_id: table.id, is_default_entry: true, ..TableEntry::default() };
            let default = (!table.action_specs.is_empty()).then_some(default);
            return Ok(entries.chain(default).collect());
        }
        let key = stored(table, entry)?;
        if table.table_type == PORTS {
            return port(table, &key).map(|data| vec![message(table, &key, &data)]);
        }
        let data = entries.and_then(|entries| entries.get(&key));
        data.map(|data| vec![message(table, &key, data)])
            .ok_or_else(|| error(Code::NotFound, table, "Object not found"))
    }

    /// The entries of a table, by the last component of its name.
    pub fn rows(&self, name: &str) -> Vec<Row> {
        let Some(table) = self.by_name(name) else { return Vec::new() };
        let entries = self.entries.get(&table.id).into_iter().flatten();
        entries.map(|(key, data)| row(table, key, data)).collect()
    }

    /// Counts packets on the chip.
    pub fn count(&mut self, counter: &str, index: u32, packets: u64) {
        if let Some(id) = self.by_name(counter).map(|table| table.id) {
            *self.chip.entry((id, index)).or_default() += packets;
        }
    }

    fn by_name(&self, name: &str) -> Option<&Definition> {
        let is_named = |table: &&Definition| table.name == name || table.name.ends_with(&format!(".{name}"));
        self.definitions.values().find(is_named)
    }

    fn definition(&self, id: u32) -> Answer<&Definition> {
        self.definitions.get(&id).ok_or_else(|| Error {
            canonical_code: Code::NotFound.into(),
            message: format!("Table not found for id {id}"),
            ..Error::default()
        })
    }

    fn set_counter(
        &mut self,
        table: &Definition,
        change: Type,
        key: &Stored,
        entry: &TableEntry,
    ) -> Answer<()> {
        let index = index(table, key)?;
        let fields = entry.data.as_ref().map_or(&[][..], |data| &data.fields);
        match (change, fields) {
            (Type::Modify, [DataField { field_id, value: Some(Value::Stream(count)) }])
                if *field_id == packets(table) && count.len() == 8 =>
            {
                self.chip.insert((table.id, index), number(count));
                self.copies.insert((table.id, index), number(count));
                Ok(())
            }
            (Type::Modify, _) => Err(error(Code::InvalidArgument, table, "SetValue failed")),
            _ => Err(error(Code::Unimplemented, table, "Operation not supported")),
        }
    }

    /// Changes a queue of a pipe, which is there without having been inserted. Fields that are left out stay.
    fn set_queue(
        &mut self,
        table: &Definition,
        pipe: u32,
        change: Type,
        (key, entry): (&mut Stored, &TableEntry),
    ) -> Answer<()> {
        if change != Type::Modify || pipe == ALL_PIPES {
            return Err(error(Code::InvalidArgument, table, "a queue of one pipe can be modified only"));
        }
        let data = entry.data.clone().unwrap_or_default();
        let action = table.action_specs.iter().find(|action| action.id == data.action_id);
        if action.is_none() && !(table.action_specs.is_empty() && data.action_id == 0) {
            return Err(error(Code::InvalidArgument, table, "no such action"));
        }
        let fields: Vec<&Field> =
            data_fields(table).chain(action.into_iter().flat_map(Action::fields)).collect();
        check_fields(table, &fields, &data)?;
        key.insert(PIPE, (pipe.to_be_bytes().to_vec(), Vec::new()));
        let queue = self.entries.entry(table.id).or_default().entry(key.clone()).or_default();
        queue.action_id = data.action_id;
        for field in data.fields {
            queue.fields.retain(|before| before.field_id != field.field_id);
            queue.fields.push(field);
        }
        Ok(())
    }

    /// A group lists nodes that are there.
    fn check_references(&self, table: &Definition, data: Option<&TableData>) -> Answer<()> {
        if table.name != "$pre.mgid" {
            return Ok(());
        }
        let nodes: BTreeSet<u64> = match self
            .by_name("$pre.node")
            .and_then(|table| self.entries.get(&table.id))
        {
            Some(nodes) => nodes.keys().flat_map(|key| key.values().map(|(node, _)| number(node))).collect(),
            None => BTreeSet::new(),
        };
        let fields = data.map_or(&[][..], |data| &data.fields);
        let lists = fields.iter().filter_map(|field| match &field.value {
            Some(Value::IntArrVal(list)) if Some(field.field_id) == data_id(table, "$MULTICAST_NODE_ID") => {
                Some(list)
            }
            _ => None,
        });
        if lists.flat_map(|list| &list.val).any(|node| !nodes.contains(&u64::from(*node))) {
            return Err(error(Code::NotFound, table, "a listed node is not there"));
        }
        Ok(())
    }

    /// Whether the key is that of a node in a group.
    fn is_listed(&self, table: &Definition, key: &Stored) -> bool {
        let nodes: Vec<u64> = key.values().map(|(node, _)| number(node)).collect();
        let listed =
            |row: &Row| row.data.get("$MULTICAST_NODE_ID").is_some_and(|list| list.contains(&nodes[0]));
        table.name == "$pre.node" && self.rows("$pre.mgid").iter().any(listed)
    }
}

/// Returns the key of an entry, if it has just the fields of the table, each as long and matched as the table
/// says. A server of the SDE takes 0 for a field that is missing; this one takes that for a mistake.
fn stored(table: &Definition, entry: &TableEntry) -> Answer<Stored> {
    let wrong = |what: String| error(Code::InvalidArgument, table, &what);
    let Some(table_entry::Value::Key(key)) = &entry.value else { return Err(wrong("no key".into())) };
    let mut stored = Stored::new();
    for KeyField { field_id, match_type } in &key.fields {
        let field = table.key.iter().find(|field| field.id == *field_id);
        let field = field.ok_or_else(|| wrong(format!("no field {field_id} in the key")))?;
        let value = match match_type {
            Some(MatchType::Exact(exact)) if field.match_type == "Exact" => (exact.value.clone(), Vec::new()),
            Some(MatchType::Ternary(ternary)) if field.match_type == "Ternary" => {
                if !field.fits(&ternary.mask) {
                    return Err(wrong(format!("the mask of {} has another width", field.name)));
                }
                (ternary.value.clone(), ternary.mask.clone())
            }
            _ => return Err(wrong(format!("{} is matched {}", field.name, field.match_type))),
        };
        if !field.fits(&value.0) {
            return Err(wrong(format!("the value of {} has another width", field.name)));
        }
        if stored.insert(*field_id, value).is_some() {
            return Err(wrong(format!("{} is there twice", field.name)));
        }
    }
    match table.key.iter().find(|field| !stored.contains_key(&field.id)) {
        Some(missing) => Err(wrong(format!("no value of {}", missing.name))),
        None => Ok(stored),
    }
}

fn check_data(table: &Definition, data: Option<&TableData>) -> Answer<()> {
    let wrong = |what: String| error(Code::InvalidArgument, table, &what);
    let data = data.ok_or_else(|| wrong("no data".into()))?;
    let fields: Vec<&Field> = if table.action_specs.is_empty() && data.action_id == 0 {
        data_fields(table).collect()
    } else {
        let action = table.action_specs.iter().find(|action| action.id == data.action_id);
        let action = action.filter(|action| action.action_scope != "DefaultOnly");
        action.ok_or_else(|| wrong(format!("no action {}", data.action_id)))?.fields().collect()
    };
    check_fields(table, &fields, data)?;
    if data.fields.len() != fields.len() {
        return Err(wrong(format!("{} fields in place of {}", data.fields.len(), fields.len())));
    }
    Ok(())
}

/// Checks that data has no other fields than these, each once.
fn check_fields(table: &Definition, fields: &[&Field], data: &TableData) -> Answer<()> {
    let wrong = |what: String| error(Code::InvalidArgument, table, &what);
    for DataField { field_id, value } in &data.fields {
        let field = fields.iter().find(|field| field.id == *field_id);
        let field = field.ok_or_else(|| wrong(format!("no field {field_id} of the action")))?;
        let is_right = match (value, field.kind.name.as_str(), field.repeated) {
            (Some(Value::Stream(bytes)), "bytes" | "uint32" | "uint64", false) => field.fits(bytes),
            (Some(Value::StrVal(_)), "string", false) => true,
            (Some(Value::IntArrVal(_)), "uint32", true) | (Some(Value::BoolArrVal(_)), "bool", true) => true,
            _ => false,
        };
        if !is_right {
            return Err(wrong(format!("SetValue failed for {}", field.name)));
        }
    }
    let given: BTreeSet<u32> = data.fields.iter().map(|field| field.field_id).collect();
    if given.len() != data.fields.len() {
        return Err(wrong("a field is there twice".into()));
    }
    Ok(())
}

/// A port of the chip: its group has 4 ports, with 8 queues each.
fn port(table: &Definition, key: &Stored) -> Answer<TableData> {
    let number = key.values().next().map_or(0, |(number, _)| self::number(number)) as u32;
    if number as usize % 128 >= 72 {
        return Err(error(Code::NotFound, table, "Object not found"));
    }
    let group = Value::Stream(vec![(number % 128 / 4) as u8]);
    let queues = Value::IntArrVal(IntArray { val: (number % 4 * 8..).take(8).collect() });
    let values = [("pg_id", group), ("egress_qid_queues", queues)];
    let fields = values.into_iter().map(|(name, value)| DataField {
        field_id: data_id(table, name).unwrap_or_default(),
        value: Some(value),
    });
    Ok(TableData { action_id: 0, fields: fields.collect() })
}

fn data_id(table: &Definition, name: &str) -> Option<u32> {
    data_fields(table).find(|field| field.name == name).map(|field| field.id)
}

fn packets(table: &Definition) -> u32 {
    data_id(table, "$COUNTER_SPEC_PKTS").unwrap_or_default()
}

fn index(table: &Definition, key: &Stored) -> Answer<u32> {
    let index = key.values().next().map_or(0, |(index, _)| number(index));
    if index as usize >= table.size {
        return Err(error(Code::InvalidArgument, table, "the index is beyond the table's size"));
    }
    Ok(index as u32)
}

fn counter(table: &Definition, index: u32, count: u64) -> TableEntry {
    let field = table.key.first().map_or(0, |field| field.id);
    let key = Stored::from([(field, (index.to_be_bytes().to_vec(), Vec::new()))]);
    let value = Some(Value::Stream(count.to_be_bytes().to_vec()));
    let fields = vec![DataField { field_id: packets(table), value }];
    message(table, &key, &TableData { action_id: 0, fields })
}

fn message(table: &Definition, key: &Stored, data: &TableData) -> TableEntry {
    use crate::proto::bfrt_proto::key_field::{Exact, Ternary};
    let fields = key.iter().map(|(id, (value, mask))| {
        let (value, mask) = (value.clone(), mask.clone());
        let match_type = match mask.is_empty() {
            true => MatchType::Exact(Exact { value }),
            false => MatchType::Ternary(Ternary { value, mask }),
        };
        KeyField { field_id: *id, match_type: Some(match_type) }
    });
    TableEntry {
        table_id: table.id,
        value: Some(table_entry::Value::Key(TableKey { fields: fields.collect() })),
        data: Some(data.clone()),
        ..TableEntry::default()
    }
}

fn row(table: &Definition, key: &Stored, data: &TableData) -> Row {
    let action = table.action_specs.iter().find(|action| action.id == data.action_id);
    let fields: Vec<&Field> = match action {
        Some(action) if !table.is_of_queues() => action.fields().collect(),
        Some(action) => data_fields(table).chain(action.fields()).collect(),
        None => data_fields(table).collect(),
    };
    let name = |fields: &[&Field], id: u32| {
        fields.iter().find(|field| field.id == id).map(|field| field.name.clone()).unwrap_or_default()
    };
    let keys: Vec<&Field> = table.key.iter().collect();
    Row {
        key: key
            .iter()
            .map(|(id, (value, mask))| {
                let mask = (!mask.is_empty()).then(|| number(mask));
                let name = if *id == PIPE { "pipe".into() } else { name(&keys, *id) };
                (name, (number(value), mask))
            })
            .collect(),
        action: action
            .map(|action| action.name.rsplit('.').next().unwrap_or_default().to_owned())
            .unwrap_or_default(),
        data: data.fields.iter().map(|field| (name(&fields, field.field_id), numbers(field))).collect(),
    }
}

fn numbers(field: &DataField) -> Vec<u64> {
    match &field.value {
        Some(Value::Stream(bytes)) => vec![number(bytes)],
        // The priorities of queues are numbers or names.
        Some(Value::StrVal(text)) => text.parse().into_iter().collect(),
        Some(Value::IntArrVal(list)) => list.val.iter().map(|value| u64::from(*value)).collect(),
        Some(Value::BoolArrVal(list)) => list.val.iter().map(|value| u64::from(*value)).collect(),
        _ => Vec::new(),
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn error(code: Code, table: &Definition, what: &str) -> Error {
    Error {
        canonical_code: code.into(),
        message: format!("table: {} {what}", table.name),
        ..Error::default()
    }
}
