//! A trainer's request to open a job, checked and completed from the configuration.

use std::time::Duration;

use sumac_api::{Code, Failure, JobSpec, Mode, Scale, WireFormat};
use sumac_control::JOB_NAME_LEN;
use sumac_control::coordinator::DYNAMIC_SCALE;
use sumac_job::limits::{MAX_RANKS, MAX_WINDOW, MAX_WORLD, MIN_WINDOW};
use sumac_wire::{MAX_HOSTS, PAGE_ELEMENTS};

/// The settings of the configuration for jobs that leave them open.
#[derive(Clone, Copy, Debug, Default)]
pub struct JobDefaults {
    pub scale: Option<f32>,
    /// 32-bit words of a packet.
    pub elements: Option<u16>,
    pub slots: Option<u32>,
    /// The time for all workers to join, in seconds.
    pub join_timeout_s: f64,
}

/// Checks a trainer's request, and completes it from the configuration.
///
/// # Errors
/// The field that is invalid, or has no meaning in the job's mode.
pub fn complete(asked: &JobSpec, defaults: &JobDefaults) -> Result<JobSpec, Failure> {
    let is_dynamic = asked.mode == Some(Mode::Dynamic);
    let is_int32 = asked.wire.unwrap_or_default() == WireFormat::Int32;
    let usual = if is_dynamic && is_int32 { Scale::Fixed(DYNAMIC_SCALE) } else { Scale::Block };
    let scale = asked.scale.or(defaults.scale.map(Scale::Fixed)).unwrap_or(usual);
    check(asked, scale).map_err(bad)?;
    Ok(JobSpec {
        elements: asked.elements.or(defaults.elements.filter(|elements| !is_dynamic || fits_slot(*elements))),
        slots: asked.slots.or(defaults.slots.filter(|_| asked.mode.unwrap_or_default() == Mode::Static)),
        scale: Some(scale),
        timeout_s: asked.timeout_s.or(Some(defaults.join_timeout_s)),
        ..asked.clone()
    })
}

fn bad(problem: impl std::fmt::Display) -> Failure {
    Failure::new(Code::BadField, format!("open: {problem}"))
}

fn check(spec: &JobSpec, scale: Scale) -> Result<(), String> {
    let JobSpec { ref job, rank, world, timeout_s, .. } = *spec;
    let is_name = !job.is_empty() && job.len() <= JOB_NAME_LEN && !job.contains(char::is_control);
    ensure!(is_name, format!("the job's name must have 1 to {JOB_NAME_LEN} bytes and no control characters"));
    let workers = if spec.is_local() { world } else { spec.workers() };
    ensure!(world > 0 && workers <= MAX_WORLD, format!("world {world} is not between 1 and {MAX_WORLD}"));
    ensure!(world <= MAX_RANKS, format!("world {world}: a job has at most {MAX_RANKS} ranks"));
    ensure!(rank < world, format!("rank {rank} is not below world {world}"));
    let seconds = timeout_s.unwrap_or_default();
    let is_time = Duration::try_from_secs_f64(seconds).is_ok();
    ensure!(is_time, format!("timeout_s {seconds} is no time in seconds"));
    check_local(spec)?;
    check_mode(spec)?;
    if let Scale::Fixed(scale) = scale {
        ensure!(scale.is_normal() && scale > 0.0, format!("scale {scale} is not a positive number"));
    }
    Ok(())
}

fn check_local(spec: &JobSpec) -> Result<(), String> {
    let JobSpec { world, local_world, .. } = *spec;
    let Some(local) = local_world else { return Ok(()) };
    ensure!((1..=world).contains(&local), format!("local_world {local} is not between 1 and world {world}"));
    ensure!(
        world.is_multiple_of(local),
        format!("local_world {local} of world {world}: all hosts of a job have as many ranks")
    );
    Ok(())
}

/// Refuses options that were given but have no meaning in the job's mode.
fn refuse(options: &[(&str, bool)], why: &str) -> Result<(), String> {
    let given = options.iter().find(|(_, is_given)| *is_given);
    given.map_or(Ok(()), |(name, _)| Err(format!("{name} is {why}")))
}

fn check_mode(spec: &JobSpec) -> Result<(), String> {
    let mode = spec.mode.unwrap_or_default();
    let dynamic = [
        ("dynamic_slots", spec.dynamic_slots.is_some()),
        ("parameter_hosts", spec.parameter_hosts.is_some()),
    ];
    if mode == Mode::Direct {
        let others =
            [("slots", spec.slots.is_some()), ("congestion_control", spec.congestion_control.is_some())];
        refuse(&others, "not for jobs in mode \"direct\"")?;
        refuse(&dynamic, "not for jobs in mode \"direct\"")?;
        return spec.problem_of_servers().map_or(Ok(()), Err);
    }
    let direct = [
        ("topology", spec.topology.is_some()),
        ("owners", spec.owners.is_some()),
        ("servers", spec.servers.is_some()),
    ];
    refuse(&direct, "only for jobs in mode \"direct\"")?;
    if mode == Mode::Static {
        refuse(&[("window", spec.window.is_some())], "only for jobs in mode \"dynamic\"")?;
        return refuse(&dynamic, "only for jobs in mode \"dynamic\"");
    }
    ensure!(
        spec.slots.is_none(),
        "slots is only for jobs in mode \"static\"; a dynamic job has dynamic_slots and window".into()
    );
    let elements = spec.elements.unwrap_or(1);
    ensure!(
        fits_slot(elements),
        format!("{elements} elements do not fit a shared slot, which has {PAGE_ELEMENTS}")
    );
    let window = spec.window.unwrap_or(MIN_WINDOW);
    ensure!(
        window.is_power_of_two() && (MIN_WINDOW..=MAX_WINDOW).contains(&window),
        format!("window {window} is not a power of two from {MIN_WINDOW} to {MAX_WINDOW}")
    );
    ensure!(spec.dynamic_slots != Some(0), "dynamic_slots 0 leaves no slot; leave it out for all".into());
    let hosts = spec.parameter_hosts.unwrap_or(1);
    ensure!(
        (1..=MAX_HOSTS).contains(&hosts.into()),
        format!("parameter_hosts {hosts} is not between 1 and {MAX_HOSTS}")
    );
    Ok(())
}

