//! Errors of the layers below, as errors of the local API.

use sumac_api::{Code, Failure, OperationOrder};
use sumac_control::{DenialKind, FailureKind, JobFailure, JoinError, RefusalKind};
use sumac_transport::{JobError, OpError};

use crate::fragment_end::FragmentEnd;

/// The longest message of an error that ends an operation, in bytes; many of them must fit a socket's buffer.
pub const MESSAGE_LEN: usize = 900;

pub fn bounded(message: String) -> String {
    shortened(message, MESSAGE_LEN)
}

/// Shortens a text to `most` bytes, at a character boundary.
pub(crate) fn shortened(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = (0..=most.saturating_sub(3)).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text += "...";
    }
    text
}

pub fn join_error(error: &JoinError, order: OperationOrder) -> Failure {
    let message = error.to_string();
    match error {
        JoinError::Unreachable { .. } => Failure::new(Code::Unreachable, message),
        JoinError::NotTrusted { .. } => Failure::new(Code::Refused, message)
            .hint("give the join token that `sumac-agg token` prints at this aggregator"),
        JoinError::Denied { kind, .. } => {
            let code = if *kind == DenialKind::Version { Code::Version } else { Code::Refused };
            Failure::new(code, message).hint(denial_hint(*kind))
        }
        JoinError::Refused(refused) => {
            let failure = |code| Failure::new(code, message).ranks(refused.ranks.iter().copied());
            match refused.kind {
                RefusalKind::Missing => failure(Code::RanksMissing)
                    .hint("start the missing workers, or open with a longer timeout_s"),
                RefusalKind::RankTaken | RefusalKind::RankSilent => failure(Code::RankTaken),
                _ => failure(Code::Refused),
            }
        }
        JoinError::Failed(failure) => job_failure(failure, order),
        JoinError::Handshake { .. } | JoinError::Protocol { .. } => Failure::new(Code::Unreachable, message)
            .hint("check the aggregator's address, and that it has this daemon's release"),
    }
}

fn denial_hint(kind: DenialKind) -> &'static str {
    match kind {
        DenialKind::Secret => "give all workers and the aggregator the same secret",
        DenialKind::Version => "install the same release on daemons and aggregators",
        DenialKind::Request => "check the aggregator's address, and that it has this daemon's release",
    }
}

/// Returns the error of a job that the control plane ended.
pub fn job_failure(failure: &JobFailure, order: OperationOrder) -> Failure {
    let (message, ranks) = (bounded(failure.message.clone()), failure.ranks.iter().copied());
    match failure.kind {
        FailureKind::Mismatch => mismatch(message, order).ranks(ranks),
        _ => Failure::new(Code::JobFailed, message).hint("open the job again on all workers").ranks(ranks),
    }
}

/// Returns the error of a job whose workers submitted different operations.
pub fn mismatch(message: impl Into<Box<str>>, order: OperationOrder) -> Failure {
    Failure::new(Code::Mismatch, message).hint(match order {
        OperationOrder::Submission => {
            "submit the same operations in the same order on all workers, or open the job in order of names"
        }
        OperationOrder::Name => {
            "give the operations of one name the same kind, type, count and priority on all workers"
        }
    })
}

