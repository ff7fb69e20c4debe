//! Operations that wait for their name: in a job in order of names each waits until all workers have
//! announced it.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::OperationKey;

/// The waiting operations by name. Operations of one name keep their order; only the first is announced.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Named {
    waiting: BTreeMap<String, VecDeque<OperationKey>>,
}

impl Named {
    /// Appends an operation. Returns whether it is to be announced now.
    pub(crate) fn add(&mut self, name: &str, operation: OperationKey) -> bool {
        let queue = self.waiting.entry(name.to_owned()).or_default();
        queue.push_back(operation);
        queue.len() == 1
    }

    /// Removes an operation whose name all have announced. Returns it, and the next of that name, to be
    /// announced now.
    pub(crate) fn release(&mut self, name: &str) -> Option<(OperationKey, Option<OperationKey>)> {
        let queue = self.waiting.get_mut(name)?;
        let released = queue.pop_front()?;
        let next = queue.front().copied();
        if next.is_none() {
            self.waiting.remove(name);
        }
        Some((released, next))
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_name_is_announced_and_the_next_once_it_is_released() {
        let key = |op| OperationKey { connection: 1, op };
        let mut named = Named::default();
        assert!(named.add("a", key(1)));
        assert!(!named.add("a", key(2)));
        assert!(named.add("b", key(3)));
        assert_eq!(named.release("a"), Some((key(1), Some(key(2)))));
        assert_eq!(named.release("b"), Some((key(3), None)));
        assert_eq!(named.release("b"), None);
        assert_eq!(named.release("a"), Some((key(2), None)));
        assert!(named.add("a", key(4)), "a name can be used again");
    }
}
