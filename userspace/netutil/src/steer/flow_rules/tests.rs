//! The rules' byte layout, and requests against a fake driver.

use std::{
    cell::{Cell, RefCell},
    mem::{offset_of, size_of},
};

use super::*;

/// A driver with a table of eight locations that returns a real driver's errors, and takes no second rule for
/// the same port.
#[derive(Debug, Default)]
pub struct FakeDriver {
    rules: RefCell<[Option<FlowSpec>; 8]>,
    driver_chooses: bool,
    /// Whether only the reply to the list request has the table's size.
    hides_size: bool,
    /// A port whose rule is refused.
    pub refuses: Cell<Option<u16>>,
    /// Its filters are switched off.
    pub is_off: Cell<bool>,
    /// A port with whose rule the process ends.
    pub kills: Cell<Option<u16>>,
    /// Rules cannot be deleted.
    pub keeps: Cell<bool>,
}

impl FlowRules {
    pub fn fake(driver: FakeDriver) -> FlowRules {
        FlowRules { device: Device::Fake(Box::new(driver)), name: [0; libc::IFNAMSIZ] }
    }

    pub fn driver(&self) -> &FakeDriver {
        match &self.device {
            Device::Fake(driver) => driver,
            Device::Socket(_) => panic!("a kernel's driver"),
        }
    }
}

impl FakeDriver {
    pub fn choosing_locations() -> FakeDriver {
        FakeDriver { driver_chooses: true, ..FakeDriver::default() }
    }

    pub(super) fn handle<const N: usize>(&self, request: &mut RxNfc<N>) -> io::Result<()> {
        let refused = |number| Err(io::Error::from_raw_os_error(number));
        let mut rules = self.rules.borrow_mut();
        let location = request.spec.location as usize;
        match request.command {
            COUNT_RULES if self.is_off.get() => return refused(libc::EOPNOTSUPP),
            COUNT_RULES => {
                request.count = rules.iter().flatten().count() as u32;
                let size = if self.hides_size { 0 } else { 8 };
                request.data = size | if self.driver_chooses { DRIVER_CHOOSES } else { 0 };
            }
            LIST_RULES => {
                let used: Vec<_> = (0..8).filter(|location| rules[*location as usize].is_some()).collect();
                if used.len() != request.count as usize {
                    return refused(libc::EMSGSIZE);
                }
                request.locations[..used.len()].copy_from_slice(&used);
                request.data = 8;
            }
            GET_RULE => match rules.get(location).copied().flatten() {
                Some(rule) => request.spec = FlowSpec { location: location as u32, ..rule },
                None => return refused(libc::ENOENT),
            },
            DELETE_RULE if self.keeps.get() => return refused(libc::EBUSY),
            DELETE_RULE => match rules.get_mut(location).and_then(Option::take) {
                Some(_) => {}
                None => return refused(libc::ENOENT),
            },
            INSERT_RULE => {
                let port = request.spec.port_rule().map(|rule| rule.port);
                let is_there = |rule: &FlowSpec| rule.port_rule().map(|rule| rule.port) == port;
                if port == self.refuses.get() || rules.iter().flatten().any(is_there) {
                    return refused(libc::EEXIST);
                }
                let wanted = match request.spec.location {
                    ANY_LOCATION if self.driver_chooses => rules.iter().position(Option::is_none),
                    location => Some(location as usize),
                };
                let Some(location) = wanted else { return refused(libc::ENOSPC) };
                let Some(free) = rules.get_mut(location) else { return refused(libc::EINVAL) };
                *free = Some(request.spec);
                request.spec.location = location as u32;
                assert!(self.kills.get().is_none() || self.kills.get() != port, "killed");
            }
            GET_HASH if request.flow_type == UDP4 => request.data = 1 << 4 | 1 << 7 | 1 << 31,
            _ => return refused(libc::EOPNOTSUPP),
        }
        Ok(())
    }
}