/// Returns the engine's error for a job that the control plane ended.
pub fn engine_error(failure: &JobFailure) -> JobError {
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

/// Returns the error of a job that the engine ended.
pub fn job_error(error: &JobError) -> Failure {
    let code = match error {
        JobError::NoReply { .. }
        | JobError::HostSilent { .. }
        | JobError::MtuTooSmall { .. }
        | JobError::Disagrees { .. }
        | JobError::FrameTooSmall { .. } => Code::Handshake,
        JobError::Cancelled { .. } => Code::Cancelled,
        JobError::Worker { .. }
        | JobError::Mismatch { .. }
        | JobError::PathLost { .. }
        | JobError::UnknownJob { .. }
        | JobError::AggregatorLost { .. }
        | JobError::Ended { .. } => Code::JobFailed,
    };
    let failure = Failure::new(code, bounded(error.to_string()));
    match error {
        JobError::Worker { rank, .. } => failure.ranks([*rank]),
        _ => failure,
    }
}

/// Returns the reason that other workers receive when this host ends a job.
pub(crate) fn spoken(error: &JobError) -> String {
    match error {
        JobError::Ended { reason } => reason.clone(),
        other => other.to_string(),
    }
}

/// Returns the end of a fragment that failed; `tensor` is the name of the operation's tensor.
pub(crate) fn fragment_end(error: &OpError, tensor: &str) -> FragmentEnd {
    let message = bounded(error.to_string());
    let saturated = |index: u64, end| Failure::new(Code::Saturated, &*message).elements(tensor, index, end);
    let range = |first: usize, last: usize| saturated(first as u64, Some((last as u64).saturating_add(1)));
    match error {
        OpError::Saturated { index, .. }
        | OpError::IntegerTooLarge { index, .. }
        | OpError::NotFinite { index, .. } => FragmentEnd::OwnFault(saturated(*index as u64, None)),
        OpError::Peer { first, last } => FragmentEnd::PeerFault(range(*first, *last)),
        OpError::SumTooLarge { first, last } => FragmentEnd::SumFault(range(*first, *last)),
        OpError::Disagrees { rank, .. } => {
            FragmentEnd::OwnFault(Failure::new(Code::Mismatch, message).ranks([*rank]))
        }
        OpError::ShortBuffer { .. } => FragmentEnd::OwnFault(Failure::new(Code::OutOfRange, message)),
        OpError::Job(_) => FragmentEnd::JobEnded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_keeps_the_rank_at_fault() {
        let message = "rank 2 (10.77.2.2) stopped answering".into();
        let failure = JobFailure { kind: FailureKind::Silent, message, ranks: vec![2] };
        let error = engine_error(&failure);
        let told = job_error(&error);
        assert_eq!(&*told.message, "rank 2 (10.77.2.2) stopped answering");
        assert_eq!(told.code, Code::JobFailed);
        assert_eq!(told.ranks, [2]);
        assert_eq!(fragment_end(&OpError::Job(error), "w"), FragmentEnd::JobEnded);
    }

    #[test]
    fn only_a_wrong_secret_has_the_hint_about_secrets() {
        let hint = |kind| {
            let endpoint = "10.77.2.1:48600".parse().unwrap();
            let denied = JoinError::Denied { endpoint, kind, why: "turned away".into() };
            let told = join_error(&denied, OperationOrder::Submission);
            assert_eq!(told.code, Code::Refused);
            told.hint
        };
        assert!(hint(DenialKind::Secret).contains("secret"));
        assert!(!hint(DenialKind::Request).contains("secret"));
    }

    #[test]
    fn a_lost_aggregator_names_no_rank() {
        let told = job_error(&engine_error(&JobFailure::state_lost(1, 2)));
        assert_eq!(told.code, Code::JobFailed);
        assert!(told.ranks.is_empty());
        assert!(told.message.contains("lost its state"));
    }

    #[test]
    fn an_element_at_fault_is_named() {
        let error = OpError::NotFinite { index: 7, value: f32::NAN };
        let FragmentEnd::OwnFault(told) = fragment_end(&error, "layer 1") else { panic!("{error}") };
        assert_eq!(
            (told.code, told.tensor.as_deref(), told.index),
            (Code::Saturated, Some("layer 1"), Some(7))
        );
        let error = OpError::Peer { first: 256, last: 511 };
        let FragmentEnd::PeerFault(told) = fragment_end(&error, "layer 1") else { panic!("{error}") };
        assert_eq!((told.index, told.index_end), (Some(256), Some(512)));
        // A sum names no rank.
        let FragmentEnd::SumFault(told) = fragment_end(&OpError::SumTooLarge { first: 256, last: 511 }, "w")
        else {
            panic!("not the fault of a sum")
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
    fn long_messages_are_shortened_at_a_character_boundary() {
        let message = bounded("é".repeat(1000));
        assert!(message.len() <= MESSAGE_LEN && message.ends_with("é..."), "{}", message.len());
        assert_eq!(bounded("short".into()), "short");
    }
}
