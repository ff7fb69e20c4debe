//! Finds frequent faults of a host and its interface, with their remedies.

mod check;
mod interface;
mod irq;
mod offloads;
mod steering;
mod system;

pub use self::check::{Check, Severity, Subject};

/// Runs every check. Changes nothing, and never fails: an unreadable fact is a finding too.
pub fn examine(subject: &Subject) -> Vec<Check> {
    let mut checks = system::examine(&subject.pin_root);
    if let Some(name) = &subject.interface {
        checks.extend(interface::examine(name, subject));
    }
    checks
}
