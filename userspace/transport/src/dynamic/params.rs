//! What a dynamic job has in place of slots of its own.

use sumac_wire::{PAGE_ELEMENTS, admit::rank};

use crate::{convert::WireFormat, error::ParamError, params::JobParams};

/// Fewest chunks of a window.
pub const MIN_WINDOW: u32 = 8;
/// Most chunks of a window: the parameter host keeps two of them.
pub const MAX_WINDOW: u32 = 4096;
/// Most elements of a chunk: a slot of the shared pool is one page.
pub(crate) const DYNAMIC_ELEMENTS: u16 = PAGE_ELEMENTS as u16;
/// The window by default, in chunks: somewhat more than a path within a data centre holds.
const WINDOW: u32 = 256;
/// Chunks in flight at first, by default (ATP section 3.7: about what the path holds without a queue).
const INITIAL_WINDOW: u32 = 200;

/// With slots for so many windows, a job need not be sparing of them.
const PLENTY: u32 = 4;

/// What a worker must know of a dynamic job; the same on all workers but for the place below the second level.
///
/// `rack_rank` and `rack_world` of [`JobParams`] are the worker's place below its first aggregator.
#[derive(Clone, Debug, PartialEq)]
pub struct DynamicParams {
    /// The slots that jobs share, on each aggregator that the job uses; 0: it has no aggregator, and everything goes to the
    /// parameter host.
    pub slots: u32,
    /// How many chunks a worker may be ahead of the first that has no result: a power of two, 8 to 4,096.
    pub window: u32,
    /// After how many chunks the places repeat that keep their slot (`seq % positions`): a power of two up to the window.
    ///
    /// By default the window where slots are plenty: then a whole window waits in slots for a worker that is late. Also without
    /// congestion control, when the window is always full and would meet itself. Else half of it: what a job has learnt to keep free of others is no larger than that, and a slot is held for half of the way to the parameter host and back.
    pub positions: u32,
    /// Chunks in flight at first; 1 to `window`.
    pub initial_window: u32,
    /// Whether the number of chunks in flight follows congestion: halved on marks and losses. Otherwise it is `initial_window`
    /// always.
    pub congestion: bool,
    /// Whether chunks take slots one after another, and stay at theirs when they collide, instead of being hashed (the comparison of ATP's figure 14).
    pub linear: bool,
    /// How many racks and single workers complete the sum at the second aggregator; 0: there is only one level.
    pub fan_in_1: u8,
    /// This worker's rack among them, one bit, or the worker itself when it is beside the racks; 0 with one level.
    pub bitmap_1: u32,
    /// Whether the worker's aggregator is the second one: nothing is between them.
    pub beside_root: bool,
}

impl DynamicParams {
    /// A job below one level of aggregators that have this many slots for it (0: none), with everything else as it is by
    /// default.
    pub fn new(slots: u32) -> DynamicParams {
        DynamicParams {
            slots,
            window: WINDOW,
            positions: positions(slots, WINDOW),
            initial_window: INITIAL_WINDOW,
            congestion: true,
            linear: false,
            fan_in_1: 0,
            bitmap_1: 0,
            beside_root: false,
        }
    }

    /// The same with a window of so many chunks, and no more than that in flight at first.
    #[must_use]
    pub fn with_window(self, window: u32) -> DynamicParams {
        let initial_window = INITIAL_WINDOW.min(window);
        DynamicParams { window, positions: positions(self.slots, window), initial_window, ..self }
    }

    /// The same with as many chunks in flight as at first, always.
    #[must_use]
    pub fn without_congestion_control(self) -> DynamicParams {
        DynamicParams { congestion: false, positions: self.window, ..self }
    }

