//! Rules in a table that a test plays, and what is noted of them.

use std::{cell::RefCell, fs};

use super::*;

/// A NIC with four places, which it gives out from the last down.
#[derive(Default)]
struct Nic {
    rules: RefCell<Vec<PortRule>>,
    /// A port whose rule is refused.
    refuses: Option<u16>,
    /// Whether its filters are switched off.
    is_off: bool,
    /// Whether rules stay.
    keeps: bool,
}

impl Rules for Nic {
    fn rules(&self) -> io::Result<Vec<PortRule>> {
        if self.is_off {
            return Err(io::Error::from_raw_os_error(nix::libc::EOPNOTSUPP));
        }
        Ok(self.rules.borrow().clone())
    }

    fn insert(&self, port: u16, queue: u32) -> io::Result<PortRule> {
        let mut rules = self.rules.borrow_mut();
        if self.refuses == Some(port) || rules.iter().any(|rule| rule.port == port) {
            return Err(io::Error::from_raw_os_error(nix::libc::EEXIST));
        }
        let free = (0..4).rev().find(|place| rules.iter().all(|rule| rule.location != *place));
        let location = free.ok_or_else(|| io::Error::from_raw_os_error(nix::libc::ENOSPC))?;
        let rule = PortRule { location, port, queue };
        rules.push(rule);
        Ok(rule)
    }

    fn delete(&self, location: u32) -> io::Result<()> {
        if self.keeps {
            return Err(io::Error::from_raw_os_error(nix::libc::EBUSY));
        }
        self.rules.borrow_mut().retain(|rule| rule.location != location);
        Ok(())
    }
}

/// Ports and queues in the NIC, in order.
fn steered(nic: &Nic) -> Vec<(u16, u32)> {
    let mut rules: Vec<_> = nic.rules.borrow().iter().map(|rule| (rule.port, rule.queue)).collect();
    rules.sort_unstable();
    rules
}

/// Notes in a directory of the test's own.
struct Notes(Memory);

