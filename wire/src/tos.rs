//! IPv4's byte of DSCP and ECN: the tags of Sumac's packets (MLT sections 4.2.2 and 5.2).
//!
//! | packets | DSCP | ECN |
//! | --- | --- | --- |
//! | data of priority p | class selector min(p, 5) | ECT(0) where the mode has a use for it, else Not-ECT |
//! | data with an importance, where ECN means congestion control | AF class, drop precedence low or high | the same |
//! | probes and reports | CS6 | Not-ECT |
//!
//! CS6 is RFC 4594's class of network control, and the highest that hosts use: CS7 is reserved. So data has
//! six classes.

use crate::header::flag;

/// The bits of ECN (RFC 3168).
pub const ECN_MASK: u8 = 0b11;
/// ECT(0): routers may mark the packet instead of dropping it.
pub const ECT_0: u8 = 0b10;
/// CE: a router has marked it.
pub const CE: u8 = 0b11;
/// Class selector 6: probes and reports.
pub const CONTROL: u8 = 6 << CLASS_SHIFT;
/// The classes of data, from class selector 0 on.
pub const DATA_CLASSES: u8 = 6;
/// Queues of a switch, in strict priority: one for each class of data, from 0 on, and the last for control.
pub const QUEUES: u8 = DATA_CLASSES + 1;
/// Class selectors (RFC 2474).
pub const SELECTORS: usize = 8;
/// The highest priority of an operation; those from the last data class on share it.
pub const MAX_PRIORITY: u8 = 7;

/// The position of the class selector in the byte.
const CLASS_SHIFT: u8 = 5;
/// The position of the drop precedence in the byte.
const PRECEDENCE_SHIFT: u8 = 3;
/// Classes of assured forwarding.
const ASSURED_CLASSES: u8 = 4;

/// Whether a router has marked a packet with this byte.
#[inline(always)]
pub const fn is_marked(tos: u8) -> bool {
    tos & ECN_MASK == CE
}

/// The flag that says so of a packet with this byte ([`flag::ECN_ECHO`]), without a branch: eBPF's verifier
/// follows each.
#[inline(always)]
pub const fn echo(tos: u8) -> u16 {
    (tos & tos >> 1 & 1) as u16 * flag::ECN_ECHO
}

/// The byte of a packet that goes on without its mark. One that was not ECN-capable stays so.
#[inline(always)]
pub const fn unmarked(tos: u8) -> u8 {
    if tos & ECN_MASK == 0 { tos } else { tos & !ECN_MASK | ECT_0 }
}

/// The class of data of this priority, from 0.
//= mlt#5.2 tags in DSCP and ECN
pub const fn data_class(priority: u8) -> u8 {
    if priority < DATA_CLASSES { priority } else { DATA_CLASSES - 1 }
}

/// The bytes in the queue of a class of data beyond which a switch drops packets that are not ECN-capable, of
/// `buffer` bytes: front layers have higher classes and lower thresholds (MLT appendix B).
pub const fn dropping_threshold(class: u8, buffer: u32) -> u32 {
    buffer / (2 * DATA_CLASSES as u32) * (DATA_CLASSES - data_class(class)) as u32
}

/// The queue of a switch for a packet with this byte. Two classes may share one of assured forwarding: it
/// goes with the higher one. All that is not Sumac's is in queue 0.
pub const fn queue_of(tos: u8) -> u8 {
    if tos & !ECN_MASK == CONTROL {
        return DATA_CLASSES;
    }
    let mut class = DATA_CLASSES;
    while class > 1 {
        class -= 1;
        if is_of_class(tos, class) {
            return class;
        }
    }
    0
}

/// Whether it is data of this class.
const fn is_of_class(tos: u8, class: u8) -> bool {
    let tag = tos & !ECN_MASK;
    tag == class_selector(class)
        || tag == assured_forwarding(class, true)
        || tag == assured_forwarding(class, false)
}

/// Whether a switch drops a packet with this byte for a full buffer only. Others it drops from the threshold
/// of their class on ([`dropping_threshold`]): AFx3, and what is not ECN-capable but AFx1 and control.
//= mlt#5.2 tags in DSCP and ECN
pub const fn is_important(tos: u8) -> bool {
    let mut class = 0;
    while class < DATA_CLASSES {
        if tos & !ECN_MASK == assured_forwarding(class, false) {
            return false;
        }
        if tos & !ECN_MASK == assured_forwarding(class, true) {
            return true;
        }
        class += 1;
    }
    tos & ECN_MASK != 0 || tos & !ECN_MASK == CONTROL
}

/// The number of the class selector of this byte, below [`SELECTORS`]; that of an AF class is its number.
pub const fn selector_of(tos: u8) -> u8 {
    tos >> CLASS_SHIFT
}

