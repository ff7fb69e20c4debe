//! The memory of slots, as in docs/tuning.md.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use sumac_agg_host::HostAggregator;
use sumac_agg_layout::{Began, DynamicSlot, Slot, Tail};
use sumac_wire::{dynamic, slot};

const PAGE: &str = include_str!("../../../docs/tuning.md");

#[track_caller]
fn assert_documented(text: &str) {
    assert!(PAGE.contains(text), "docs/tuning.md lacks: {text}");
}

#[test]
fn a_slot_of_the_host_aggregator() {
    let began = size_of::<Began>();
    assert_documented(&format!("8 x `elements` + {} bytes", size_of::<slot::SlotMeta>() + 2 * began));
    assert_documented(&format!("4 x `elements` + {} bytes", size_of::<dynamic::SlotMeta>() + began));
    // More than any host has: the refusal has the bytes.
    for elements in [352, 2224] {
        let refused = HostAggregator::new(u32::MAX, elements).err().unwrap();
        let slot = 8 * u64::from(elements) + size_of::<slot::SlotMeta>() as u64;
        assert_eq!(refused.bytes, u64::from(u32::MAX) * slot);
        let aggregator = HostAggregator::new(1, elements).unwrap();
        let elements = elements.min(832);
        let refused = aggregator.with_dynamic(u32::MAX).err().unwrap();
        let slot = 4 * u64::from(elements) + size_of::<dynamic::SlotMeta>() as u64;
        assert_eq!(refused.bytes, u64::from(u32::MAX) * slot);
    }
}

#[test]
fn a_slot_of_the_xdp_programs() {
    let static_slot = size_of::<Slot>() + size_of::<[Began; 2]>();
    assert_documented(&format!("{static_slot} bytes, above MTU 3506 {}", static_slot + size_of::<Tail>()));
    assert_documented(&format!("{} bytes of the programs", size_of::<DynamicSlot>()));
}
