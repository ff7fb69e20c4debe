//! Rules byte by byte, and against a driver that a test plays.

use std::{
    cell::RefCell,
    mem::{offset_of, size_of},
};

use super::*;

/// A driver with eight places, as those that the questions are for: it refuses what they refuse.
#[derive(Debug, Default)]
pub(super) struct Driver {
    rules: RefCell<[Option<Spec>; 8]>,
    finds_places: bool,
    /// Whether it tells the size of its table with the list alone.
    hides_size: bool,
}

impl Driver {
    pub(super) fn answer<const N: usize>(&self, question: &mut Question<N>) -> io::Result<()> {
        let refused = |number| Err(io::Error::from_raw_os_error(number));
        let mut rules = self.rules.borrow_mut();
        let place = question.spec.location as usize;
        match question.command {
            COUNT_RULES => {
                question.count = rules.iter().flatten().count() as u32;
                let size = if self.hides_size { 0 } else { 8 };
                question.data = size | if self.finds_places { FINDS_PLACES } else { 0 };
            }
            LIST_RULES => {
                let taken: Vec<_> = (0..8).filter(|place| rules[*place as usize].is_some()).collect();
                if taken.len() != question.count as usize {
                    return refused(libc::EMSGSIZE);
                }
                question.locations[..taken.len()].copy_from_slice(&taken);
                question.data = 8;
            }
            GET_RULE => match rules.get(place).copied().flatten() {
                Some(rule) => question.spec = Spec { location: place as u32, ..rule },
                None => return refused(libc::ENOENT),
            },
            DELETE_RULE => match rules.get_mut(place).and_then(Option::take) {
                Some(_) => {}
                None => return refused(libc::ENOENT),
            },
            INSERT_RULE => {
                let wanted = match question.spec.location {
                    ANY_PLACE if self.finds_places => rules.iter().position(Option::is_none),
                    place => Some(place as usize),
                };
                let Some(place) = wanted else { return refused(libc::ENOSPC) };
                let Some(free) = rules.get_mut(place) else { return refused(libc::EINVAL) };
                *free = Some(question.spec);
                question.spec.location = place as u32;
            }
            GET_HASH if question.flow_type == UDP4 => question.data = 1 << 4 | 1 << 7 | 1 << 31,
            _ => return refused(libc::EOPNOTSUPP),
        }
        Ok(())
    }
}

fn played(driver: Driver) -> Flows {
    Flows { kernel: Kernel::Played(Box::new(driver)), name: [0; libc::IFNAMSIZ] }
}

#[test]
fn rules_are_put_in_listed_and_taken_out() {
    let drivers = [
        ("chooses no place", Driver::default(), [7, 6]),
        ("tells its size late", Driver { hides_size: true, ..Driver::default() }, [7, 6]),
        ("chooses places", Driver { finds_places: true, ..Driver::default() }, [0, 1]),
    ];
    for (what, driver, places) in drivers {
        driver.rules.borrow_mut()[3] = Some(Spec { flow_type: 1, ..Spec::to_queue(80, 0) });
        let flows = played(driver);
        assert_eq!(flows.rules().unwrap(), [], "{what}: a rule of another kind");
        let inserted = [flows.insert(48700, 0).unwrap(), flows.insert(48701, 1).unwrap()];
        let expected = [(places[0], 48700, 0), (places[1], 48701, 1)];
        assert_eq!(inserted.map(|rule| (rule.location, rule.port, rule.queue)), expected, "{what}");
        let mut listed = flows.rules().unwrap();
        listed.sort_by_key(|rule| rule.port);
        assert_eq!(listed, inserted, "{what}");
        flows.delete(inserted[0].location).unwrap();
        assert_eq!(flows.rules().unwrap(), inserted[1..], "{what}");
        let again = flows.delete(inserted[0].location).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(libc::ENOENT), "{what}");
    }
}

#[test]
fn a_full_table_is_told() {
    for finds_places in [false, true] {
        let flows = played(Driver { finds_places, ..Driver::default() });
        for port in 0..8 {
            flows.insert(port, 0).unwrap();
        }
        assert_eq!(flows.insert(8, 0).unwrap_err().raw_os_error(), Some(libc::ENOSPC), "{finds_places}");
    }
}

