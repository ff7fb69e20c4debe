//! The tables that a bf-rt.json defines.
//!
//! They are read from the file apart from the client's reading of it, so that a mistake of the one shows at
//! the other.

use serde::Deserialize;

#[derive(Clone, Default, Deserialize)]
pub struct File {
    pub tables: Vec<Definition>,
}

#[derive(Clone, Deserialize)]
pub struct Definition {
    pub name: String,
    pub id: u32,
    pub table_type: String,
    #[serde(default)]
    pub size: usize,
    #[serde(default)]
    pub key: Vec<Field>,
    #[serde(default)]
    pub action_specs: Vec<Action>,
    #[serde(default)]
    pub data: Vec<Data>,
}

#[derive(Clone, Deserialize)]
pub struct Action {
    pub id: u32,
    pub name: String,
    #[serde(default)]
    pub action_scope: String,
    #[serde(default)]
    pub data: Vec<ActionField>,
}

/// In tables of a device as [`Data`].
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub enum ActionField {
    Plain(Field),
    Wrapped { singleton: Field },
}

impl Action {
    pub fn fields(&self) -> impl Iterator<Item = &Field> {
        self.data.iter().map(|(ActionField::Plain(field) | ActionField::Wrapped { singleton: field })| field)
    }
}

#[derive(Clone, Deserialize)]
pub struct Data {
    pub singleton: Option<Field>,
}

#[derive(Clone, Deserialize)]
pub struct Field {
    pub id: u32,
    pub name: String,
    #[serde(default)]
    pub match_type: String,
    #[serde(default)]
    pub repeated: bool,
    #[serde(default, rename = "type")]
    pub kind: Kind,
}

#[derive(Clone, Default, Deserialize)]
pub struct Kind {
    #[serde(rename = "type")]
    pub name: String,
    #[serde(default)]
    pub width: usize,
}

impl Definition {
    pub fn is_of_queues(&self) -> bool {
        self.table_type.starts_with("TmQueue")
    }
}

impl Field {
    pub fn bits(&self) -> usize {
        match self.kind.name.as_str() {
            "uint8" => 8,
            "uint32" => 32,
            "uint64" => 64,
            _ => self.kind.width,
        }
    }

    /// Whether bytes are a value of its width.
    pub fn fits(&self, bytes: &[u8]) -> bool {
        let spare = bytes.len() * 8 - self.bits().min(bytes.len() * 8);
        bytes.len() == self.bits().div_ceil(8) && (spare == 0 || bytes[0] >> (8 - spare) == 0)
    }
}

pub fn data_fields(table: &Definition) -> impl Iterator<Item = &Field> {
    table.data.iter().filter_map(|data| data.singleton.as_ref())
}
