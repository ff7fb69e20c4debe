//! Operations on the segments of a tensor, each with a priority of its own (MLT sections 4.2.2 and 5.1).

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sumac_api::{Code, CollectiveKind, Command, Failure, Loss};

use crate::connection::{Connection, Done};
use crate::place::Place;
use crate::tensor::{Element, Tensor};
use crate::{ClientError, Failed, Job, OpOptions, RecvOptions, SendOptions};

/// The highest priority of an operation.
const MAX_PRIORITY: u8 = 7;

/// A segment of a tensor. Those of a tensor follow each other, from its first element to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Elements of the segment.
    pub count: usize,
    /// The priority, as in [`OpOptions::priority`].
    pub priority: u8,
}

impl Segment {
    /// The most segments of a tensor: each is an outstanding operation.
    pub const MOST: usize = 256;

    /// Returns the segments of a tensor of `count` elements by a function, which is called with the first
    /// element of each `step`: those of a packet (`elements` of [`Job::opened`]), say. Neighbours of one
    /// priority are one segment.
    #[must_use]
    pub fn by(count: usize, step: usize, priority: impl Fn(usize) -> u8) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        for first in (0..count).step_by(step.max(1)) {
            let (elements, priority) = (step.max(1).min(count - first), priority(first));
            match segments.last_mut().filter(|last| last.priority == priority) {
                Some(last) => last.count += elements,
                None => segments.push(Segment { count: elements, priority }),
            }
        }
        segments
    }
}

/// The operation on a segment.
#[derive(Debug)]
struct SegmentOperation {
    elements: Range<usize>,
    op: u64,
    ended: Option<Result<Done, Failure>>,
}

/// The operations on a tensor's segments; owns the tensor until the last of them has ended.
#[derive(Debug)]
#[must_use = "wait() returns the tensor"]
pub struct PendingSegments<T> {
    connection: Arc<Connection>,
    tensor: Option<Tensor<T>>,
    /// In the order of the tensor's elements.
    parts: Vec<SegmentOperation>,
}

/// The operations on a tensor's segments; the error returns the tensor if none was accepted.
pub type SubmittedSegments<T> = Result<PendingSegments<T>, Box<Failed<T>>>;

impl Job {
    /// As [`Job::allreduce_with`], with a priority for each segment of the tensor. Each is an operation of
    /// its own, with its own end and loss bound; those of higher priorities are submitted first. All workers
    /// give the same segments. The options' priority and `polled` are not used; a name is continued by the
    /// segment's elements.
    ///
    /// # Errors
    /// When an operation was not accepted; the error returns the tensor if none was.
    pub fn allreduce_segments<T: Element>(
        &self,
        tensor: Tensor<T>,
        segments: &[Segment],
        options: OpOptions<'_>,
    ) -> SubmittedSegments<T> {
        self.begin_segments(tensor, segments, |place, elements, priority| {
            let name = options.name.map(|name| format!("{name} {}..{}", elements.start, elements.end));
            let options = OpOptions { name: name.as_deref(), priority, polled: false, ..options };
            self.collective(CollectiveKind::Allreduce, None, place, options)
        })
    }

    /// As [`Job::post_send`], with a priority for each segment of the tensor. Each is a transfer of its own,
    /// for [`Job::post_recv_segments`] with the same segments. The options' priority is not used.
    ///
    /// # Errors
    /// As [`Job::allreduce_segments`].
    pub fn post_send_segments<T: Element>(
        &self,
        tensor: Tensor<T>,
        destination: u16,
        segments: &[Segment],
        options: SendOptions,
    ) -> SubmittedSegments<T> {
        self.begin_segments(tensor, segments, |place, _, priority| {
            self.send_command(place, destination, SendOptions { priority, ..options })
        })
    }

    /// As [`Job::post_recv`], of a tensor that is sent by [`Job::post_send_segments`] with the same segments.
    /// Each has its own loss bound.
    ///
    /// # Errors
    /// As [`Job::allreduce_segments`].
    pub fn post_recv_segments<T: Element>(
        &self,
        tensor: Tensor<T>,
        source: u16,
        segments: &[Segment],
        options: RecvOptions,
    ) -> SubmittedSegments<T> {
        self.begin_segments(tensor, segments, |place, _, _| self.recv_command(place, source, options))
    }