    /// Refuses what no control plane could have given out for `job`.
    pub(crate) fn check(&self, job: &JobParams) -> Result<(), ParamError> {
        let DynamicParams { window, positions, initial_window: initial, .. } = *self;
        if job.wire != WireFormat::Int32 {
            return Err(ParamError::DynamicWire);
        }
        if job.elements > DYNAMIC_ELEMENTS {
            return Err(ParamError::DynamicElements { elements: job.elements });
        }
        if job.measure {
            return Err(ParamError::Measure);
        }
        if !window.is_power_of_two() || !(MIN_WINDOW..=MAX_WINDOW).contains(&window) {
            return Err(ParamError::Window { window });
        }
        if !positions.is_power_of_two() || positions > window {
            return Err(ParamError::Positions { positions, window });
        }
        if initial == 0 || initial > window {
            return Err(ParamError::InitialWindow { initial, window });
        }
        self.check_racks()
    }

    fn check_racks(&self) -> Result<(), ParamError> {
        let DynamicParams { fan_in_1: racks, bitmap_1: bitmap, beside_root, .. } = *self;
        let is_one_level = racks == 0 && bitmap == 0 && !beside_root;
        let is_one_of_them = racks <= 32 && rank(bitmap, u16::from(racks)).is_some();
        if is_one_level || is_one_of_them { Ok(()) } else { Err(ParamError::Racks { racks, bitmap }) }
    }
}

/// After how many chunks places repeat, by default.
fn positions(slots: u32, window: u32) -> u32 {
    if slots / PLENTY >= window { window } else { (window / 2).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NonFinitePolicy, Scale};

    fn good() -> JobParams {
        JobParams {
            job: 1,
            epoch: 0,
            token: 0,
            rank: 1,
            world: 4,
            rack_rank: 1,
            rack_world: 2,
            lane: 0,
            shards: 1,
            slots: 0,
            elements: 832,
            wire: WireFormat::Int32,
            scaling: Scale::Block,
            not_finite: NonFinitePolicy::Error,
            measure: false,
            dynamic: Some(DynamicParams::new(100)),
        }
    }

    #[test]
    fn jobs_are_checked() {
        assert_eq!(good().check(), Ok(()), "slots need no power of two here");
        type Change = fn(&mut JobParams);
        let table: [(Change, ParamError); 4] = [
            (|p| p.wire = WireFormat::Int16, ParamError::DynamicWire),
            (|p| p.elements = 833, ParamError::DynamicElements { elements: 833 }),
            (|p| p.measure = true, ParamError::Measure),
            (|p| p.world = 0, ParamError::World { world: 0 }),
        ];
        for (change, error) in table {
            let mut params = good();
            change(&mut params);
            assert_eq!(params.check(), Err(error.clone()), "{error}");
        }
    }

    #[test]
    fn windows_and_racks_are_checked() {
        type Change = fn(&mut DynamicParams);
        let refused: [(Change, ParamError); 11] = [
            (|d| d.window = 0, ParamError::Window { window: 0 }),
            (|d| d.window = 4, ParamError::Window { window: 4 }),
            (|d| d.window = 100, ParamError::Window { window: 100 }),
            (|d| d.window = 8192, ParamError::Window { window: 8192 }),
            (|d| d.positions = 0, ParamError::Positions { positions: 0, window: 256 }),
            (|d| d.positions = 512, ParamError::Positions { positions: 512, window: 256 }),
            (|d| d.initial_window = 0, ParamError::InitialWindow { initial: 0, window: 256 }),
            (|d| d.initial_window = 257, ParamError::InitialWindow { initial: 257, window: 256 }),
            (|d| d.fan_in_1 = 3, ParamError::Racks { racks: 3, bitmap: 0 }),
            (|d| (d.fan_in_1, d.bitmap_1) = (3, 8), ParamError::Racks { racks: 3, bitmap: 8 }),
            (|d| d.beside_root = true, ParamError::Racks { racks: 0, bitmap: 0 }),
        ];
        for (change, error) in refused {
            let mut dynamic = DynamicParams::new(100);
            change(&mut dynamic);
            assert_eq!(dynamic.check(&good()), Err(error.clone()), "{error}");
        }
        let two_levels = DynamicParams { fan_in_1: 32, bitmap_1: 1 << 31, ..DynamicParams::new(0) };
        assert_eq!(two_levels.check(&good()), Ok(()));
        assert_eq!(DynamicParams::new(1).with_window(8).check(&good()), Ok(()));
    }
}
