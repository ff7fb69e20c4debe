//! The program of the switch: its P4Info, which has the names, and its compiled form.

use std::{collections::BTreeMap, fmt, fs, path::Path};

use prost::Message as _;

use crate::{
    proto::p4::config::v1::{self as config, P4Info, match_field},
    sizes::Compiled,
    target::SwitchError,
};

#[derive(Clone)]
pub struct Program {
    pub info: P4Info,
    /// The compiled program in the target's own form.
    pub compiled: Vec<u8>,
    /// The file of the compiled program, for messages.
    pub file: String,
    tables: Vec<Table>,
    actions: Vec<Action>,
    /// Ids of indexed counters, by name.
    counters: BTreeMap<String, u32>,
}

#[derive(Clone, Debug)]
pub struct Table {
    pub id: u32,
    name: String,
    /// The most entries.
    pub size: usize,
    pub fields: Vec<Field>,
    /// Ids of its actions.
    actions: Vec<u32>,
}

impl Table {
    /// Whether its entries need a priority.
    pub fn has_priority(&self) -> bool {
        self.fields.iter().any(|field| field.is_ternary)
    }

    pub fn field(&self, name: &str) -> Result<&Field, SwitchError> {
        let found = self.fields.iter().find(|field| field.name == name);
        found.ok_or_else(|| unknown("key field", &format!("{name}` of table `{}", self.name)))
    }
}

#[derive(Clone, Debug)]
pub struct Field {
    pub id: u32,
    pub name: String,
    pub bits: u32,
    pub is_ternary: bool,
}

#[derive(Clone, Debug)]
pub struct Action {
    pub id: u32,
    pub name: String,
    /// By name.
    pub parameters: BTreeMap<String, Parameter>,
}

#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    pub id: u32,
    pub bits: u32,
}

impl Program {
    /// Reads the compiled program, and its P4Info in binary form.
    pub fn read(compiled: &Path, info: &Path) -> Result<Program, SwitchError> {
        let read = |path: &Path| fs::read(path).map_err(|error| file_error(path, &error.to_string()));
        let (compiled, file) = (read(compiled)?, compiled.display().to_string());
        let parsed = parse_info(&read(info)?).map_err(|error| {
            file_error(
                info,
                &format!("{error}; have the compiler write it: --p4runtime-files NAME.p4info.bin"),
            )
        })?;
        Ok(Program::new(parsed, compiled, file))
    }

    fn new(info: P4Info, compiled: Vec<u8>, file: String) -> Program {
        let tables = info.tables.iter().map(|table| Table {
            id: id(table.preamble.as_ref()),
            name: last_name(table.preamble.as_ref()),
            size: usize::try_from(table.size).unwrap_or(0),
            fields: table.match_fields.iter().map(field).collect(),
            actions: table.action_refs.iter().map(|action| action.id).collect(),
        });
        let actions = info.actions.iter().map(|action| Action {
            id: id(action.preamble.as_ref()),
            name: last_name(action.preamble.as_ref()),
            parameters: action.params.iter().map(parameter).collect(),
        });
        let counters = info.counters.iter();
        let counters =
            counters.map(|counter| (last_name(counter.preamble.as_ref()), id(counter.preamble.as_ref())));
        Program {
            tables: tables.collect(),
            actions: actions.collect(),
            counters: counters.collect(),
            compiled,
            file,
            info,
        }
    }

    pub fn table(&self, name: &str) -> Result<&Table, SwitchError> {
        self.tables.iter().find(|table| table.name == name).ok_or_else(|| unknown("table", name))
    }

    /// Returns the action of a table that has this name; other tables' may have it too.
    pub fn action(&self, table: &Table, name: &str) -> Result<&Action, SwitchError> {
        let mut actions = self.actions.iter().filter(|action| table.actions.contains(&action.id));
        let found = actions.find(|action| action.name == name);
        found.ok_or_else(|| unknown("action", &format!("{name}` of table `{}", table.name)))
    }

    pub fn action_of(&self, id: u32) -> Result<&Action, SwitchError> {
        let found = self.actions.iter().find(|action| action.id == id);
        found.ok_or_else(|| unknown("action", &format!("of id {id:#x}")))
    }

    /// Returns the id of an indexed counter.
    pub fn counter(&self, name: &str) -> Result<u32, SwitchError> {
        self.counters.get(name).copied().ok_or_else(|| unknown("counter", name))
    }

    /// Returns the sizes that it was compiled with.
    pub fn compiled_sizes(&self) -> Result<Compiled, SwitchError> {
        let table = |name: &str| self.tables.iter().find(|table| table.name == name).map(|table| table.size);
        let register = |name: &str| {
            let mut registers = self.info.registers.iter();
            registers.find(|register| last_name(register.preamble.as_ref()) == name).map(|found| found.size)
        };
        Compiled::of(|name| {
            let entries = table(name).and_then(|size| u64::try_from(size).ok());
            entries.or_else(|| register(name).and_then(|size| u64::try_from(size).ok()))
        })
    }

    /// Returns a number that another program most likely does not have.
    pub fn fingerprint(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.info.encode_to_vec());
        hasher.update(&self.compiled);
        hasher.finalize()
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({}, {:#x})", self.file, self.fingerprint())
    }
}

fn parse_info(bytes: &[u8]) -> Result<P4Info, String> {
    // Its first field is a message, whose tag no text begins with.
    if bytes.first().is_some_and(u8::is_ascii_graphic) {
        return Err("it is P4Info as text, not in binary form".to_owned());
    }
    P4Info::decode(bytes).map_err(|error| error.to_string())
}

fn field(field: &config::MatchField) -> Field {
    let ternary = match_field::MatchType::Ternary as i32;
    let is_ternary = field.r#match == Some(match_field::Match::MatchType(ternary));
    Field { id: field.id, name: field.name.clone(), bits: bits(field.bitwidth), is_ternary }
}

fn parameter(parameter: &config::action::Param) -> (String, Parameter) {
    (parameter.name.clone(), Parameter { id: parameter.id, bits: bits(parameter.bitwidth) })
}

/// Returns a width; P4Info leaves it out where values are of the target's own types.
fn bits(width: i32) -> u32 {
    u32::try_from(width).ok().filter(|bits| *bits > 0).unwrap_or(u64::BITS)
}

fn id(preamble: Option<&config::Preamble>) -> u32 {
    preamble.map_or(0, |preamble| preamble.id)
}

fn last_name(preamble: Option<&config::Preamble>) -> String {
    let name = preamble.map_or("", |preamble| preamble.name.as_str());
    name.rsplit('.').next().unwrap_or(name).to_owned()
}

fn unknown(kind: &'static str, name: &str) -> SwitchError {
    SwitchError::Unknown { kind, name: name.to_owned() }
}

fn file_error(path: &Path, what: &str) -> SwitchError {
    SwitchError::File { path: path.display().to_string(), what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn information_is_read_in_binary_form() {
        let info = P4Info { actions: vec![config::Action::default()], ..P4Info::default() };
        assert_eq!(parse_info(&info.encode_to_vec()), Ok(info));
        parse_info(b"\x1a\x05").unwrap_err();
        // Protobuf would skip what it takes for unknown fields of a text.
        for text in ["pkg_info {\n", "tables {\n"] {
            assert!(parse_info(text.as_bytes()).unwrap_err().contains("as text"), "{text}");
        }
    }
}