    /// Submits the command of each segment, by descending priority: all workers have the same order.
    fn begin_segments<T: Element>(
        &self,
        tensor: Tensor<T>,
        segments: &[Segment],
        command: impl Fn(Place, &Range<usize>, u8) -> Command,
    ) -> SubmittedSegments<T> {
        let ranges = match ranges(tensor.count, segments) {
            Ok(ranges) => ranges,
            Err(failure) => return Err(Failed::new(failure, Some(tensor))),
        };
        let mut order: Vec<_> = ranges.into_iter().zip(segments).enumerate().collect();
        order.sort_by_key(|(_, (_, segment))| std::cmp::Reverse(segment.priority));
        let (whole, size) = (tensor.place(), size_of::<T>() as u64);
        let mut pending =
            PendingSegments { connection: self.connection.clone(), tensor: Some(tensor), parts: Vec::new() };
        let mut parts = Vec::new();
        for (index, (elements, segment)) in order {
            let skip = elements.start as u64 * size;
            let place = Place {
                offset: whole.offset + skip,
                count: elements.len() as u64,
                output: whole.output.map(|(region, offset)| (region, offset + skip)),
                word: None,
                ..whole
            };
            match self.request(command(place, &elements, segment.priority)) {
                Ok((_, op)) => parts.push((index, SegmentOperation { elements, op, ended: None })),
                Err(error) => {
                    let tensor = pending.tensor.take().filter(|_| parts.is_empty());
                    parts.iter().for_each(|(_, part)| self.connection.abandon(part.op));
                    return Err(Failed::new(error, tensor));
                }
            }
        }
        parts.sort_by_key(|(index, _)| *index);
        pending.parts = parts.into_iter().map(|(_, part)| part).collect();
        Ok(pending)
    }
}

impl<T: Element> PendingSegments<T> {
    /// Waits for the results of all segments.
    ///
    /// # Errors
    /// The first segment's error, once all have ended, with the tensor.
    pub fn wait(mut self) -> Result<Tensor<T>, Box<Failed<T>>> {
        self.finish(None)?;
        self.tensor.take().ok_or_else(|| {
            Failed::new(ClientError::Protocol("the operations' tensor was returned before".into()), None)
        })
    }

    /// Waits for at most `timeout`; returns whether all segments have ended, so that
    /// [`PendingSegments::wait`] returns at once.
    ///
    /// # Errors
    /// As [`PendingSegments::wait`]; a timeout is not an error.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool, Box<Failed<T>>> {
        // A timeout beyond the clock's range is none.
        self.finish(Some(Instant::now().checked_add(timeout)).flatten())
    }

    /// Waits for the result of one segment for at most `timeout`; returns its elements, `None` before its
    /// end. Others may still be under way.
    ///
    /// # Errors
    /// The segment's error.
    pub fn wait_segment(&mut self, index: usize, timeout: Duration) -> Result<Option<&[T]>, ClientError> {
        if !self.end(index, Instant::now().checked_add(timeout))? {
            return Ok(None);
        }
        match self.parts.get(index).map(|part| (&part.elements, &part.ended)) {
            Some((_, Some(Err(failure)))) => Err(failure.clone().into()),
            Some((elements, _)) => Ok(self.tensor.as_ref().map(|tensor| tensor.result_of(elements))),
            None => Ok(None),
        }
    }

    fn done(&self, index: usize) -> Option<&Done> {
        self.parts.get(index)?.ended.as_ref()?.as_ref().ok()
    }

    /// The elements of a segment that were not written, as [`Pending::missed`](crate::Pending::missed); they
    /// count from the segment's first one.
    #[must_use]
    pub fn missed(&self, index: usize) -> &[(u64, u64)] {
        self.done(index).map_or(&[], |done| &done.missed)
    }

    /// The elements of a segment that its sum has left to the clients, as
    /// [`Pending::left`](crate::Pending::left); they count from the segment's first one.
    #[must_use]
    pub fn left(&self, index: usize) -> Vec<(u64, u64)> {
        let Some((part, done)) = self.parts.get(index).zip(self.done(index)) else { return Vec::new() };
        done.left_ranges(part.elements.len() as u64)
    }

    /// The contributions that are missing in the result of a segment, as [`Pending::loss`](crate::Pending):
    /// its elements count from the segment's first one.
    #[must_use]
    pub fn loss(&self, index: usize) -> Option<&Loss> {
        self.done(index)?.loss.as_ref()
    }

    /// Waits for the end of a segment; returns whether it has ended.
    fn end(&mut self, index: usize, deadline: Option<Instant>) -> Result<bool, ClientError> {
        let Some(part) = self.parts.get_mut(index) else { return Ok(true) };
        if part.ended.is_none() {
            part.ended = self.connection.finished(part.op, deadline)?;
        }
        Ok(part.ended.is_some())
    }

    fn finish(&mut self, deadline: Option<Instant>) -> Result<bool, Box<Failed<T>>> {
        for index in 0..self.parts.len() {
            // After an error the daemon may still run and write the memory, so the tensor is not returned.
            if !self.end(index, deadline).map_err(|error| Failed::new(error, None))? {
                return Ok(false);
            }
        }
        match self.parts.iter().find_map(|part| part.ended.as_ref()?.as_ref().err()) {
            Some(failure) => Err(Failed::new(failure.clone(), self.tensor.take())),
            None => Ok(true),
        }
    }
}

