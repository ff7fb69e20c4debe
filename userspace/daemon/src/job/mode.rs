//! The options of each mode.

use sumac_api::{JobSpec, Mode, WireFormat};
use sumac_transport::limits::{MAX_WINDOW, MIN_WINDOW};
use sumac_wire::{MAX_HOSTS, PAGE_ELEMENTS};

/// Returns whether a packet of this many elements fits a shared slot.
pub(super) fn fits_slot(elements: u16) -> bool {
    usize::from(elements) <= PAGE_ELEMENTS
}

/// Returns the problem of options that do not fit the mode.
pub(super) fn check(open: &JobSpec) -> Result<(), String> {
    match open.mode.unwrap_or_default() {
        Mode::Static => fixed(open),
        Mode::Dynamic => dynamic(open),
    }
}

/// Refuses the options of dynamic jobs.
fn fixed(open: &JobSpec) -> Result<(), String> {
    let given = [
        ("window", open.window.is_some()),
        ("dynamic_slots", open.dynamic_slots.is_some()),
        ("parameter_hosts", open.parameter_hosts.is_some()),
        ("congestion_control", open.congestion_control.is_some()),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => Err(format!("{name} is only for jobs in mode \"dynamic\"")),
        None => Ok(()),
    }
}

fn dynamic(open: &JobSpec) -> Result<(), String> {
    if open.slots.is_some() {
        return Err(
            "slots is only for jobs in mode \"static\"; a dynamic job has dynamic_slots and window".into()
        );
    }
    if open.wire == Some(WireFormat::Int16) {
        return Err("wire \"int16\" is only for jobs in mode \"static\"".into());
    }
    if let Some(elements) = open.elements
        && !fits_slot(elements)
    {
        return Err(format!("{elements} elements do not fit a shared slot, which has {PAGE_ELEMENTS}"));
    }
    if let Some(window) = open.window
        && !(window.is_power_of_two() && (MIN_WINDOW..=MAX_WINDOW).contains(&window))
    {
        return Err(format!("window {window} is not a power of two from {MIN_WINDOW} to {MAX_WINDOW}"));
    }
    if open.dynamic_slots == Some(0) {
        return Err("dynamic_slots 0 leaves no slot; leave it out for all".into());
    }
    if let Some(hosts) = open.parameter_hosts
        && (hosts == 0 || usize::from(hosts) > MAX_HOSTS)
    {
        return Err(format!("parameter_hosts {hosts} is not between 1 and {MAX_HOSTS}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> JobSpec {
        JobSpec { mode: Some(Mode::Dynamic), ..JobSpec::new("job", 0, 2) }
    }

    #[test]
    fn what_is_left_out_is_the_default() {
        assert_eq!(check(&JobSpec::new("job", 0, 2)), Ok(()));
        assert_eq!(check(&open()), Ok(()));
    }

    #[test]
    fn options_that_do_not_fit_the_mode_are_named() {
        let fixed = JobSpec::new("job", 0, 2);
        let table = [
            ("window", JobSpec { window: Some(64), ..fixed.clone() }),
            ("dynamic_slots", JobSpec { dynamic_slots: Some(64), ..fixed.clone() }),
            ("parameter_hosts", JobSpec { parameter_hosts: Some(1), ..fixed.clone() }),
            ("congestion_control", JobSpec { congestion_control: Some(true), ..fixed }),
            ("slots", JobSpec { slots: Some(64), ..open() }),
            ("int16", JobSpec { wire: Some(WireFormat::Int16), ..open() }),
            ("833 elements", JobSpec { elements: Some(833), ..open() }),
            ("window 100", JobSpec { window: Some(100), ..open() }),
            ("window 4", JobSpec { window: Some(4), ..open() }),
            ("window 8192", JobSpec { window: Some(8192), ..open() }),
            ("dynamic_slots 0", JobSpec { dynamic_slots: Some(0), ..open() }),
            ("parameter_hosts 0", JobSpec { parameter_hosts: Some(0), ..open() }),
            ("parameter_hosts 5", JobSpec { parameter_hosts: Some(5), ..open() }),
        ];
        for (named, open) in table {
            let problem = check(&open).unwrap_err();
            assert!(problem.contains(named), "{named}: {problem}");
        }
    }
}
