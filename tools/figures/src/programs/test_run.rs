//! `BPF_PROG_TEST_RUN`: a program on one frame, without an interface, and its time.

use aya::{
    TestRun as _, TestRunOptions,
    programs::{ProgramError, Xdp},
};

pub const XDP_PASS: u32 = 2;

/// Room that a program may add to a frame.
const HEADROOM: usize = 64;

#[derive(Clone, Copy, Debug)]
pub struct TestRun {
    pub verdict: u32,
    /// The kernel's mean over all repetitions, which includes the cost of an empty program.
    pub ns_per_frame: u64,
}

impl TestRun {
    /// Runs a loaded program on a frame `repeat` times, on one CPU. The kernel adds a few runs to warm up.
    pub fn of(program: &Xdp, frame: &[u8], repeat: u32) -> Result<TestRun, ProgramError> {
        let mut out = vec![0; frame.len() + HEADROOM];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            repeat,
            ..TestRunOptions::new()
        };
        let result = program.test_run(options)?;
        let ns_per_frame = u64::try_from(result.duration.as_nanos()).unwrap_or(u64::MAX);
        Ok(TestRun { verdict: result.return_value, ns_per_frame })
    }
}
