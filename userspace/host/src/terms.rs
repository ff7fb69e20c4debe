//! A job's terms in the form of the engines.

use sumac_control::{Grant, PlaneKind};
use sumac_job::limits::MIN_WINDOW;
use sumac_job::{JobTerms, Mode};
use sumac_transport::{DirectParams, DynamicParams, JobParams};

/// Returns the parameters of a lane. The first one measures the path for all.
/// `line_rate`: that of this host's link, in bits per second; only direct jobs use it. `paths`: those that
/// the host has named when it joined.
#[must_use]
pub fn lane_params(grant: &Grant, lane: u16, line_rate: u64, paths: u16) -> JobParams {
    let Grant { terms, placement } = grant;
    JobParams {
        job: terms.job,
        epoch: terms.epoch,
        token: terms.token,
        rank: placement.rank,
        world: terms.world,
        local_world: terms.local_world,
        rack_rank: placement.rack_rank,
        rack_world: placement.rack_world,
        lane,
        shards: terms.shards,
        slots: if terms.mode == Mode::Static { terms.slots } else { 0 },
        elements: terms.elements,
        wire: terms.wire,
        scaling: terms.scale,
        not_finite: terms.not_finite,
        measure: !terms.is_measured && lane == 0,
        congestion_control: terms.mode == Mode::Static && terms.congestion_control,
        // A switch takes none in jobs with bounds either.
        takes_empty: !terms.whole && placement.aggregator != PlaneKind::P4,
        result_paths: if sends_by_paths(grant) { paths } else { 1 },
        longest_outage: terms.longest_outage(),
        dynamic: terms.is_dynamic().then(|| dynamic(grant)),
        direct: terms.is_direct().then(|| direct(terms, line_rate)),
    }
}

/// Whether results come from as many source ports as the worker has paths.
fn sends_by_paths(Grant { terms, placement }: &Grant) -> bool {
    let has_paths = matches!(placement.aggregator, PlaneKind::Ebpf | PlaneKind::Host);
    terms.mode == Mode::Static && has_paths && placement.result_group.is_none()
}

/// The shards divide the window and the link.
fn direct(terms: &JobTerms, line_rate: u64) -> DirectParams {
    let shards = terms.shards.max(1);
    let window = (terms.window / u32::from(shards)).max(MIN_WINDOW * 2);
    DirectParams { line_rate: line_rate / u64::from(shards), ..DirectParams::new(window) }
}

fn dynamic(Grant { terms, placement }: &Grant) -> DynamicParams {
    let slots = if placement.aggregator == PlaneKind::None { 0 } else { terms.slots };
    let usual = DynamicParams::new(slots).with_window(terms.window);
    let usual = if terms.congestion_control { usual } else { usual.without_congestion_control() };
    let (bitmap_1, beside_root) = (placement.bitmap_1, placement.beside_root);
    let headroom = terms.headroom;
    DynamicParams { fan_in_1: terms.fan_in_1, bitmap_1, beside_root, headroom, ..usual }
}
