//! Something that most engines never have, asked for by every request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwapOption, Guard};

/// A value that is there now and then. That it is not there is seen by a plain load: to borrow
/// nothing from an [`ArcSwapOption`] takes as many locked instructions as to borrow something.
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

    /// The value for a look; of one that was taken away meanwhile, nothing.
    pub(in crate::engine) fn look(&self) -> Option<Guard<Option<Arc<T>>>> {
        self.is_there().then(|| self.held.load())
    }

    /// The value, to keep.
    pub(in crate::engine) fn get(&self) -> Option<Arc<T>> {
        self.is_there().then(|| self.held.load_full())?
    }

    pub(in crate::engine) fn put(&self, value: Arc<T>) {
        self.held.store(Some(value));
        self.is_there.store(true, Ordering::Release);
    }

    /// The mark goes first: of two who take away and put at once, neither leaves a value that
    /// nobody sees.
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
