//! The sizes that the switch's program was compiled with (p4/common/sizes.p4), read from what the compiler lists of it.

use serde::Deserialize;
use sumac_wire::MAX_JOBS;

use crate::target::SwitchError;

/// Most elements in a chunk: the values of a packet's header.
pub const ELEMENTS: u16 = 64;
/// Places of slots have 16 bits.
const PLACES: u64 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The UDP port of shard 0.
    pub base_port: u16,
    pub shards: u16,
    /// Slots of static jobs, all together; 0: the program has no such jobs.
    pub static_slots: u32,
    /// Slots of each shard that dynamic jobs share; 0: the program has no such jobs.
    pub dynamic_slots: u32,
    /// Most elements in a chunk.
    pub elements: u16,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { base_port: 48700, shards: 2, static_slots: 4096, dynamic_slots: 2048, elements: ELEMENTS }
    }
}

impl Sizes {
    /// Cells of the registers of values: both versions of static slots, and slots of dynamic jobs.
    #[must_use]
    pub fn places(&self) -> u32 {
        self.static_slots * 2 + self.dynamic_slots * u32::from(self.shards)
    }
}

/// `[program]` of the switch's file. A size that it leaves out is the program's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Given {
    base_port: Option<u16>,
    shards: Option<u16>,
    static_slots: Option<u32>,
    dynamic_slots: Option<u32>,
    elements: Option<u16>,
}

impl Given {
    /// Returns these sizes for a program.
    ///
    /// # Errors
    /// In words, when the program has another size than is given, or nothing can have it.
    pub fn with(&self, program: &Compiled) -> Result<Sizes, String> {
        let same = |name: &str, given: Option<u32>, compiled: u32| match given {
            Some(given) if given != compiled => Err(format!(
                "[program] has {name} = {given}, and the program was compiled with {compiled}: leave {name} out, or give that"
            )),
            _ => Ok(()),
        };
        same("shards", self.shards.map(u32::from), program.shards.into())?;
        same("static_slots", self.static_slots, program.static_slots)?;
        same("dynamic_slots", self.dynamic_slots, program.dynamic_slots)?;
        let Compiled { shards, static_slots, dynamic_slots, .. } = *program;
        let defaults = Sizes::default();
        let base_port = self.base_port.unwrap_or(defaults.base_port);
        let elements = self.elements.unwrap_or(defaults.elements);
        if ![1, 2, 4].contains(&shards) || !base_port.is_multiple_of(shards) || base_port == 0 {
            return Err(format!(
                "base_port {base_port} and shards {shards}: give 1, 2 or 4 shards, and a multiple of that"
            ));
        }
        if elements == 0 || elements > ELEMENTS {
            return Err(format!("elements {elements}: the program adds 1 to {ELEMENTS} of a packet"));
        }
        Ok(Sizes { base_port, shards, static_slots, dynamic_slots, elements })
    }

    /// Returns what is given as if it were a program's, with the default sizes for what is left out.
    pub fn assumed(&self) -> Compiled {
        let defaults = Sizes::default();
        Compiled {
            shards: self.shards.unwrap_or(defaults.shards),
            static_slots: self.static_slots.unwrap_or(defaults.static_slots),
            dynamic_slots: self.dynamic_slots.unwrap_or(defaults.dynamic_slots),
            slots_pipes: Vec::new(),
        }
    }
}

/// The sizes that a compiled program shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    pub shards: u16,
    pub static_slots: u32,
    pub dynamic_slots: u32,
    /// The pipes of a chip whose ports are in loopback.
    pub slots_pipes: Vec<u32>,
}

