//! The parameters of a dynamic job.

use serde::{Deserialize, Serialize};
use sumac_job::limits::{MAX_WINDOW, MIN_WINDOW};
use sumac_wire::workers::rank;

use crate::error::ParamError;

/// The default window, in chunks: somewhat more than the bandwidth-delay product within a data centre.
const WINDOW: u32 = 256;

/// Slots are plenty when they suffice for so many windows.
const PLENTY: u32 = 4;

/// A worker's parameters of a dynamic job; the same on all workers but for the bitmap of the second level.
///
/// `rack_rank` and `rack_world` of [`JobParams`](crate::JobParams) are the worker's position below its first
/// aggregator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DynamicParams {
    /// The slots that jobs share, on each aggregator of the job; 0: it has no aggregator, and all packets go
    /// to the parameter host.
    pub slots: u32,
    /// The most chunks by which a worker may be ahead of the first one without a result: a power of two, 8 to
    /// 4,096.
    pub window: u32,
    /// Positions that keep a slot each; a chunk's position is `seq % positions`. A power of two up to the
    /// window.
    ///
    /// By default the window where slots are plenty: then a whole window waits in slots for a late worker.
    /// Also without congestion control, when the window is always full and would collide with itself.
    /// Otherwise half of the window: a slot is held for half of the round trip to the parameter host, or with
    /// one level for less, so that a job needs no more slots free of others.
    pub positions: u32,
    /// The initial congestion window, in chunks; 1 to `window`. `None`: the paper's 60,000 bytes, divided
    /// over the shards.
    pub initial_window: Option<u32>,
    /// Whether the congestion window adapts. Otherwise it stays at `initial_window`.
    pub congestion: bool,
    /// The number of racks and single workers that contribute to the second aggregator; 0: there is only one
    /// level.
    pub fan_in_1: u8,
    /// The bit of this worker's rack among them, or of the worker itself when it is beside the racks; 0 with
    /// one level.
    pub bitmap_1: u32,
    /// Whether the worker's packets go to the second aggregator directly.
    pub beside_root: bool,
    /// Whether a worker's values leave room for the sum of all, since an aggregator does not mark the sums
    /// that it clamps; larger ones travel as floats.
    pub headroom: bool,
}

impl DynamicParams {
    /// The default parameters of a job below one level of aggregators with so many slots (0: no aggregator).
    pub fn new(slots: u32) -> DynamicParams {
        DynamicParams {
            slots,
            window: WINDOW,
            positions: positions(slots, WINDOW),
            initial_window: None,
            congestion: true,
            fan_in_1: 0,
            bitmap_1: 0,
            beside_root: false,
            headroom: false,
        }
    }

    #[must_use]
    pub fn with_window(self, window: u32) -> DynamicParams {
        DynamicParams { window, positions: positions(self.slots, window), ..self }
    }

    /// The same parameters with a congestion window that stays at its initial size: the window.
    #[must_use]
    pub fn without_congestion_control(self) -> DynamicParams {
        DynamicParams { congestion: false, positions: self.window, initial_window: Some(self.window), ..self }
    }

    pub(crate) fn check(&self) -> Result<(), ParamError> {
        let DynamicParams { window, positions, initial_window: initial, .. } = *self;
        if !window.is_power_of_two() || !(MIN_WINDOW..=MAX_WINDOW).contains(&window) {
            return Err(ParamError::Window { window });
        }
        if !positions.is_power_of_two() || positions > window {
            return Err(ParamError::Positions { positions, window });
        }
        if let Some(initial) = initial
            && !(1..=window).contains(&initial)
        {
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

fn positions(slots: u32, window: u32) -> u32 {
    if slots / PLENTY >= window { window } else { (window / 2).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (|d| d.initial_window = Some(0), ParamError::InitialWindow { initial: 0, window: 256 }),
            (|d| d.initial_window = Some(257), ParamError::InitialWindow { initial: 257, window: 256 }),
            (|d| d.fan_in_1 = 3, ParamError::Racks { racks: 3, bitmap: 0 }),
            (|d| (d.fan_in_1, d.bitmap_1) = (3, 8), ParamError::Racks { racks: 3, bitmap: 8 }),
            (|d| d.beside_root = true, ParamError::Racks { racks: 0, bitmap: 0 }),
        ];
        for (change, error) in refused {
            let mut dynamic = DynamicParams::new(100);
            change(&mut dynamic);
            assert_eq!(dynamic.check(), Err(error.clone()), "{error}");
        }
        let two_levels = DynamicParams { fan_in_1: 32, bitmap_1: 1 << 31, ..DynamicParams::new(0) };
        assert_eq!(two_levels.check(), Ok(()));
        assert_eq!(DynamicParams::new(1).with_window(8).check(), Ok(()));
    }
}