impl<T> Drop for PendingSegments<T> {
    fn drop(&mut self) {
        let unended = self.parts.iter().filter(|part| part.ended.is_none());
        unended.for_each(|part| self.connection.abandon(part.op));
    }
}

/// Returns the elements of each segment of a tensor.
fn ranges(count: usize, segments: &[Segment]) -> Result<Vec<Range<usize>>, Failure> {
    let bad = |problem: String| Err(Failure::new(Code::BadField, problem));
    let most = Segment::MOST;
    if segments.len() > most {
        return bad(format!("{} segments; at most {most}: give neighbours one priority", segments.len()));
    }
    let mut ranges = Vec::with_capacity(segments.len());
    let mut end = 0usize;
    for segment in segments {
        if segment.priority > MAX_PRIORITY {
            return bad(format!("segment {} has priority {}; 0 to 7", ranges.len(), segment.priority));
        }
        if segment.count == 0 {
            return bad(format!("segment {} has no elements", ranges.len()));
        }
        let next = end.saturating_add(segment.count);
        ranges.push(end..next);
        end = next;
    }
    if end != count || segments.is_empty() {
        return bad(format!("segments of {end} elements for a tensor of {count}"));
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_the_element_makes_segments() {
        let segment = |count, priority| Segment { count, priority };
        assert_eq!(
            Segment::by(1000, 100, |first| if first < 250 { 5 } else { 0 }),
            [segment(300, 5), segment(700, 0)]
        );
        assert_eq!(Segment::by(5, 0, |first| first as u8 / 3), [segment(3, 0), segment(2, 1)]);
        assert_eq!(Segment::by(7, 3, |_| 2), [segment(7, 2)]);
        assert_eq!(Segment::by(0, 3, |_| 2), []);
    }

    #[test]
    fn segments_cover_the_tensor() {
        let of = |counts: &[usize]| {
            let segments: Vec<_> =
                counts.iter().map(|count| Segment { count: *count, priority: 0 }).collect();
            ranges(10, &segments).map_err(|failure| failure.message.to_string())
        };
        assert_eq!(of(&[4, 6]), Ok(vec![0..4, 4..10]));
        assert_eq!(of(&[3, 6, 1]), Ok(vec![0..3, 3..9, 9..10]));
        for (counts, problem) in [
            (&[3, 6][..], "segments of 9 elements for a tensor of 10"),
            (&[3, 8], "segments of 11 elements for a tensor of 10"),
            (&[usize::MAX, 11], "for a tensor of 10"),
            (&[], "segments of 0 elements for a tensor of 10"),
            (&[3, 0, 7], "segment 1 has no elements"),
            (&[1; 257], "257 segments; at most 256"),
        ] {
            let message = of(counts).unwrap_err();
            assert!(message.contains(problem), "{message}");
        }
        let urgent = [Segment { count: 10, priority: 8 }];
        assert!(ranges(10, &urgent).unwrap_err().message.contains("segment 0 has priority 8; 0 to 7"));
    }
}
