//! The sizes that the switch's program was compiled with (p4/common/sizes.p4), read from what the compiler
//! lists of it.

use serde::Deserialize;
use sumac_wire::BLOCK_ELEMENTS;

use crate::target::SwitchError;

/// Job numbers of a switch run from 1 to this minus 1.
pub const JOBS: usize = 64;

// The highest bit of a job's number is SUMMED in the holder of a shared slot (p4/common/shared_slot.p4).
const _: () = assert!(JOBS <= 1 << 9);
/// Places of slots, and cells of values, have 16 bits.
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
    /// Blocks of [`BLOCK_ELEMENTS`] in a static job's chunk, at most.
    pub blocks: u16,
    /// Most elements in a chunk of a static job, one block if the switch's file has no more. A dynamic one's
    /// has no more than a block.
    pub elements: u16,
    /// Whether static jobs of one level may have loss bounds.
    pub bounds_loss: bool,
}

impl Default for Sizes {
    fn default() -> Sizes {
        let (base_port, shards) = (48700, 2);
        let (static_slots, dynamic_slots, blocks) = (2048, 2048, 4);
        let (elements, bounds_loss) = (most(1), true);
        Sizes { base_port, shards, static_slots, dynamic_slots, blocks, elements, bounds_loss }
    }
}

impl Sizes {
    /// Returns the cell of a block of values of a static slot's version, whose place is its own in the other
    /// registers.
    #[must_use]
    pub fn cell(&self, place: u32, block: u32) -> u32 {
        place * u32::from(self.blocks) + block
    }

    /// Returns the cell of the values of a dynamic job's slot, by its place in the registers of those.
    #[must_use]
    pub fn shared_cell(&self, place: u32) -> u32 {
        self.cell(self.static_slots * 2, 0) + place
    }

    /// Returns the cells of the registers of values, each for a block.
    #[must_use]
    pub fn cells(&self) -> u32 {
        self.shared_cell(self.dynamic_slots * u32::from(self.shards))
    }

    /// Returns the most elements in a chunk of a dynamic job.
    #[must_use]
    pub fn shared_elements(&self) -> u16 {
        self.elements.min(most(1))
    }
}

/// Returns the elements of so many blocks.
const fn most(blocks: u16) -> u16 {
    blocks * BLOCK_ELEMENTS as u16
}

/// `[program]` of the switch's file. A size that it leaves out is the program's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SizeOptions {
    base_port: Option<u16>,
    shards: Option<u16>,
    static_slots: Option<u32>,
    dynamic_slots: Option<u32>,
    elements: Option<u16>,
}

impl SizeOptions {
    /// Returns these sizes for a program.
    ///
    /// # Errors
    /// In words, when the program has another size than is given, or nothing can have it.
    pub fn with(&self, program: &Compiled) -> Result<Sizes, String> {
        let same = |name: &str, given: Option<u32>, compiled: u32| match given {
            Some(given) if given != compiled => Err(format!(
                "[program] has {name} = {given}, and the program was compiled with {compiled}: leave {name} \
                out, or give that"
            )),
            _ => Ok(()),
        };
        same("shards", self.shards.map(u32::from), program.shards.into())?;
        same("static_slots", self.static_slots, program.static_slots)?;
        same("dynamic_slots", self.dynamic_slots, program.dynamic_slots)?;
        let Compiled { shards, static_slots, dynamic_slots, blocks, bounds_loss, .. } = *program;
        let base_port = self.base_port.unwrap_or(Sizes::default().base_port);
        let elements = self.elements.unwrap_or(most(1));
        if ![1, 2, 4].contains(&shards) || !base_port.is_multiple_of(shards) || base_port == 0 {
            return Err(format!(
                "base_port {base_port} and shards {shards}: give 1, 2 or 4 shards, and a multiple of that"
            ));
        }
        if elements == 0 || elements > most(blocks) {
            return Err(format!("elements {elements}: the program adds 1 to {} of a packet", most(blocks)));
        }
        Ok(Sizes { base_port, shards, static_slots, dynamic_slots, blocks, elements, bounds_loss })
    }