#[test]
fn rules_are_inserted_listed_and_deleted() {
    let drivers = [
        ("leaves the location to the caller", FakeDriver::default(), [7, 6]),
        (
            "reports its size with the list only",
            FakeDriver { hides_size: true, ..FakeDriver::default() },
            [7, 6],
        ),
        ("chooses the location", FakeDriver { driver_chooses: true, ..FakeDriver::default() }, [0, 1]),
    ];
    for (what, driver, locations) in drivers {
        driver.rules.borrow_mut()[3] = Some(FlowSpec { flow_type: 1, ..FlowSpec::to_queue(80, 0) });
        let flows = FlowRules::fake(driver);
        assert_eq!(flows.rules().unwrap(), [], "{what}: a rule of another kind");
        let inserted = [flows.insert(48700, 0).unwrap(), flows.insert(48701, 1).unwrap()];
        let expected = [(locations[0], 48700, 0), (locations[1], 48701, 1)];
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
fn a_full_table_is_an_error() {
    for driver_chooses in [false, true] {
        let flows = FlowRules::fake(FakeDriver { driver_chooses, ..FakeDriver::default() });
        for port in 0..8 {
            flows.insert(port, 0).unwrap();
        }
        assert_eq!(flows.insert(8, 0).unwrap_err().raw_os_error(), Some(libc::ENOSPC), "{driver_chooses}");
    }
}

#[test]
fn the_hash_is_reported_by_its_fields() {
    assert_eq!(
        FlowRules::fake(FakeDriver::default()).udp4_hash().unwrap(),
        ["source address", "destination port"]
    );
}

/// The rule that ethtool 6.1 hands to the kernel for `ethtool -N eth1 flow-type udp4 dst-port 48700 action 2
/// loc 7`: every byte that is not zero, by its offset in the rule.
const RECORDED: [(usize, u8); 7] =
    [(0, 0x02), (14, 0xbe), (15, 0x3c), (86, 0xff), (87, 0xff), (152, 0x02), (160, 0x07)];

#[test]
fn a_question_is_laid_out_as_the_kernels() {
    assert_eq!(
        (size_of::<FlowSpec>(), offset_of!(FlowSpec, value), offset_of!(FlowSpec, mask)),
        (168, 4, 76)
    );
    assert_eq!((offset_of!(FlowSpec, queue), offset_of!(FlowSpec, location)), (152, 160));
    assert_eq!(size_of::<RxNfc<1>>(), 192);
    assert_eq!(offset_of!(RxNfc<1>, spec), 16);
    assert_eq!(offset_of!(RxNfc<1>, count), 184);
    assert_eq!(offset_of!(RxNfc<1>, locations), 188);
    assert_eq!((size_of::<IfRequest>(), offset_of!(IfRequest, data)), (40, 16));
}

#[test]
fn a_rule_has_the_bytes_that_ethtool_gives_it() {
    let mut expected = [0; 168];
    for (offset, byte) in RECORDED {
        expected[offset] = byte;
    }
    let spec = FlowSpec { location: 7, ..FlowSpec::to_queue(48700, 2) };
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
fn only_rules_that_match_the_port_alone_are_recognised() {
    let rule = FlowSpec::to_queue(48700, 1);
    let mut by_address = rule;
    by_address.mask[0] = 0xff;
    let mut by_tag = FlowSpec { flow_type: UDP4 | EXTENDED, ..rule };
    by_tag.mask_extended[10] = 0xff;
    let mut by_part = rule;
    by_part.mask[PORT] = 0;
    let cases = [
        ("plain", rule, true),
        ("extended by nothing", FlowSpec { flow_type: UDP4 | EXTENDED, ..rule }, true),
        ("TCP", FlowSpec { flow_type: 1, ..rule }, false),
        ("to a hash context", FlowSpec { flow_type: UDP4 | 1 << 29, ..rule }, false),
        ("by address too", by_address, false),
        ("by tag too", by_tag, false),
        ("by half a port", by_part, false),
        ("dropped", FlowSpec { queue: u64::MAX, ..rule }, false),
        ("to a virtual function", FlowSpec { queue: 1 << 32, ..rule }, false),
    ];
    for (what, spec, recognised) in cases {
        assert_eq!(spec.port_rule().is_some(), recognised, "{what}");
    }
}

#[test]
fn the_last_free_location_is_chosen() {
    let table = |used: &[u32]| Table { size: 4, driver_chooses: false, used: used.to_vec() };
    assert_eq!(table(&[]).last_free(), Some(3));
    assert_eq!(table(&[3, 1]).last_free(), Some(2));
    assert_eq!(table(&[0, 1, 2, 3]).last_free(), None);
}

#[test]
fn an_interface_without_rules_returns_the_kernels_error() {
    let errno =
        |name: &str| FlowRules::open(name).and_then(|flows| flows.rules()).unwrap_err().raw_os_error();
    assert_eq!(errno("lo"), Some(libc::EOPNOTSUPP));
    assert_eq!(errno("no-such-if"), Some(libc::ENODEV));
    let flows = FlowRules::open("lo").unwrap();
    for outcome in [flows.insert(48700, 0).map(drop), flows.udp4_hash().map(drop)] {
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
    }
    for impossible in ["a-name-of-16-chr", "nul\0"] {
        assert!(FlowRules::open(impossible).is_err(), "{impossible}");
    }
}