#[test]
fn the_hash_is_told_by_its_fields() {
    assert_eq!(played(Driver::default()).udp4_hash().unwrap(), ["source address", "destination port"]);
}

/// The rule that ethtool 6.1 hands to the kernel for `ethtool -N eth1 flow-type udp4 dst-port 48700 action 2 loc 7`:
/// every byte that is not zero, by its offset in the rule.
const RECORDED: [(usize, u8); 7] =
    [(0, 0x02), (14, 0xbe), (15, 0x3c), (86, 0xff), (87, 0xff), (152, 0x02), (160, 0x07)];

#[test]
fn a_question_is_laid_out_as_the_kernels() {
    assert_eq!((size_of::<Spec>(), offset_of!(Spec, value), offset_of!(Spec, mask)), (168, 4, 76));
    assert_eq!((offset_of!(Spec, queue), offset_of!(Spec, location)), (152, 160));
    assert_eq!(size_of::<Question<1>>(), 192);
    assert_eq!(offset_of!(Question<1>, spec), 16);
    assert_eq!(offset_of!(Question<1>, count), 184);
    assert_eq!(offset_of!(Question<1>, locations), 188);
    assert_eq!((size_of::<Request>(), offset_of!(Request, data)), (40, 16));
}

#[test]
fn a_rule_has_the_bytes_that_ethtool_gives_it() {
    let mut expected = [0; 168];
    for (offset, byte) in RECORDED {
        expected[offset] = byte;
    }
    let spec = Spec { location: 7, ..Spec::to_queue(48700, 2) };
    let mut bytes = spec.flow_type.to_le_bytes().to_vec();
    for field in [&spec.value[..], &spec.value_extended, &spec.mask, &spec.mask_extended, &[0; 4]] {
        bytes.extend(field);
    }
    bytes.extend(spec.queue.to_le_bytes());
    bytes.extend(spec.location.to_le_bytes());
    bytes.extend([0; 4]);
    assert_eq!(bytes, expected);
    assert_eq!(spec.port_rule(), Some(PortRule { location: 7, port: 48700, queue: 2 }));
}

#[test]
fn only_rules_by_port_alone_are_understood() {
    let rule = Spec::to_queue(48700, 1);
    let mut by_address = rule;
    by_address.mask[0] = 0xff;
    let mut by_tag = Spec { flow_type: UDP4 | EXTENDED, ..rule };
    by_tag.mask_extended[10] = 0xff;
    let mut by_part = rule;
    by_part.mask[PORT] = 0;
    let cases = [
        ("plain", rule, true),
        ("extended by nothing", Spec { flow_type: UDP4 | EXTENDED, ..rule }, true),
        ("TCP", Spec { flow_type: 1, ..rule }, false),
        ("to a hash context", Spec { flow_type: UDP4 | 1 << 29, ..rule }, false),
        ("by address too", by_address, false),
        ("by tag too", by_tag, false),
        ("by half a port", by_part, false),
        ("dropped", Spec { queue: u64::MAX, ..rule }, false),
        ("to a virtual function", Spec { queue: 1 << 32, ..rule }, false),
    ];
    for (what, spec, understood) in cases {
        assert_eq!(spec.port_rule().is_some(), understood, "{what}");
    }
}

#[test]
fn the_last_free_place_is_taken() {
    let table = |taken: &[u32]| Table { size: 4, finds_places: false, taken: taken.to_vec() };
    assert_eq!(table(&[]).free(), Some(3));
    assert_eq!(table(&[3, 1]).free(), Some(2));
    assert_eq!(table(&[0, 1, 2, 3]).free(), None);
}

#[test]
fn an_interface_without_rules_says_so() {
    let errno = |name: &str| Flows::open(name).and_then(|flows| flows.rules()).unwrap_err().raw_os_error();
    assert_eq!(errno("lo"), Some(libc::EOPNOTSUPP));
    assert_eq!(errno("no-such-if"), Some(libc::ENODEV));
    let flows = Flows::open("lo").unwrap();
    for outcome in [flows.insert(48700, 0).map(drop), flows.udp4_hash().map(drop)] {
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
    }
    for impossible in ["a-name-of-16-chr", "nul\0"] {
        assert!(Flows::open(impossible).is_err(), "{impossible}");
    }
}
