//! Errors of the layers below, in the words and codes of the local API.

use sumac_api::{Code, Failure, OperationOrder};
use sumac_control::{DenialKind, FailureKind, JobFailure, JoinError, RefusalKind};
use sumac_transport::{JobError, OpError};

use crate::datapath::Rejection;
use crate::stream::PartEnd;

/// The longest message of an error that ends an operation, in bytes: many of them must fit a socket's buffer.
pub(crate) const MESSAGE_LEN: usize = 900;

/// Cuts a message off where it gets too long; what comes from elsewhere may be.
pub(crate) fn bounded(message: String) -> String {
    shortened(message, MESSAGE_LEN)
}

/// Cuts a text off, between letters, where it has more than `most` bytes.
pub(crate) fn shortened(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = (0..=most.saturating_sub(3)).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text += "...";
    }
    text
}

/// Why a job could not be joined.
pub(crate) fn join_error(error: &JoinError, order: OperationOrder) -> Failure {
    let message = error.to_string();
    match error {
        JoinError::Unreachable { .. } => Failure::new(Code::Unreachable, message),
        JoinError::NotTrusted { .. } => Failure::new(Code::Refused, message)
            .hint("give the join token that `sumac-agg token` prints at this aggregator"),
        JoinError::Denied { kind, .. } => {
            let code = if *kind == DenialKind::Version { Code::Version } else { Code::Refused };
            Failure::new(code, message).hint(denial_hint(*kind))
        }
        JoinError::Missing { ranks, .. } => Failure::new(Code::RanksMissing, message)
            .hint("start the missing workers, or open with a longer timeout_s")
            .ranks(ranks.iter().copied()),
        JoinError::Refused(refused) => {
            let code = match refused.kind {
                RefusalKind::RankTaken => Code::RankTaken,
                _ => Code::Refused,
            };
            Failure::new(code, message).ranks(refused.ranks.iter().copied())
        }
        JoinError::Failed(failure) => job_failure(failure, order),
        JoinError::Protocol { .. } => Failure::new(Code::Unreachable, message)
            .hint("check the aggregator's address, and that it has this daemon's release"),
    }
}

fn denial_hint(kind: DenialKind) -> &'static str {
    match kind {
        DenialKind::Secret => "give all workers and the aggregator the same secret",
        DenialKind::Version => "install the same release on daemons and aggregators",
        DenialKind::Over => "open the job anew, on all workers",
        DenialKind::Request => "check the aggregator's address, and that it has this daemon's release",
    }
}

/// The reason that a running job ended, as the control plane states it. `order`: the job's.
pub(crate) fn job_failure(failure: &JobFailure, order: OperationOrder) -> Failure {
    let (message, ranks) = (bounded(failure.message.clone()), failure.ranks.iter().copied());
    match failure.kind {
        FailureKind::Mismatch => mismatch(message, order).ranks(ranks),
        _ => Failure::new(Code::JobFailed, message).hint("open the job again on all workers").ranks(ranks),
    }
}

/// The end of a job whose workers do not do the same. `order`: the job's.
pub(crate) fn mismatch(message: impl Into<Box<str>>, order: OperationOrder) -> Failure {
    Failure::new(Code::Mismatch, message).hint(match order {
        OperationOrder::Submission => {
            "submit the same operations in the same order on all workers, or open the job in order of names"
        }
        OperationOrder::Name => {
            "give the operations of one name the same kind, type, count and priority on all workers"
        }
    })
}

/// Why a running job ended, for the engine, whose operations end with it.
pub(crate) fn engine_error(failure: &JobFailure) -> JobError {
    match (failure.culprit(), failure.kind) {
        (Some(rank), _) => {
            let named = format!("rank {rank} ");
            let reason = failure.message.strip_prefix(&named).unwrap_or(&failure.message);
            JobError::Worker { rank, reason: reason.to_owned() }
        }
        (None, FailureKind::StateLost | FailureKind::PlaneDown | FailureKind::AggregatorSilent) => {
            JobError::AggregatorLost { reason: failure.message.clone() }
        }
        (None, _) => JobError::Ended { reason: failure.message.clone() },
    }
}

/// Why a job ended, as the engine says it.
pub(crate) fn job_error(error: &JobError) -> Failure {
    let code = match error {
        JobError::NoReply { .. }
        | JobError::HostSilent { .. }
        | JobError::MtuTooSmall { .. }
        | JobError::Disagrees { .. }
        | JobError::FrameTooSmall { .. } => Code::Handshake,
        JobError::Cancelled { .. } => Code::Cancelled,
        JobError::Worker { .. }
        | JobError::Mismatch { .. }
        | JobError::AggregatorLost { .. }
        | JobError::Ended { .. } => Code::JobFailed,
    };
    let failure = Failure::new(code, bounded(error.to_string()));
    match error {
        JobError::Worker { rank, .. } => failure.ranks([*rank]),
        _ => failure,
    }
}