impl Notes {
    fn new(test: &str) -> Notes {
        let path = std::env::temp_dir().join(format!("sumac-steer-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Notes(Memory::of_interface(&path))
    }

    fn change(&self, nic: &Nic, wanted: &[(u16, u32)]) -> Result<Change, SteerError> {
        change("eth9", nic, &self.0.read().unwrap(), wanted, &self.0)
    }

    fn ports(&self) -> Vec<u16> {
        let mut ports: Vec<_> = self.0.read().unwrap().iter().map(|rule| rule.port).collect();
        ports.sort_unstable();
        ports
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.path());
    }
}

#[test]
fn shards_take_the_queues_in_turn() {
    assert_eq!(wanted(48700, 3, &[0, 2]), [(48700, 0), (48701, 2), (48702, 0)]);
    assert_eq!(wanted(65535, 1, &[0]), [(65535, 0)]);
    assert_eq!(wanted(48700, 2, &[]), []);
}

#[test]
fn words_name_what_they_say() {
    for steer in Steer::ALL {
        assert_eq!(steer.to_string().parse::<Steer>().unwrap(), steer);
    }
    assert!("rss".parse::<Steer>().unwrap_err().to_string().contains("auto, ntuple or off"));
}

#[test]
fn rules_come_once_change_and_go() {
    let (nic, notes) = (Nic::default(), Notes::new("life"));
    let two = [(48700, 0), (48701, 1)];
    assert_eq!(notes.change(&nic, &two).unwrap().inserted.len(), 2);
    let again = notes.change(&nic, &two).unwrap();
    assert!(again.inserted.is_empty() && again.deleted.is_empty(), "{again:?}");
    assert_eq!((steered(&nic), notes.ports()), (two.to_vec(), vec![48700, 48701]));

    let other = [(48700, 1), (48702, 0)];
    let _ = notes.change(&nic, &other).unwrap();
    assert_eq!((steered(&nic), notes.ports()), (other.to_vec(), vec![48700, 48702]));
    let _ = notes.change(&nic, &[]).unwrap();
    assert_eq!((steered(&nic), notes.ports()), (vec![], vec![]));
}

#[test]
fn rules_of_others_are_used_and_stay() {
    let (nic, notes) = (Nic::default(), Notes::new("others"));
    nic.insert(48700, 0).unwrap();
    let _ = notes.change(&nic, &[(48700, 0), (48701, 1)]).unwrap();
    assert_eq!(notes.ports(), [48701]);
    let _ = notes.change(&nic, &[]).unwrap();
    assert_eq!(steered(&nic), [(48700, 0)]);

    let error = notes.change(&nic, &[(48700, 1)]).unwrap_err().to_string();
    assert!(error.contains("port 48700 to queue 0 and not 1") && error.contains("eth9 delete 3"), "{error}");
    assert_eq!((steered(&nic), notes.ports()), (vec![(48700, 0)], vec![]));
}

#[test]
fn where_not_all_can_be_had_none_misleads() {
    let (nic, notes) = (Nic::default(), Notes::new("misled"));
    let _ = notes.change(&nic, &[(48700, 0), (48701, 1)]).unwrap();
    nic.insert(48702, 3).unwrap();
    let wanted = [(48700, 0), (48701, 2), (48702, 0)];
    assert!(matches!(notes.change(&nic, &wanted), Err(SteerError::Taken { queue: 0, .. })));
    let _ = keep_right("eth9", &nic, &notes.0.read().unwrap(), &wanted, &notes.0);
    assert_eq!((steered(&nic), notes.ports()), (vec![(48700, 0), (48702, 3)], vec![48700]));
}

#[test]
fn what_was_taken_out_by_others_is_put_in_again() {
    let (nic, notes) = (Nic::default(), Notes::new("lost"));
    let _ = notes.change(&nic, &[(48700, 0), (48701, 1)]).unwrap();
    nic.rules.borrow_mut().clear();
    // In the place of an own one, and not own.
    nic.rules.borrow_mut().push(PortRule { location: 3, port: 9, queue: 0 });
    let _ = notes.change(&nic, &[(48700, 0)]).unwrap();
    assert_eq!((steered(&nic), notes.ports()), (vec![(9, 0), (48700, 0)], vec![48700]));
    let _ = notes.change(&nic, &[]).unwrap();
    assert_eq!(steered(&nic), [(9, 0)]);
}

#[test]
fn a_rule_that_is_refused_leaves_all_as_it_was() {
    let (mut nic, notes) = (Nic::default(), Notes::new("refused"));
    let before = [(48700, 0), (48701, 1)];
    let _ = notes.change(&nic, &before).unwrap();
    nic.refuses = Some(48703);
    let error = notes.change(&nic, &[(48700, 1), (48702, 0), (48703, 1)]).unwrap_err().to_string();
    assert!(error.contains("port 48703 to queue 1") && error.contains("ethtool -n eth9"), "{error}");
    assert_eq!((steered(&nic), notes.ports()), (before.to_vec(), vec![48700, 48701]));

    nic.refuses = None;
    let five: Vec<_> = (0..5).map(|shard| (48700 + shard, 0)).collect();
    let error = notes.change(&nic, &five).unwrap_err().to_string();
    assert!(error.contains("table is full"), "{error}");
    assert_eq!((steered(&nic), notes.ports()), (before.to_vec(), vec![48700, 48701]));
}

#[test]
fn a_change_is_undone_when_something_else_fails() {
    let (nic, notes) = (Nic::default(), Notes::new("undone"));
    let before = [(48700, 0), (48701, 1)];
    let _ = notes.change(&nic, &before).unwrap();
    let made = notes.change(&nic, &[(48700, 1), (48701, 1), (48702, 0)]).unwrap();
    undo("eth9", &nic, notes.0.read().unwrap(), made, &notes.0).unwrap();
    assert_eq!((steered(&nic), notes.ports()), (before.to_vec(), vec![48700, 48701]));
}

#[test]
fn filters_that_are_switched_off_hold_no_rules() {
    let (mut nic, notes) = (Nic::default(), Notes::new("off"));
    let _ = notes.change(&nic, &[(48700, 0)]).unwrap();
    nic.is_off = true;
    assert!(matches!(notes.change(&nic, &[(48700, 0)]), Err(SteerError::Unsupported { .. })));
    assert_eq!(notes.ports(), [48700]);
    let _ = notes.change(&nic, &[]).unwrap();
    assert_eq!(notes.ports(), [], "and none are noted");
}

#[test]
fn a_rule_that_stays_is_named_and_noted() {
    let (mut nic, notes) = (Nic::default(), Notes::new("stays"));
    let _ = notes.change(&nic, &[(48700, 0)]).unwrap();
    nic.keeps = true;
    let error = notes.change(&nic, &[]).unwrap_err().to_string();
    assert!(error.contains("could not remove rule 3 of eth9") && error.contains("delete 3"), "{error}");
    assert_eq!((steered(&nic), notes.ports()), (vec![(48700, 0)], vec![48700]));
}