/// Returns whether a packet of this many elements fits a shared slot.
fn fits_slot(elements: u16) -> bool {
    usize::from(elements) <= PAGE_ELEMENTS
}

#[cfg(test)]
mod tests {
    use sumac_job::Topology;

    use super::*;

    fn open() -> JobSpec {
        JobSpec { mode: Some(Mode::Dynamic), ..JobSpec::new("job", 0, 2) }
    }

    #[test]
    fn what_is_left_out_is_the_default() {
        assert_eq!(check_mode(&JobSpec::new("job", 0, 2)), Ok(()));
        assert_eq!(check_mode(&open()), Ok(()));
        let yields = JobSpec { congestion_control: Some(true), ..JobSpec::new("job", 0, 2) };
        assert_eq!(check_mode(&yields), Ok(()));
    }

    #[test]
    fn sums_of_16_bits_are_scaled_by_block_unless_a_scale_is_given() {
        let defaults = JobDefaults { scale: None, elements: None, slots: None, join_timeout_s: 1.0 };
        let scale = |spec: JobSpec| complete(&spec, &defaults).unwrap().scale;
        let with = |wire| JobSpec { wire: Some(wire), ..open() };
        let usual = Some(Scale::Fixed(DYNAMIC_SCALE));
        assert_eq!([scale(open()), scale(with(WireFormat::Int32))], [usual; 2]);
        assert_eq!(
            [WireFormat::Int16, WireFormat::Auto].map(|wire| scale(with(wire))),
            [Some(Scale::Block); 2]
        );
        let given = JobSpec { scale: Some(Scale::Fixed(2.0)), ..with(WireFormat::Int16) };
        assert_eq!(scale(given), Some(Scale::Fixed(2.0)));
    }

    #[test]
    fn servers_leave_a_rank_that_contributes() {
        let direct = JobSpec { mode: Some(Mode::Direct), servers: Some(1), ..JobSpec::new("job", 0, 4) };
        assert_eq!(check_mode(&direct), Ok(()));
        assert_eq!(check_mode(&JobSpec { servers: Some(3), ..direct.clone() }), Ok(()));
        let table = [
            ("0 servers in a world of 4", JobSpec { servers: Some(0), ..direct.clone() }),
            ("4 servers in a world of 4", JobSpec { servers: Some(4), ..direct.clone() }),
            ("leave `owners` out", JobSpec { owners: Some(1), ..direct.clone() }),
            ("a ring has no owners", JobSpec { topology: Some(Topology::Ring), ..direct.clone() }),
            ("`local_world`", JobSpec { local_world: Some(2), ..direct }),
        ];
        for (named, spec) in table {
            let problem = check_mode(&spec).unwrap_err();
            assert!(problem.contains(named), "{named}: {problem}");
        }
    }

    #[test]
    fn options_that_do_not_fit_the_mode_are_named() {
        let fixed = JobSpec::new("job", 0, 2);
        let table = [
            ("window", JobSpec { window: Some(64), ..fixed.clone() }),
            ("dynamic_slots", JobSpec { dynamic_slots: Some(64), ..fixed.clone() }),
            ("parameter_hosts", JobSpec { parameter_hosts: Some(1), ..fixed.clone() }),
            (
                "congestion_control",
                JobSpec { mode: Some(Mode::Direct), congestion_control: Some(true), ..fixed.clone() },
            ),
            ("servers is only", JobSpec { servers: Some(1), ..fixed }),
            ("servers is only", JobSpec { servers: Some(1), ..open() }),
            ("slots", JobSpec { slots: Some(64), ..open() }),
            ("833 elements", JobSpec { elements: Some(833), ..open() }),
            ("window 100", JobSpec { window: Some(100), ..open() }),
            ("window 4", JobSpec { window: Some(4), ..open() }),
            ("window 8192", JobSpec { window: Some(8192), ..open() }),
            ("dynamic_slots 0", JobSpec { dynamic_slots: Some(0), ..open() }),
            ("parameter_hosts 0", JobSpec { parameter_hosts: Some(0), ..open() }),
            ("parameter_hosts 5", JobSpec { parameter_hosts: Some(5), ..open() }),
        ];
        for (named, open) in table {
            let problem = check_mode(&open).unwrap_err();
            assert!(problem.contains(named), "{named}: {problem}");
        }
    }
}