/// The reason that other workers read when this host ends a job.
pub(crate) fn spoken(error: &JobError) -> String {
    match error {
        JobError::Ended { reason } => reason.clone(),
        other => other.to_string(),
    }
}

/// Why the data path did not take a part of an operation.
pub(crate) fn rejection(rejection: &Rejection) -> PartEnd {
    match rejection {
        Rejection::Submit(error) => PartEnd::Ours(Failure::new(Code::Unsupported, error.to_string())),
        // It was submitted while the job was ending.
        Rejection::UnknownJob { .. } => PartEnd::Job,
    }
}

/// Why a part of an operation failed; `tensor` is what the operation's is called.
pub(crate) fn part_end(error: &OpError, tensor: &str) -> PartEnd {
    let message = bounded(error.to_string());
    let saturated = |index: u64, end| Failure::new(Code::Saturated, &*message).elements(tensor, index, end);
    match error {
        OpError::Saturated { index, .. } | OpError::NotFinite { index, .. } => {
            PartEnd::Ours(saturated(*index as u64, None))
        }
        OpError::Peer { first, last, .. } => {
            PartEnd::Theirs(saturated(*first as u64, Some((*last as u64).saturating_add(1))))
        }
        OpError::SumTooLarge { first, last } => {
            PartEnd::Everybodys(saturated(*first as u64, Some((*last as u64).saturating_add(1))))
        }
        OpError::ShortBuffer { .. } => PartEnd::Ours(Failure::new(Code::OutOfRange, message)),
        OpError::Job(_) => PartEnd::Job,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_at_fault_survives_the_way_through_the_engine() {
        let message = "rank 2 (10.77.2.2) stopped answering".into();
        let failure = JobFailure { kind: FailureKind::Silent, message, ranks: vec![2] };
        let error = engine_error(&failure);
        let told = job_error(&error);
        assert_eq!(&*told.message, "rank 2 (10.77.2.2) stopped answering");
        assert_eq!(told.code, Code::JobFailed);
        assert_eq!(told.ranks, [2]);
        assert_eq!(part_end(&OpError::Job(error), "w"), PartEnd::Job);
    }

    #[test]
    fn only_a_wrong_secret_is_blamed_on_the_secret() {
        let hint = |kind| {
            let endpoint = "10.77.2.1:48600".parse().unwrap();
            let denied = JoinError::Denied { endpoint, kind, why: "turned away".into() };
            let told = join_error(&denied, OperationOrder::Submission);
            assert_eq!(told.code, Code::Refused);
            told.hint
        };
        assert!(hint(DenialKind::Secret).contains("secret"));
        assert!(!hint(DenialKind::Over).contains("secret"));
        assert!(!hint(DenialKind::Request).contains("secret"));
    }

    #[test]
    fn a_lost_aggregator_is_nobodys_rank() {
        let told = job_error(&engine_error(&JobFailure::state_lost(1, 2)));
        assert_eq!(told.code, Code::JobFailed);
        assert!(told.ranks.is_empty());
        assert!(told.message.contains("lost its state"));
    }

    #[test]
    fn an_element_at_fault_is_named() {
        let error = OpError::NotFinite { index: 7, value: f32::NAN };
        let PartEnd::Ours(told) = part_end(&error, "layer 1") else { panic!("{error}") };
        assert_eq!(
            (told.code, told.tensor.as_deref(), told.index),
            (Code::Saturated, Some("layer 1"), Some(7))
        );
        let error = OpError::Peer { first: 256, last: 511 };
        let PartEnd::Theirs(told) = part_end(&error, "layer 1") else { panic!("{error}") };
        assert_eq!((told.index, told.index_end), (Some(256), Some(512)));
        // Of a sum no worker is to blame.
        let PartEnd::Everybodys(told) = part_end(&OpError::SumTooLarge { first: 256, last: 511 }, "w") else {
            panic!("a sum is nobody's")
        };
        assert_eq!((told.index_end, told.ranks.len()), (Some(512), 0));
    }

    #[test]
    fn a_mismatch_names_its_ranks_and_the_remedy_of_the_job_s_order() {
        let told = |order| job_failure(&JobFailure::mismatch(&[0, 1], "they differ".into()), order);
        let differ = told(OperationOrder::Submission);
        assert_eq!((differ.code, differ.ranks), (Code::Mismatch, vec![0, 1]));
        assert!(differ.hint.contains("in order of names"));
        assert!(!told(OperationOrder::Name).hint.contains("in order of names"), "it is");
    }

    #[test]
    fn what_others_say_is_cut_off_between_letters() {
        let message = bounded("é".repeat(1000));
        assert!(message.len() <= MESSAGE_LEN && message.ends_with("é..."), "{}", message.len());
        assert_eq!(bounded("short".into()), "short");
    }
}
