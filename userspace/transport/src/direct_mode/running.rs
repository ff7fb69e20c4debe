//! An operation in progress: which of its steps have ended, and what was lost.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::schedule::Step;
use crate::{bounded_loss::joined, operation::Loss};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Waiting,
    Begun,
    Ended,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Running {
    /// The exchange's number.
    pub number: u32,
    steps: Vec<Step>,
    states: Vec<State>,
    /// Whether some worker's value is not finite, where that ends the operation.
    pub is_faulty: bool,
    /// By rank, the values that were expected, and those of them that did not come.
    expected: Vec<u64>,
    lost: Vec<u64>,
    /// The ranges of values of which something did not come.
    missing: Vec<Range<usize>>,
}

impl Running {
    pub fn new(number: u32, steps: Vec<Step>, world: u16) -> Running {
        let states = vec![State::Waiting; steps.len()];
        let (expected, lost) = (vec![0; world.into()], vec![0; world.into()]);
        Running { number, steps, states, is_faulty: false, expected, lost, missing: Vec::new() }
    }

    /// Records the end of a transfer from `rank`: the values that it had, and the ranges of those that are
    /// missing.
    pub fn received(&mut self, rank: usize, values: usize, missing: Vec<Range<usize>>) {
        if let (Some(expected), Some(lost)) = (self.expected.get_mut(rank), self.lost.get_mut(rank)) {
            *expected += values as u64;
            *lost += missing.iter().map(|range| range.len() as u64).sum::<u64>();
        }
        self.missing.extend(missing);
    }

    /// The ranges of `takes` that have their final values. Values that are only moved (`is_moved`) stay as
    /// they were where they did not come.
    pub fn written(&self, takes: &Range<usize>, is_moved: bool) -> Vec<Range<usize>> {
        let mut written = Vec::new();
        let mut from = takes.start;
        for missing in joined(self.missing.clone()).into_iter().filter(|_| is_moved) {
            let end = missing.start.clamp(from, takes.end);
            written.push(from..end);
            from = missing.end.clamp(end, takes.end);
        }
        written.push(from..takes.end);
        written.retain(|range| !range.is_empty());
        written
    }

    /// The loss of an operation with this bound; `base`: the index of its first value in the tensor.
    pub fn loss(self, bound: f32, base: usize) -> Option<Loss> {
        let budget = |values: &u64| (*values as f64 * f64::from(bound)) as u64;
        let of_tensor = |range: Range<usize>| base + range.start..base + range.end;
        (bound > 0.0).then(|| Loss {
            budget: self.expected.iter().map(budget).max().unwrap_or(0),
            by_worker: self.lost,
            own: Vec::new(),
            missing: joined(self.missing).into_iter().map(of_tensor).collect(),
        })
    }

    pub fn step(&self, index: usize) -> Option<&Step> {
        self.steps.get(index)
    }

    /// Begins the first step that waits for no other; returns its index.
    pub fn begin_next(&mut self) -> Option<usize> {
        let has_ended = |index: &usize| self.states.get(*index) == Some(&State::Ended);
        let is_ready = |index: &usize| {
            self.states[*index] == State::Waiting && self.steps[*index].after.iter().all(has_ended)
        };
        let index = (0..self.steps.len()).find(is_ready)?;
        self.states[index] = State::Begun;
        Some(index)
    }

    pub fn end(&mut self, index: usize) {
        if let Some(state) = self.states.get_mut(index) {
            *state = State::Ended;
        }
    }

    pub fn is_done(&self) -> bool {
        self.states.iter().all(|state| *state == State::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_come_is_not_written_where_values_are_moved() {
        let mut running = Running::new(0, Vec::new(), 2);
        let all = 10..90;
        assert_eq!(running.written(&all, true), vec![all.clone()]);
        running.received(1, 80, vec![50..60, 0..12, 85..100]);
        assert_eq!(running.written(&all, true), [12..50, 60..85]);
        assert_eq!(running.written(&all, false), vec![all], "sums of some are scaled");
        assert_eq!(running.written(&(52..58), true), []);
    }
}
