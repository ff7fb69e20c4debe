//! Queues of indices, doubly linked through one array: an index is appended, or removed from anywhere, in
//! constant time and without allocation.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

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

/// `N` queues over a fixed number of indices; each is in one queue at most.
#[derive(Debug)]
pub(crate) struct Queues<const N: usize> {
    nodes: Box<[Node]>,
    ends: [Ends; N],
}

impl<const N: usize> Queues<N> {
    pub fn new(len: usize) -> Queues<N> {
        Queues { nodes: vec![LOOSE; len].into_boxed_slice(), ends: [EMPTY; N] }
    }

    pub fn front(&self, queue: usize) -> Option<usize> {
        let front = self.ends[queue].front;
        (front != NIL).then_some(front as usize)
    }

    pub fn back(&self, queue: usize) -> Option<usize> {
        let back = self.ends[queue].back;
        (back != NIL).then_some(back as usize)
    }

    pub fn next(&self, index: usize) -> Option<usize> {
        let after = self.nodes[index].after;
        (after != NIL).then_some(after as usize)
    }

    pub fn append(&mut self, queue: usize, index: usize) {
        self.remove(index);
        let back = self.ends[queue].back;
        self.nodes[index] = Node { before: back, after: NIL, queue: queue as u8 };
        match back {
            NIL => self.ends[queue].front = index as u32,
            back => self.nodes[back as usize].after = index as u32,
        }
        self.ends[queue].back = index as u32;
    }

    pub fn remove(&mut self, index: usize) {
        let Node { before, after, queue } = self.nodes[index];
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
        self.nodes[index] = LOOSE;
    }

    pub fn clear(&mut self) {
        self.nodes.fill(LOOSE);
        self.ends = [EMPTY; N];
    }

    fn indices(&self, queue: usize) -> Vec<usize> {
        std::iter::successors(self.front(queue), |index| self.next(*index)).collect()
    }
}

/// The number of indices, and those in each queue, in order.
impl<const N: usize> Serialize for Queues<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let queued: Vec<_> = (0..N).map(|queue| self.indices(queue)).collect();
        (self.nodes.len(), queued).serialize(serializer)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Queues<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Queues<N>, D::Error> {
        let (len, queued) = <(usize, Vec<Vec<usize>>)>::deserialize(deserializer)?;
        let is_valid = queued.len() == N && queued.iter().flatten().all(|index| *index < len);
        if !is_valid {
            return Err(D::Error::custom("queues of other indices"));
        }
        let mut queues = Queues::new(len);
        for (queue, indices) in queued.iter().enumerate() {
            indices.iter().for_each(|index| queues.append(queue, *index));
        }
        Ok(queues)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn pop(queues: &mut Queues<3>, queue: usize) -> Option<usize> {
        let index = queues.front(queue)?;
        queues.remove(index);
        Some(index)
    }

    proptest! {
        #[test]
        fn behave_like_deques(steps in proptest::collection::vec((0..3u8, 0..3usize, 0..6usize), 0..200)) {
            let mut queues = Queues::<3>::new(6);
            let mut oracle = vec![VecDeque::new(); 3];
            for (step, queue, index) in steps {
                match step {
                    0 => {
                        oracle.iter_mut().for_each(|q| q.retain(|s| *s != index));
                        oracle[queue].push_back(index);
                        queues.append(queue, index);
                    }
                    1 => {
                        oracle.iter_mut().for_each(|q| q.retain(|s| *s != index));
                        queues.remove(index);
                    }
                    _ => prop_assert_eq!(pop(&mut queues, queue), oracle[queue].pop_front()),
                }
                for (queue, oracle) in oracle.iter().enumerate() {
                    prop_assert_eq!(queues.front(queue), oracle.front().copied());
                    prop_assert_eq!(queues.back(queue), oracle.back().copied());
                }
            }
            for (queue, oracle) in oracle.iter_mut().enumerate() {
                while let Some(index) = pop(&mut queues, queue) {
                    prop_assert_eq!(Some(index), oracle.pop_front());
                }
                prop_assert!(oracle.is_empty());
            }
        }
    }
}