    /// Returns what is given as if it were a program's, with the default sizes for what is left out.
    pub fn assumed(&self) -> Compiled {
        let defaults = Sizes::default();
        Compiled {
            shards: self.shards.unwrap_or(defaults.shards),
            static_slots: self.static_slots.unwrap_or(defaults.static_slots),
            dynamic_slots: self.dynamic_slots.unwrap_or(defaults.dynamic_slots),
            blocks: defaults.blocks,
            bounds_loss: defaults.bounds_loss,
            slots_pipes: Vec::new(),
            front_pipe: None,
        }
    }
}

/// The sizes that a compiled program shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    pub shards: u16,
    pub static_slots: u32,
    pub dynamic_slots: u32,
    /// Of a static job's chunk; 1 in a program without such jobs.
    pub blocks: u16,
    /// Whether it has the registers of static jobs' loss bounds.
    pub bounds_loss: bool,
    /// The pipes of a chip whose ports are in loopback.
    pub slots_pipes: Vec<u32>,
    /// The pipe that grants flushes: registers of others have no part in it. `None`: there is one pipe.
    pub front_pipe: Option<u32>,
}

impl Compiled {
    /// Reads the sizes of a program; `size` returns the cells of a register, or the entries of a table, by
    /// the last component of its name.
    ///
    /// # Errors
    /// When it is not the aggregator's program.
    pub fn of(size: impl Fn(&str) -> Option<u64>) -> Result<Compiled, SwitchError> {
        let unknown = |kind, name: &str| SwitchError::Unknown { kind, name: name.to_owned() };
        // A job has an entry for each shard (`UPLINKS`).
        let shards = size("parents").map(|entries| entries / JOBS as u64);
        let shards = shards.filter(|shards| [1, 2, 4].contains(shards));
        let shards = shards.ok_or_else(|| unknown("table of 1, 2 or 4 shards", "parents"))?;
        // Of a static slot there are two versions. A program of one mode has no registers of the other.
        let (versions, shared) = (size("sizes").unwrap_or(0), size("shared_chunks").unwrap_or(0));
        match versions.checked_add(shared) {
            Some(1..=PLACES) => {}
            _ => return Err(unknown("register of 1 to 65536 slots", "sizes` or `shared_chunks")),
        }
        // Each version has the values of all blocks, each shared slot those of one. A program of one mode, as
        // Tofino 1 has, is taken to add one block: its registers of values have room for the other mode.
        let is_one_mode = versions == 0 || shared == 0;
        let has_room = |sums: u64, blocks: u64| match is_one_mode {
            true => blocks == 1 && sums >= versions + shared,
            false => sums == versions * blocks + shared,
        };
        let sums = size("sums").filter(|sums| *sums <= PLACES);
        let blocks = sums.and_then(|sums| [1, 2, 4].into_iter().find(|blocks| has_room(sums, *blocks)));
        let blocks = blocks.ok_or_else(|| unknown("register of 1, 2 or 4 blocks of each slot", "sums"))?;
        Ok(Compiled {
            shards: shards as u16,
            static_slots: (versions / 2) as u32,
            dynamic_slots: (shared / shards) as u32,
            blocks: blocks as u16,
            bounds_loss: size("terms_owners").is_some(),
            slots_pipes: Vec::new(),
            front_pipe: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(sizes: &[(&str, u64)]) -> Result<Compiled, SwitchError> {
        Compiled::of(|name| sizes.iter().find(|(of, _)| *of == name).map(|(_, size)| *size))
    }

    fn given(text: &str) -> SizeOptions {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_program_has_the_modes_of_its_registers() {
        let sizes = [("parents", 128), ("sizes", 4096), ("shared_chunks", 4096), ("sums", 20480)];
        let unbounded = program(&sizes).unwrap();
        let both = program(&[&sizes[..], &[("terms_owners", 4096)]].concat()).unwrap();
        assert_eq!(SizeOptions::default().with(&both), Ok(Sizes::default()));
        let expected = Sizes { bounds_loss: false, ..Sizes::default() };
        assert_eq!(SizeOptions::default().with(&unbounded), Ok(expected));
        assert_eq!((Sizes::default().cells(), Sizes::default().shared_elements()), (20480, 64));
        let program_of = |versions, sums| {
            program(&[("parents", 128), ("sizes", versions), ("shared_chunks", 4096), ("sums", sums)])
        };
        for (versions, sums, blocks) in [(8192, 12288, 1), (4096, 12288, 2), (4096, 20480, 4)] {
            let program = program_of(versions, sums).unwrap();
            let sizes = SizeOptions::default().with(&program).unwrap();
            assert_eq!((sizes.blocks, u64::from(sizes.cells())), (blocks, sums));
            assert_eq!(sizes.elements, 64, "more only if the switch's file says so");
            let most = given(&format!("elements = {}", 64 * blocks)).with(&program).unwrap();
            assert_eq!((most.elements, most.shared_elements()), (64 * blocks, 64));
        }
        for (register, cells, slots) in [("sizes", 8192, (4096, 0)), ("shared_chunks", 4096, (0, 1024))] {
            let one = program(&[("parents", 256), (register, cells), ("sums", 12288)]).unwrap();
            let sizes = SizeOptions::default().with(&one).unwrap();
            assert_eq!((sizes.shards, (sizes.static_slots, sizes.dynamic_slots)), (4, slots), "{register}");
            assert_eq!(sizes.elements, 64, "{register}");
        }
        let no_blocks = "no register of 1, 2 or 4 blocks of each slot `sums`";
        for (sizes, expected) in [
            (&[("parents", 128)][..], "no register of 1 to 65536 slots `sizes` or `shared_chunks`"),
            (&[("parents", 128), ("sizes", 65536), ("shared_chunks", 1)], "no register of 1 to 65536"),
            (&[("parents", 128), ("sizes", u64::MAX), ("shared_chunks", 1)], "no register of 1 to 65536"),
            (&[("parents", 128), ("sizes", 4096)], no_blocks),
            (&[("parents", 128), ("sizes", 4096), ("sums", 4095)], no_blocks),
            (&[("parents", 128), ("sizes", 32768), ("shared_chunks", 4096), ("sums", 69632)], no_blocks),
            (&[("parents", 128), ("sizes", 4096), ("shared_chunks", 64), ("sums", 16384)], no_blocks),
            (&[("parents", 128), ("sizes", 4096), ("shared_chunks", 4096), ("sums", 16384)], no_blocks),
            (&[("parents", 192), ("sizes", 8192)], "no table of 1, 2 or 4 shards `parents`"),
            (&[("sizes", 8192)], "no table"),
        ] {
            let error = program(sizes).unwrap_err().to_string();
            assert!(error.contains(expected), "{sizes:?}: {error}");
        }
    }

    #[test]
    fn sizes_that_the_program_does_not_have_are_refused() {
        let program =
            |shared| program(&[("parents", 128), ("sizes", 8192), shared, ("sums", 16448)]).unwrap();
        let (program, one_mode) = (program(("shared_chunks", 64)), program(("absent", 0)));
        let table = [
            ("static_slots = 5120", "static_slots = 5120, and the program was compiled with 4096"),
            ("dynamic_slots = 2048", "dynamic_slots = 2048, and the program was compiled with 32"),
            ("shards = 4", "shards = 4, and the program was compiled with 2"),
            ("base_port = 48701", "base_port 48701 and shards 2"),
            ("elements = 129", "elements 129: the program adds 1 to 128"),
            ("elements = 0", "elements 0"),
        ];
        for (text, expected) in table {
            let error = given(text).with(&program).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let same =
            given("shards = 2\nstatic_slots = 4096\ndynamic_slots = 32\nbase_port = 40000\nelements = 32");
        let sizes = same.with(&program).unwrap();
        assert_eq!((sizes.base_port, sizes.elements, sizes.cells()), (40000, 32, 16448));
        assert_eq!(sizes.shared_elements(), 32, "no more than are given");
        let error = given("elements = 65").with(&one_mode).unwrap_err();
        assert_eq!(error, "elements 65: the program adds 1 to 64 of a packet");
    }

    /// p4/common/sizes.p4 is what is compiled unless its user, or the chip, says otherwise.
    #[test]
    fn the_default_sizes_are_those_of_the_program() {
        let sizes = include_str!("../../../p4/common/sizes.p4");
        let Sizes { base_port, shards, static_slots, dynamic_slots, blocks, .. } = Sizes::default();
        let defaults = [
            ("BASE_PORT", u32::from(base_port)),
            ("SHARDS", shards.into()),
            ("STATIC_SLOTS", static_slots),
            ("DYNAMIC_SLOTS", dynamic_slots),
            ("BLOCKS", blocks.into()),
            ("JOBS", JOBS as u32),
        ];
        for (name, value) in defaults {
            let line = format!("#define {name} {value}");
            assert!(sizes.lines().any(|found| found.trim() == line), "{line}");
        }
    }
}
