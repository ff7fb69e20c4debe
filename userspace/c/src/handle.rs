//! Handles: numbers in the form of pointers, which are never reused.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::Error;
use crate::types::sumac_status;

/// The objects behind the handles of the opaque type `H`.
pub(crate) struct Table<H, T> {
    /// The kind of object, for messages.
    kind: &'static str,
    objects: LazyLock<RwLock<HashMap<usize, Arc<T>>>>,
    handle: PhantomData<fn() -> H>,
}

/// The last handle of all tables: a job's is never a request's.
static LAST: AtomicUsize = AtomicUsize::new(0);

impl<H, T> Table<H, T> {
    pub(crate) const fn new(kind: &'static str) -> Table<H, T> {
        Table { kind, objects: LazyLock::new(RwLock::default), handle: PhantomData }
    }

    pub(crate) fn insert(&self, object: Arc<T>) -> *mut H {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.write().insert(number, object);
        std::ptr::without_provenance_mut(number)
    }

    pub(crate) fn get(&self, handle: *const H) -> Result<Arc<T>, Error> {
        self.read().get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle))
    }

    pub(crate) fn remove(&self, handle: *const H) -> Result<Arc<T>, Error> {
        self.write().remove(&handle.addr()).ok_or_else(|| self.unknown(handle))
    }

    /// Removes the object if it passes the check.
    pub(crate) fn remove_if(
        &self,
        handle: *const H,
        check: impl FnOnce(&Arc<T>) -> Result<(), Error>,
    ) -> Result<Arc<T>, Error> {
        let mut objects = self.write();
        let object = objects.get(&handle.addr()).ok_or_else(|| self.unknown(handle))?;
        check(object)?;
        objects.remove(&handle.addr()).ok_or_else(|| self.unknown(handle))
    }

    /// Removes all objects that do not match.
    pub(crate) fn retain(&self, matches: impl Fn(&T) -> bool) {
        // Dropped after the lock: a drop may send a message.
        let mut removed = Vec::new();
        self.write().retain(|_, object| {
            let is_kept = matches(object);
            if !is_kept {
                removed.push(object.clone());
            }
            is_kept
        });
    }

    pub(crate) fn any(&self, matches: impl Fn(&T) -> bool) -> bool {
        self.read().values().any(|object| matches(object))
    }

    fn unknown(&self, handle: *const H) -> Error {
        let kind = self.kind;
        let message = if handle.is_null() {
            format!("the {kind} is NULL")
        } else {
            format!("no {kind} has the handle {handle:p}: it was closed, or never returned by this library")
        };
        Error::new(sumac_status::SUMAC_ERR_INVALID_HANDLE, message)
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

    struct Opaque;

    #[test]
    fn a_handle_is_unknown_before_and_after_its_object() {
        let table: Table<Opaque, u8> = Table::new("test");
        let first = table.insert(Arc::new(7));
        assert_eq!(*table.get(first).unwrap(), 7);
        assert_eq!(*table.remove(first).unwrap(), 7);
        let second = table.insert(Arc::new(8));
        assert_ne!(first, second);
        for handle in [first, std::ptr::null_mut(), std::ptr::without_provenance_mut(usize::MAX)] {
            assert_eq!(table.get(handle).unwrap_err().status, sumac_status::SUMAC_ERR_INVALID_HANDLE);
        }
        assert_eq!(table.get(std::ptr::null()).unwrap_err().message(), "the test is NULL");
    }
}