/// The DSCP of data of this priority: a class selector.
pub const fn class_selector(priority: u8) -> u8 {
    data_class(priority) << CLASS_SHIFT
}

/// The DSCP of data of this priority with a drop precedence (RFC 2597): AF11, AF13 to AF41, AF43.
pub const fn assured_forwarding(priority: u8, is_important: bool) -> u8 {
    let class = 1 + data_class(priority) * ASSURED_CLASSES / DATA_CLASSES;
    let precedence = if is_important { 1 } else { 3 };
    class << CLASS_SHIFT | precedence << PRECEDENCE_SHIFT
}

/// The priority of layer `layer` of `layers`, from the front (MLT section 4.2.2): front layers are needed
/// first.
//= mlt#4.2.2 layers spread over the priorities
pub const fn layer_priority(layer: u32, layers: u32) -> u8 {
    let last = DATA_CLASSES as u64 - 1;
    let layers = if layers == 0 { 1 } else { layers as u64 };
    let step = layer as u64 * DATA_CLASSES as u64 / layers;
    (last - if step < last { step } else { last }) as u8
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    //= mlt#5.2 tags in DSCP and ECN
    #[test]
    fn classes_are_those_of_the_rfcs() {
        let dscp = |tos: u8| tos >> 2;
        let selectors: Vec<u8> = (0..=MAX_PRIORITY).map(|p| dscp(class_selector(p))).collect();
        assert_eq!(selectors, [0, 8, 16, 24, 32, 40, 40, 40]);
        assert_eq!(dscp(CONTROL), 48);
        // RFC 2597: AF11 is 10, AF13 is 14; the next class is 8 more.
        let important: Vec<u8> = (0..6).map(|p| dscp(assured_forwarding(p, true))).collect();
        assert_eq!(important, [10, 10, 18, 26, 26, 34]);
        let other: Vec<u8> = (0..6).map(|p| dscp(assured_forwarding(p, false))).collect();
        assert_eq!(other, [14, 14, 22, 30, 30, 38]);
    }

    //= mlt#5.2 tags in DSCP and ECN
    #[test]
    fn a_switch_tells_classes_and_importance_apart() {
        let queues: Vec<u8> = (0..=MAX_PRIORITY).map(|p| queue_of(class_selector(p) | ECT_0)).collect();
        assert_eq!(queues, [0, 1, 2, 3, 4, 5, 5, 5]);
        let assured: Vec<u8> = (0..6).map(|p| queue_of(assured_forwarding(p, p % 2 == 0))).collect();
        assert_eq!(assured, [1, 1, 2, 4, 4, 5]);
        // CS7 and EF are not Sumac's.
        assert_eq!((queue_of(CONTROL), queue_of(7 << 5), queue_of(46 << 2)), (6, 0, 0));
        for priority in 0..=MAX_PRIORITY {
            let selector = class_selector(priority);
            assert_eq!([selector | ECT_0, selector | CE, selector].map(is_important), [true, true, false]);
            for ecn in [0, ECT_0, CE] {
                let assured = [true, false].map(|is| is_important(assured_forwarding(priority, is) | ecn));
                assert_eq!(assured, [true, false]);
            }
        }
        assert!(is_important(CONTROL) && !is_important(46 << 2));
    }

    #[test]
    fn front_layers_have_the_lower_thresholds() {
        let thresholds: Vec<u32> = (0..DATA_CLASSES).map(|class| dropping_threshold(class, 12_000)).collect();
        assert_eq!(thresholds, [6_000, 5_000, 4_000, 3_000, 2_000, 1_000]);
        assert_eq!((selector_of(CONTROL | 3), selector_of(assured_forwarding(5, false))), (6, 4));
    }

    #[test]
    fn marks_are_taken_off_only_where_they_can_be_set_again() {
        for (tos, marked, after) in
            [(0xa0, false, 0xa0), (0xa1, false, 0xa2), (0xa2, false, 0xa2), (0xa3, true, 0xa2)]
        {
            assert_eq!((is_marked(tos), unmarked(tos)), (marked, after), "{tos:#x}");
            assert_eq!(echo(tos), if marked { flag::ECN_ECHO } else { 0 }, "{tos:#x}");
        }
    }

    //= mlt#4.2.2 layers spread over the priorities
    #[test]
    fn layers_are_spread_over_the_classes() {
        let of = |layers| (0..layers).map(|layer| layer_priority(layer, layers)).collect::<Vec<_>>();
        assert_eq!(of(12), [5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0]);
        assert_eq!(of(3), [5, 3, 1]);
        assert_eq!(
            (layer_priority(9, 3), layer_priority(1, 0), layer_priority(u32::MAX, u32::MAX)),
            (0, 0, 0)
        );
    }
}
