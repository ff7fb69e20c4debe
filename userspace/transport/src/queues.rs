//! Queues of slots: doubly linked through one array, so that a slot is appended, taken from the
//! middle or from the front in constant time, and without allocation.

const NIL: u32 = u32::MAX;
const UNQUEUED: u8 = u8::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    before: u32,
    after: u32,
    queue: u8,
}

const LOOSE: Node = Node { before: NIL, after: NIL, queue: UNQUEUED };

#[derive(Clone, Copy, Debug)]
struct Ends {
    front: u32,
    back: u32,
}

const EMPTY: Ends = Ends { front: NIL, back: NIL };

/// `N` queues over a fixed number of slots; a slot is in one queue at most.
#[derive(Debug)]
pub(crate) struct Queues<const N: usize> {
    nodes: Box<[Node]>,
    ends: [Ends; N],
}

impl<const N: usize> Queues<N> {
    /// Empty queues for slots `0..slots`.
    pub fn new(slots: usize) -> Queues<N> {
        Queues { nodes: vec![LOOSE; slots].into_boxed_slice(), ends: [EMPTY; N] }
    }

    /// The slot that has been longest in `queue`.
    pub fn front(&self, queue: usize) -> Option<usize> {
        let front = self.ends[queue].front;
        (front != NIL).then_some(front as usize)
    }

    /// The slot that came last to `queue`.
    pub fn back(&self, queue: usize) -> Option<usize> {
        let back = self.ends[queue].back;
        (back != NIL).then_some(back as usize)
    }

    /// The slot that came after `slot` to its queue.
    pub fn next(&self, slot: usize) -> Option<usize> {
        let after = self.nodes[slot].after;
        (after != NIL).then_some(after as usize)
    }

    /// Puts `slot` at the end of `queue`, out of the queue where it was.
    pub fn append(&mut self, queue: usize, slot: usize) {
        self.remove(slot);
        let back = self.ends[queue].back;
        self.nodes[slot] = Node { before: back, after: NIL, queue: queue as u8 };
        match back {
            NIL => self.ends[queue].front = slot as u32,
            back => self.nodes[back as usize].after = slot as u32,
        }
        self.ends[queue].back = slot as u32;
    }

    /// Takes `slot` out of its queue, if it is in one.
    pub fn remove(&mut self, slot: usize) {
        let Node { before, after, queue } = self.nodes[slot];
        if queue == UNQUEUED {
            return;
        }
        let ends = &mut self.ends[queue as usize];
        match before {
            NIL => ends.front = after,
            before => self.nodes[before as usize].after = after,
        }
        match after {
            NIL => ends.back = before,
            after => self.nodes[after as usize].before = before,
        }
        self.nodes[slot] = LOOSE;
    }

    /// Empties all queues.
    pub fn clear(&mut self) {
        self.nodes.fill(LOOSE);
        self.ends = [EMPTY; N];
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn pop(queues: &mut Queues<3>, queue: usize) -> Option<usize> {
        let slot = queues.front(queue)?;
        queues.remove(slot);
        Some(slot)
    }

    proptest! {
        #[test]
        fn behave_like_deques(steps in proptest::collection::vec((0..3u8, 0..3usize, 0..6usize), 0..200)) {
            let mut queues = Queues::<3>::new(6);
            let mut oracle = vec![VecDeque::new(); 3];
            for (step, queue, slot) in steps {
                match step {
                    0 => {
                        oracle.iter_mut().for_each(|q| q.retain(|s| *s != slot));
                        oracle[queue].push_back(slot);
                        queues.append(queue, slot);
                    }
                    1 => {
                        oracle.iter_mut().for_each(|q| q.retain(|s| *s != slot));
                        queues.remove(slot);
                    }
                    _ => prop_assert_eq!(pop(&mut queues, queue), oracle[queue].pop_front()),
                }
                for (queue, oracle) in oracle.iter().enumerate() {
                    prop_assert_eq!(queues.front(queue), oracle.front().copied());
                    prop_assert_eq!(queues.back(queue), oracle.back().copied());
                }
            }
            for (queue, oracle) in oracle.iter_mut().enumerate() {
                while let Some(slot) = pop(&mut queues, queue) {
                    prop_assert_eq!(Some(slot), oracle.pop_front());
                }
                prop_assert!(oracle.is_empty());
            }
        }
    }
}
