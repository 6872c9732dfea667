//! An optional value that most engines never have and every request looks for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwapOption, Guard};

/// An optional value that is rarely present. Its absence costs a plain load, whereas an empty
/// [`ArcSwapOption`] takes as many locked instructions to read as a full one.
pub(in crate::engine) struct Seldom<T> {
    is_there: AtomicBool,
    held: ArcSwapOption<T>,
}

impl<T> Default for Seldom<T> {
    fn default() -> Self {
        Self {
            is_there: AtomicBool::new(false),
            held: ArcSwapOption::empty(),
        }
    }
}

impl<T> Seldom<T> {
    pub(in crate::engine) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    /// Borrows the value; nothing if it was removed in the meantime.
    pub(in crate::engine) fn look(&self) -> Option<Guard<Option<Arc<T>>>> {
        self.is_there().then(|| self.held.load())
    }

    /// A counted reference to the value.
    pub(in crate::engine) fn get(&self) -> Option<Arc<T>> {
        self.is_there().then(|| self.held.load_full())?
    }

    pub(in crate::engine) fn put(&self, value: Arc<T>) {
        // The value comes first, so that a reader that sees the flag finds it.
        self.held.store(Some(value));
        self.is_there.store(true, Ordering::Release);
    }

    /// Removes the value. The flag is cleared first: if another thread puts a value at the same
    /// time, no value is left behind that nobody sees.
    pub(in crate::engine) fn take_away(&self) {
        self.is_there.store(false, Ordering::Release);
        self.held.store(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(seldom: &Seldom<u8>) -> (bool, Option<u8>, Option<u8>) {
        let looked = seldom.look().and_then(|held| held.as_deref().copied());
        (seldom.is_there(), looked, seldom.get().map(|value| *value))
    }

    #[test]
    fn what_was_put_is_there_until_it_is_taken_away() {
        let seldom = Seldom::default();
        assert_eq!(seen(&seldom), (false, None, None));
        seldom.put(Arc::new(1));
        seldom.put(Arc::new(2));
        assert_eq!(seen(&seldom), (true, Some(2), Some(2)));
        seldom.take_away();
        assert_eq!(seen(&seldom), (false, None, None));
        seldom.put(Arc::new(3));
        assert_eq!(seen(&seldom), (true, Some(3), Some(3)));
    }
}
