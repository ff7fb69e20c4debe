//! The tables that BFRuntime knows by number: names, numbers and types, as bf-rt.json lists them.

use std::ops::Deref;

use serde::Deserialize;

use crate::{sizes::Compiled, target::SwitchError};

/// Tables of a program, or of a device.
#[derive(Debug, Default, Deserialize)]
pub struct Schema {
    pub tables: Vec<Table>,
}

#[derive(Debug, Deserialize)]
pub struct Table {
    /// With its path: `pipe.SumacIngress.admission.jobs`.
    pub name: String,
    pub id: u32,
    /// Its most entries, or the cells of a register.
    #[serde(default)]
    size: u64,
    #[serde(default)]
    pub key: Vec<Field>,
    #[serde(default, rename = "action_specs")]
    pub actions: Vec<Action>,
    /// Of entries without an action.
    #[serde(default)]
    data: Vec<Data>,
}

#[derive(Debug, Deserialize)]
pub struct Action {
    /// With its path.
    pub name: String,
    pub id: u32,
    #[serde(default)]
    pub data: Vec<ActionField>,
}

/// A field of an action. Tables of a device wrap it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum ActionField {
    Plain(Field),
    Wrapped { singleton: Field },
}

impl Deref for ActionField {
    type Target = Field;

    fn deref(&self) -> &Field {
        let (ActionField::Plain(field) | ActionField::Wrapped { singleton: field }) = self;
        field
    }
}

#[derive(Debug, Deserialize)]
struct Data {
    /// None: one of several fields, which only meters and the like have.
    singleton: Option<Field>,
}

#[derive(Debug, Deserialize)]
pub struct Field {
    pub id: u32,
    pub name: String,
    /// Of a key's field.
    pub match_type: Option<String>,
    /// Empty of a field that has fields of its own, as those of hash configurations have.
    #[serde(default, rename = "type")]
    pub kind: Type,
}

#[derive(Debug, Default, Deserialize)]
pub struct Type {
    #[serde(rename = "type")]
    pub name: String,
    /// In bits; of `bytes`.
    pub width: Option<u32>,
}

impl Schema {
    /// Reads a bf-rt.json.
    pub fn parse(json: &[u8]) -> Result<Schema, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// Returns the table of this name: all of it, or its last component.
    pub fn table(&self, name: &str) -> Result<&Table, SwitchError> {
        let mut tables = self.tables.iter();
        tables.find(|table| is_named(&table.name, name)).ok_or_else(|| unknown("table", name))
    }

    /// Returns the sizes that the program was compiled with.
    pub fn compiled_sizes(&self) -> Result<Compiled, SwitchError> {
        Compiled::of(|name| Some(self.table(name).ok()?.size))
    }
}

impl Table {
    pub fn key_field(&self, name: &str) -> Result<&Field, SwitchError> {
        let mut fields = self.key.iter();
        fields.find(|field| field.name == name).ok_or_else(|| unknown("key", &self.part(name)))
    }

    pub fn action(&self, name: &str) -> Result<&Action, SwitchError> {
        let mut actions = self.actions.iter();
        actions.find(|action| is_named(&action.name, name)).ok_or_else(|| unknown("action", &self.part(name)))
    }

    /// Returns a field that all entries have, as those of a table without actions.
    pub fn data_field(&self, name: &str) -> Result<&Field, SwitchError> {
        let mut fields = self.data();
        fields.find(|field| field.name == name).ok_or_else(|| unknown("field", &self.part(name)))
    }

    /// Returns the fields of the entries of a table without actions.
    pub fn data(&self) -> impl Iterator<Item = &Field> {
        self.data.iter().filter_map(|data| data.singleton.as_ref())
    }

    fn part(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }
}

impl Field {
    /// The width of its values in bits, which BFRuntime sends as big-endian bytes; none: they are no numbers.
    pub fn bits(&self) -> Option<u32> {
        match self.kind.name.as_str() {
            "bytes" => self.kind.width,
            "uint8" => Some(8),
            "uint16" => Some(16),
            "uint32" => Some(32),
            "uint64" => Some(64),
            _ => None,
        }
    }
}

/// The last component of a name.
pub fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn is_named(path: &str, name: &str) -> bool {
    path == name || last(path) == name
}

fn unknown(kind: &'static str, name: &str) -> SwitchError {
    SwitchError::Unknown { kind, name: name.to_owned() }
}