impl Compiled {
    /// Reads the sizes of a program; `size` returns the cells of a register, or the entries of a table, by the last component
    /// of its name.
    ///
    /// # Errors
    /// When it is not the aggregator's program.
    pub fn of(size: impl Fn(&str) -> Option<u64>) -> Result<Compiled, SwitchError> {
        let unknown = |kind, name: &str| SwitchError::Unknown { kind, name: name.to_owned() };
        // A job has an entry for each shard (`UPLINKS`).
        let shards = size("parents").map(|entries| entries / MAX_JOBS as u64);
        let shards = shards.filter(|shards| [1, 2, 4].contains(shards));
        let shards = shards.ok_or_else(|| unknown("table of 1, 2 or 4 shards", "parents"))?;
        // Of a static slot there are two versions. A program of one mode has no registers of the other.
        let (versions, shared) = (size("sizes").unwrap_or(0), size("shared_chunks").unwrap_or(0));
        match versions.checked_add(shared) {
            Some(1..=PLACES) => {}
            _ => return Err(unknown("register of 1 to 65536 slots", "sizes` or `shared_chunks")),
        }
        Ok(Compiled {
            shards: shards as u16,
            static_slots: (versions / 2) as u32,
            dynamic_slots: (shared / shards) as u32,
            slots_pipes: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(sizes: &[(&str, u64)]) -> Result<Compiled, SwitchError> {
        Compiled::of(|name| sizes.iter().find(|(of, _)| *of == name).map(|(_, size)| *size))
    }

    fn given(text: &str) -> Given {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_program_has_the_modes_of_its_registers() {
        let both = program(&[("parents", 128), ("sizes", 8192), ("shared_chunks", 4096)]).unwrap();
        assert_eq!(Given::default().with(&both), Ok(Sizes::default()));
        for (register, cells, slots) in [("sizes", 8192, (4096, 0)), ("shared_chunks", 4096, (0, 1024))] {
            let one = program(&[("parents", 256), (register, cells)]).unwrap();
            let sizes = Given::default().with(&one).unwrap();
            assert_eq!((sizes.shards, (sizes.static_slots, sizes.dynamic_slots)), (4, slots), "{register}");
        }
        for (sizes, expected) in [
            (&[("parents", 128)][..], "no register of 1 to 65536 slots `sizes` or `shared_chunks`"),
            (&[("parents", 128), ("sizes", 65536), ("shared_chunks", 1)], "no register"),
            (&[("parents", 128), ("sizes", u64::MAX), ("shared_chunks", 1)], "no register"),
            (&[("parents", 192), ("sizes", 8192)], "no table of 1, 2 or 4 shards `parents`"),
            (&[("sizes", 8192)], "no table"),
        ] {
            let error = program(sizes).unwrap_err().to_string();
            assert!(error.contains(expected), "{sizes:?}: {error}");
        }
    }

    /// 5120 static and 1024 dynamic slots fill as many places as the default sizes.
    #[test]
    fn sizes_that_the_program_does_not_have_are_refused() {
        let program = program(&[("parents", 128), ("sizes", 8192)]).unwrap();
        let table = [
            ("static_slots = 5120", "static_slots = 5120, and the program was compiled with 4096"),
            ("dynamic_slots = 2048", "dynamic_slots = 2048, and the program was compiled with 0"),
            ("shards = 4", "shards = 4, and the program was compiled with 2"),
            ("base_port = 48701", "base_port 48701 and shards 2"),
            ("elements = 65", "elements 65: the program adds 1 to 64"),
            ("elements = 0", "elements 0"),
        ];
        for (text, expected) in table {
            let error = given(text).with(&program).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let same =
            given("shards = 2\nstatic_slots = 4096\ndynamic_slots = 0\nbase_port = 40000\nelements = 32");
        let sizes = same.with(&program).unwrap();
        assert_eq!((sizes.base_port, sizes.elements, sizes.places()), (40000, 32, 8192));
    }

    /// p4/common/sizes.p4 is what is compiled unless its user says otherwise.
    #[test]
    fn the_default_sizes_are_those_of_the_program() {
        let sizes = include_str!("../../../p4/common/sizes.p4");
        let Sizes { base_port, shards, static_slots, dynamic_slots, .. } = Sizes::default();
        let defaults = [
            ("BASE_PORT", u32::from(base_port)),
            ("SHARDS", shards.into()),
            ("STATIC_SLOTS", static_slots),
            ("DYNAMIC_SLOTS", dynamic_slots),
            ("JOBS", MAX_JOBS as u32),
        ];
        for (name, value) in defaults {
            let line = format!("#define {name} {value}");
            assert!(sizes.lines().any(|found| found == line), "{line}");
        }
    }
}
