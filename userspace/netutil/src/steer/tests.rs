//! Changes to the rules of a simulated NIC, and their records.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
};

use clap::ValueEnum as _;

use super::{flow_rules::tests::FakeDriver, *};

fn nic() -> FlowRules {
    FlowRules::fake(FakeDriver::default())
}

/// Returns the ports and queues of the NIC's rules, in order.
fn steered(nic: &FlowRules) -> Vec<(u16, u32)> {
    let mut rules: Vec<_> = nic.rules().unwrap().iter().map(|rule| (rule.port, rule.queue)).collect();
    rules.sort_unstable();
    rules
}

/// Records in a directory of the test's own.
struct Records(RuleRecords);

impl Records {
    fn new(test: &str) -> Records {
        let path = std::env::temp_dir().join(format!("sumac-steer-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Records(RuleRecords::of_interface(&path))
    }

    fn table<'a>(&'a self, nic: &'a FlowRules) -> RuleTable<'a> {
        RuleTable { ifname: "eth9", rules: nic, records: &self.0 }
    }

    fn change(&self, nic: &FlowRules, wanted: &[(u16, u32)]) -> Result<Change, SteerError> {
        self.table(nic).change(&self.0.read().unwrap(), wanted)
    }

    fn ports(&self) -> Vec<u16> {
        let mut ports: Vec<_> = self.0.read().unwrap().iter().map(|rule| rule.port).collect();
        ports.sort_unstable();
        ports
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.directory());
    }
}

#[test]
fn shards_take_the_queues_in_turn() {
    assert_eq!(wanted(48700, 3, &[0, 2]), [(48700, 0), (48701, 2), (48702, 0)]);
    assert_eq!(wanted(65535, 1, &[0]), [(65535, 0)]);
    assert_eq!(wanted(48700, 2, &[]), []);
}

#[test]
fn values_are_displayed_as_they_are_parsed() {
    for steer in Steer::value_variants() {
        assert_eq!(Steer::from_str(&steer.to_string(), false), Ok(*steer));
    }
}

#[test]
fn rules_are_inserted_once_changed_and_deleted() {
    let (nic, records) = (nic(), Records::new("life"));
    let two = [(48700, 0), (48701, 1)];
    assert_eq!(records.change(&nic, &two).unwrap().inserted.len(), 2);
    let again = records.change(&nic, &two).unwrap();
    assert!(again.inserted.is_empty() && again.deleted.is_empty(), "{again:?}");
    assert_eq!((steered(&nic), records.ports()), (two.to_vec(), vec![48700, 48701]));

    let other = [(48700, 1), (48702, 0)];
    let _ = records.change(&nic, &other).unwrap();
    assert_eq!((steered(&nic), records.ports()), (other.to_vec(), vec![48700, 48702]));
    let _ = records.change(&nic, &[]).unwrap();
    assert_eq!((steered(&nic), records.ports()), (vec![], vec![]));
}

#[test]
fn rules_of_others_are_used_and_stay() {
    let (nic, records) = (nic(), Records::new("others"));
    nic.insert(48700, 0).unwrap();
    let _ = records.change(&nic, &[(48700, 0), (48701, 1)]).unwrap();
    assert_eq!(records.ports(), [48701]);
    let _ = records.change(&nic, &[]).unwrap();
    assert_eq!(steered(&nic), [(48700, 0)]);

    let error = records.change(&nic, &[(48700, 1)]).unwrap_err().to_string();
    assert!(error.contains("port 48700 to queue 0 and not 1") && error.contains("eth9 delete 7"), "{error}");
    assert_eq!((steered(&nic), records.ports()), (vec![(48700, 0)], vec![]));
}

#[test]
fn where_one_is_refused_wrong_own_rules_are_deleted() {
    let (nic, records) = (nic(), Records::new("misled"));
    let _ = records.change(&nic, &[(48700, 0), (48701, 1)]).unwrap();
    nic.insert(48702, 3).unwrap();
    let wanted = [(48700, 0), (48701, 2), (48702, 0)];
    assert!(matches!(records.change(&nic, &wanted), Err(SteerError::Taken { queue: 0, .. })));
    let _ = records.table(&nic).delete_wrong(&records.0.read().unwrap(), &wanted);
    assert_eq!((steered(&nic), records.ports()), (vec![(48700, 0), (48702, 3)], vec![48700]));
}

#[test]
fn rules_that_others_deleted_are_inserted_again() {
    let (nic, records) = (nic(), Records::new("lost"));
    let _ = records.change(&nic, &[(48700, 0), (48701, 1)]).unwrap();
    nic.rules().unwrap().iter().for_each(|rule| nic.delete(rule.location).unwrap());
    // At the location of an own one, and not own.
    assert_eq!(nic.insert(9, 0).unwrap().location, 7);
    let _ = records.change(&nic, &[(48700, 0)]).unwrap();
    assert_eq!((steered(&nic), records.ports()), (vec![(9, 0), (48700, 0)], vec![48700]));
    let _ = records.change(&nic, &[]).unwrap();
    assert_eq!(steered(&nic), [(9, 0)]);
}

#[test]
fn a_refused_rule_leaves_all_as_it_was() {
    let (nic, records) = (nic(), Records::new("refused"));
    let before = [(48700, 0), (48701, 1)];
    let _ = records.change(&nic, &before).unwrap();
    nic.driver().refuses.set(Some(48703));
    let error = records.change(&nic, &[(48700, 1), (48702, 0), (48703, 1)]).unwrap_err().to_string();
    assert!(error.contains("port 48703 to queue 1") && error.contains("ethtool -n eth9"), "{error}");
    assert_eq!((steered(&nic), records.ports()), (before.to_vec(), vec![48700, 48701]));

    nic.driver().refuses.set(None);
    let nine: Vec<_> = (0..9).map(|shard| (48700 + shard, 0)).collect();
    let error = records.change(&nic, &nine).unwrap_err().to_string();
    assert!(error.contains("table is full"), "{error}");
    assert_eq!((steered(&nic), records.ports()), (before.to_vec(), vec![48700, 48701]));
}

#[test]
fn a_change_is_undone_when_a_later_step_fails() {
    let (nic, records) = (nic(), Records::new("undone"));
    let before = [(48700, 0), (48701, 1)];
    let _ = records.change(&nic, &before).unwrap();
    let made = records.change(&nic, &[(48700, 1), (48701, 1), (48702, 0)]).unwrap();
    records.table(&nic).undo(records.0.read().unwrap(), made).unwrap();
    assert_eq!((steered(&nic), records.ports()), (before.to_vec(), vec![48700, 48701]));
}

#[test]
fn filters_that_are_switched_off_hold_no_rules() {
    let (nic, records) = (nic(), Records::new("off"));
    let _ = records.change(&nic, &[(48700, 0)]).unwrap();
    nic.driver().is_off.set(true);
    assert!(matches!(records.change(&nic, &[(48700, 0)]), Err(SteerError::Unsupported { .. })));
    assert_eq!(records.ports(), [48700]);
    let _ = records.change(&nic, &[]).unwrap();
    assert_eq!(records.ports(), Vec::<u16>::new(), "and none are recorded");
}

#[test]
fn a_rule_that_stays_is_named_and_recorded() {
    let (nic, records) = (nic(), Records::new("stays"));
    let _ = records.change(&nic, &[(48700, 0)]).unwrap();
    nic.driver().keeps.set(true);
    let error = records.change(&nic, &[]).unwrap_err().to_string();
    assert!(error.contains("could not remove rule 7 of eth9") && error.contains("delete 7"), "{error}");
    assert_eq!((steered(&nic), records.ports()), (vec![(48700, 0)], vec![48700]));
}

/// Killed between the insertion of a rule and its record.
#[test]
fn a_rule_of_a_killed_process_is_own() {
    for (driver, name) in [(FakeDriver::default(), "killed"), (FakeDriver::choosing_locations(), "chosen")] {
        let (nic, records) = (FlowRules::fake(driver), Records::new(name));
        let wanted = [(48700, 0), (48701, 1), (48702, 0)];
        nic.driver().kills.set(Some(48701));
        assert!(catch_unwind(AssertUnwindSafe(|| records.change(&nic, &wanted))).is_err());
        nic.driver().kills.set(None);
        assert_eq!(steered(&nic), wanted[..2]);
        let change = records.change(&nic, &wanted).unwrap();
        assert_eq!((change.inserted.len(), records.ports()), (1, vec![48700, 48701, 48702]));
        let _ = records.change(&nic, &[]).unwrap();
        assert_eq!((steered(&nic), records.ports()), (vec![], vec![]));
    }
}
