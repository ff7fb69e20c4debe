"""Segments of an array, each with a priority of its own (MLT sections 4.2.2 and 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Union


MOST_SEGMENTS = 256
"""The most segments of an array: each is an outstanding operation."""

MAX_PRIORITY = 7


class Segment(NamedTuple):
    """A segment of an array. Those of an array follow each other, from its first element to its last."""

    count: int
    """Elements of the segment."""
    priority: int
    """Its priority, 0 to 7."""


Priorities = Union["Iterable[tuple[int, int]]", "Callable[[int], int]"]
"""Pairs of a segment's elements and its priority, or a function of an element that returns its priority."""


def segments_of(count: int, step: int, priorities: Priorities) -> list[Segment]:
    """Returns the segments of an array of ``count`` elements. A function is called with the first element of
    each ``step``; neighbours of one priority are one segment."""
    if callable(priorities):
        found = _by_function(count, step, priorities)
    else:
        found = [Segment(*pair) for pair in priorities]
    if len(found) > MOST_SEGMENTS:
        raise ValueError(f"{len(found)} segments; at most {MOST_SEGMENTS}: give neighbours one priority")
    for number, segment in enumerate(found):
        if segment.count < 1:
            raise ValueError(f"segment {number} has no elements")
        if not 0 <= segment.priority <= MAX_PRIORITY:
            raise ValueError(f"segment {number} has priority {segment.priority}; 0 to {MAX_PRIORITY}")
    total = sum(segment.count for segment in found)
    if total != count or not found:
        raise ValueError(f"segments of {total} elements for an array of {count}")
    return found


def _by_function(count: int, step: int, priority: Callable[[int], int]) -> list[Segment]:
    found: list[Segment] = []
    for first in range(0, count, step):
        segment = Segment(min(step, count - first), priority(first))
        if found and found[-1].priority == segment.priority:
            segment = Segment(found.pop().count + segment.count, segment.priority)
        found.append(segment)
    return found
