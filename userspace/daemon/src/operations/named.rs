//! Operations of a job in order of names: each waits until all workers have announced its name.

use std::collections::{HashMap, VecDeque};

/// The waiting operations by name. Operations of one name keep their order; only the first is announced.
#[derive(Debug)]
pub(crate) struct Named<T> {
    waiting: HashMap<String, VecDeque<T>>,
}

impl<T> Default for Named<T> {
    fn default() -> Named<T> {
        Named { waiting: HashMap::new() }
    }
}

impl<T> Named<T> {
    /// Appends an operation. Returns whether it is to be announced now.
    pub(crate) fn add(&mut self, name: &str, operation: T) -> bool {
        let queue = self.waiting.entry(name.to_owned()).or_default();
        queue.push_back(operation);
        queue.len() == 1
    }

    /// Removes the operation whose name all workers have announced. Returns it, and the next of that name, which is to be
    /// announced now.
    pub(crate) fn release(&mut self, name: &str) -> Option<(T, Option<&T>)> {
        let queue = self.waiting.get_mut(name)?;
        let released = queue.pop_front()?;
        if queue.is_empty() {
            self.waiting.remove(name);
        }
        Some((released, self.waiting.get(name).and_then(VecDeque::front)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.values().flatten()
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
        let mut named = Named::default();
        assert!(named.add("a", 1));
        assert!(!named.add("a", 2));
        assert!(named.add("b", 3));
        assert_eq!(named.release("a"), Some((1, Some(&2))));
        assert_eq!(named.release("b"), Some((3, None)));
        assert_eq!(named.release("b"), None);
        assert_eq!(named.release("a"), Some((2, None)));
        assert!(named.add("a", 4), "a name can be used again");
        assert_eq!(named.iter().count(), 1);
    }
}
