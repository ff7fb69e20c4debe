//! The operations of workers that differ, and the diagnosis: both sides of the first difference.

use std::collections::BTreeMap;

use super::time::Time;
use crate::{
    events::{OperationReport, ReportedOperation, TEXT_LEN, printable},
    failure::JobFailure,
};

#[derive(Debug)]
pub(super) struct Mismatch {
    pub until: Time,
    pub reports: BTreeMap<u16, OperationReport>,
}

impl Mismatch {
    pub fn diagnosis(&self) -> JobFailure {
        if let Some(([low, high], [one, other])) = self.first_difference() {
            let (one, other) = (printable(&one.text, TEXT_LEN), printable(&other.text, TEXT_LEN));
            let message =
                format!("the workers do not do the same: rank {low} has {one} where rank {high} has {other}");
            return JobFailure::mismatch(&[low, high], message);
        }
        let noticed = self.reports.iter().find(|(_, report)| report.noticed_at.is_some());
        let at = noticed.and_then(|(_, report)| report.noticed_at);
        let place = at.map_or(String::new(), |(lane, chunk)| format!(" (lane {lane}, chunk {chunk})"));
        match noticed.and_then(|(rank, report)| Some((*rank, report.noticed.as_ref()?))) {
            Some((rank, operation)) => {
                let text = printable(&operation.text, TEXT_LEN);
                let message = format!(
                    "the workers do not do the same: rank {rank} has {text}, and another worker something \
                    else, which it has not reported{place}"
                );
                JobFailure::mismatch(&[rank], message)
            }
            None => JobFailure::mismatch(&[], format!("the workers do not do the same{place}")),
        }
    }

    /// The lowest number under which two ranks have different operations: the lowest rank that has one there,
    /// and the lowest that has another.
    fn first_difference(&self) -> Option<([u16; 2], [&ReportedOperation; 2])> {
        let all = || self.reports.values().flat_map(|report| &report.operations);
        let base = all().next()?.operation;
        let mut there: BTreeMap<i32, Vec<(u16, &ReportedOperation)>> = BTreeMap::new();
        for (rank, report) in &self.reports {
            for operation in &report.operations {
                // Numbers wrap; those of one mismatch are close together.
                let distance = operation.operation.since(base) as i32;
                there.entry(distance).or_default().push((*rank, operation));
            }
        }
        there.into_values().find_map(|there| {
            let (low, one) = *there.first()?;
            let (high, other) = there.iter().find(|(_, other)| other.signature != one.signature)?;
            Some(([low, *high], [one, *other]))
        })
    }
}

#[cfg(test)]
mod tests {
    use sumac_job::OperationId;

    use super::*;

    /// The operations of a worker, from the number `first` on.
    fn report(first: u32, texts: &[&str]) -> OperationReport {
        let operation = |(number, text): (u32, &&str)| ReportedOperation {
            operation: OperationId(number),
            signature: text.bytes().map(u32::from).sum(),
            text: format!("#{number} {text}"),
        };
        let numbers = (0..).map(|at| first.wrapping_add(at));
        OperationReport {
            operations: numbers.zip(texts).map(operation).collect(),
            ..OperationReport::default()
        }
    }

    fn diagnosis(reports: &[OperationReport]) -> JobFailure {
        let reports = (0..).zip(reports.iter().cloned()).collect();
        Mismatch { until: Time::ZERO, reports }.diagnosis()
    }

    #[test]
    fn the_first_operation_that_differs_is_named_with_both_sides() {
        let failure = diagnosis(&[report(1, &["a", "b", "c", "d"]), report(2, &["b", "d", "c"])]);
        assert_eq!(failure.message, "the workers do not do the same: rank 0 has #3 c where rank 1 has #3 d");
        assert_eq!(failure.ranks, [0, 1]);
    }

    #[test]
    fn of_several_workers_the_lowest_ranks_that_differ_are_named() {
        let (agree, behind) = (report(u32::MAX, &["a", "b"]), report(u32::MAX, &["a"]));
        let failure = diagnosis(&[behind, agree.clone(), agree, report(u32::MAX, &["a", "x", "y"])]);
        assert!(failure.message.contains("rank 1 has #0 b where rank 3 has #0 x"), "{failure}");
        assert_eq!(failure.ranks, [1, 3]);
    }

    #[test]
    fn two_of_three_settle_it_and_one_alone_is_named_with_its_place() {
        let reports = BTreeMap::from([(0, report(5, &["a"])), (2, report(5, &["b"]))]);
        let failure = Mismatch { until: Time::ZERO, reports }.diagnosis();
        assert_eq!(failure.ranks, [0, 2]);
        let own = report(5, &["a"]);
        let noticed = Some(own.operations[0].clone());
        let failure = diagnosis(&[OperationReport { noticed_at: Some((1, 7)), noticed, ..own }]);
        assert!(failure.message.contains("rank 0 has #5 a, and another worker something else"), "{failure}");
        assert!(failure.message.contains("lane 1, chunk 7"), "{failure}");
    }
}
