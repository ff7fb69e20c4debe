//! Parts of the libraries over this crate that C calls: handles, and the end of panics.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The objects behind the handles of the opaque type `H`: numbers in the form of pointers, never reused.
pub struct HandleTable<H, T> {
    /// The kind of object, for messages.
    kind: &'static str,
    objects: LazyLock<RwLock<HashMap<usize, Arc<T>>>>,
    handle: PhantomData<fn() -> H>,
}

/// A handle without an object.
#[derive(Debug)]
pub struct UnknownHandle {
    /// The kind of object that was looked for.
    pub kind: &'static str,
    /// The number of the handle; 0 for NULL.
    pub number: usize,
}

/// The last handle of all tables: a job's is never a request's.
static LAST: AtomicUsize = AtomicUsize::new(0);

impl<H, T> HandleTable<H, T> {
    /// Makes an empty table.
    pub const fn new(kind: &'static str) -> HandleTable<H, T> {
        HandleTable { kind, objects: LazyLock::new(RwLock::default), handle: PhantomData }
    }

    /// Inserts an object under a new handle.
    pub fn insert(&self, object: Arc<T>) -> *mut H {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.write().insert(number, object);
        std::ptr::without_provenance_mut(number)
    }

    /// Returns the object of a handle.
    pub fn get(&self, handle: *const H) -> Result<Arc<T>, UnknownHandle> {
        self.read().get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle))
    }

    /// Removes the object of a handle.
    pub fn remove(&self, handle: *const H) -> Result<Arc<T>, UnknownHandle> {
        self.remove_if(handle, |_| Ok(()))
    }

    /// Removes the object of a handle if it passes the check.
    pub fn remove_if<E: From<UnknownHandle>>(
        &self,
        handle: *const H,
        check: impl FnOnce(&Arc<T>) -> Result<(), E>,
    ) -> Result<Arc<T>, E> {
        let mut objects = self.write();
        check(objects.get(&handle.addr()).ok_or_else(|| self.unknown(handle))?)?;
        Ok(objects.remove(&handle.addr()).ok_or_else(|| self.unknown(handle))?)
    }

    /// Removes all objects that match.
    pub fn remove_all(&self, matches: impl Fn(&T) -> bool) {
        // Dropped after the lock: a drop may send a message.
        let _removed: Vec<_> = self.write().extract_if(|_, object| matches(object)).collect();
    }

    /// Returns whether an object matches.
    pub fn any(&self, matches: impl Fn(&T) -> bool) -> bool {
        self.read().values().any(|object| matches(object))
    }

    fn unknown(&self, handle: *const H) -> UnknownHandle {
        UnknownHandle { kind: self.kind, number: handle.addr() }
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<usize, Arc<T>>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<usize, Arc<T>>> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the body of a function that C calls. A panic ends here: its text is the error.
pub fn caught<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    // After a panic no object is relied on but through locks that ignore poison; each call checks its own.
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text").to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_unknown_before_and_after_its_object() {
        let table: HandleTable<(), u8> = HandleTable::new("test");
        let first = table.insert(Arc::new(7));
        assert_eq!(*table.get(first).unwrap(), 7);
        assert_eq!(*table.remove(first).unwrap(), 7);
        let second = table.insert(Arc::new(8));
        assert_ne!(first, second);
        for handle in [first, std::ptr::null_mut(), std::ptr::without_provenance_mut(usize::MAX)] {
            assert_eq!(table.get(handle).unwrap_err().number, handle.addr());
        }
        table.remove_all(|object| *object == 8);
        assert!(table.get(second).is_err());
    }
}
