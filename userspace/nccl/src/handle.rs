//! Communicators and requests as NCCL refers to them: numbers in the form of pointers, never reused.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::PluginError;

/// The objects behind pointers of one kind.
pub(crate) struct HandleTable<T> {
    /// The kind of object, for messages.
    kind: &'static str,
    objects: LazyLock<RwLock<HashMap<usize, Arc<T>>>>,
}

/// The last number of all tables: a communicator's is never a request's.
static LAST: AtomicUsize = AtomicUsize::new(0);

impl<T> HandleTable<T> {
    pub(crate) const fn new(kind: &'static str) -> HandleTable<T> {
        HandleTable { kind, objects: LazyLock::new(RwLock::default) }
    }

    pub(crate) fn insert(&self, object: Arc<T>) -> *mut c_void {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.write().insert(number, object);
        std::ptr::without_provenance_mut(number)
    }

    pub(crate) fn get(&self, handle: *const c_void) -> Result<Arc<T>, PluginError> {
        self.read().get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle))
    }

    pub(crate) fn remove(&self, handle: *const c_void) -> Result<Arc<T>, PluginError> {
        self.write().remove(&handle.addr()).ok_or_else(|| self.unknown(handle))
    }

    /// Removes all objects that match.
    pub(crate) fn remove_all(&self, matches: impl Fn(&T) -> bool) {
        // Dropped after the lock.
        let mut removed = Vec::new();
        self.write().retain(|_, object| {
            let found = matches(object);
            if found {
                removed.push(object.clone());
            }
            !found
        });
    }

    fn unknown(&self, handle: *const c_void) -> PluginError {
        let kind = self.kind;
        PluginError::argument(format!("no {kind} has the handle {handle:p}: it was closed, or is another's"))
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<usize, Arc<T>>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<usize, Arc<T>>> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::INVALID_ARGUMENT;

    #[test]
    fn a_handle_is_unknown_before_and_after_its_object() {
        let table: HandleTable<u8> = HandleTable::new("test");
        let first = table.insert(Arc::new(7));
        assert_eq!(*table.get(first).unwrap(), 7);
        assert_eq!(*table.remove(first).unwrap(), 7);
        let second = table.insert(Arc::new(8));
        assert_ne!(first, second);
        for handle in [first, std::ptr::null_mut(), std::ptr::without_provenance_mut(usize::MAX)] {
            assert_eq!(table.get(handle).unwrap_err().code, INVALID_ARGUMENT);
        }
        table.remove_all(|object| *object == 8);
        assert!(table.get(second).is_err());
    }
}
