//! Stores in front of another store.

use palisade_core::plan::Charge;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::Micros;

use crate::{
    Answer, Buckets, ChargeReadings, Commit, Correction, CorrectionOutcome, Entries, Entry,
    LoadedRecords, RecordPage, Records, Registries, Registry, ResetDone, Store, StoreStats, Take,
    TakenCharge, Vitals,
};

/// A store that passes every call on to another one, and may fail or delay it. Every interceptor
/// is a [`Store`].
///
/// ```
/// use std::sync::Arc;
/// use palisade_store::{Answer, Call, Interceptor, Store, StoreError};
///
/// /// A store that takes no writes of records.
/// struct ReadOnly(Arc<dyn Store>);
///
/// impl Interceptor for ReadOnly {
///     fn inner(&self) -> &dyn Store {
///         &*self.0
///     }
///
///     fn before<'a>(&'a self, call: Call<'a>) -> Answer<'a, ()> {
///         match call {
///             Call::Commit(_) => Answer::Ready(Err(StoreError::Exhausted("read-only".to_owned()))),
///             _ => Answer::ready(()),
///         }
///     }
///
///     fn is_shared(&self) -> bool {
///         self.0.is_shared()
///     }
/// }
/// ```
pub trait Interceptor: Send + Sync + 'static {
    /// The store that calls are passed on to.
    fn inner(&self) -> &dyn Store;

    /// Runs before each call of [`Interceptor::inner`]. An error becomes the answer, and the call
    /// is not made.
    fn before<'a>(&'a self, call: Call<'a>) -> Answer<'a, ()>;

    /// See [`Vitals::is_shared`].
    fn is_shared(&self) -> bool;
}

/// A call of a store that is about to be made.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    /// [`Buckets::charge`] or [`Buckets::charge_each`].
    Charge(&'a [Charge<'a>], Take),
    /// [`Buckets::give_back`].
    GiveBack(&'a [TakenCharge<'a>]),
    /// [`Buckets::refund`].
    Refund(&'a [Charge<'a>]),
    /// [`Buckets::correct`].
    Correct(&'a Correction<'a>),
    /// [`Buckets::reset`].
    Reset(&'a [Charge<'a>]),
    /// [`Records::load`].
    Load(&'a [RecordKey]),
    /// [`Records::commit`].
    Commit(&'a [RecordWrite]),
    /// Another call of [`Records`].
    Record,
    /// A call of [`Registries`].
    Registry(Registry),
    /// [`Vitals::probe`], [`Vitals::connect`] or [`Vitals::flush`].
    Vital,
}

/// Makes `call` unless what came before it failed, and returns the answer.
fn after<'a, T: Send + Unpin>(
    before: Answer<'a, ()>,
    call: impl FnOnce() -> Answer<'a, T> + Send + 'a,
) -> Answer<'a, T> {
    match before {
        // Nothing has to be waited for: the inner store's answer is passed on without a future.
        Answer::Ready(Ok(())) => call(),
        Answer::Ready(Err(error)) => Answer::Ready(Err(error)),
        Answer::Later(before) => Answer::later(async move {
            before.await?;
            call().await
        }),
    }
}

impl<I: Interceptor> Buckets for I {
    fn charge<'a>(&'a self, charges: &'a [Charge<'a>], take: Take) -> Answer<'a, ChargeReadings> {
        let before = self.before(Call::Charge(charges, take));
        after(before, move || self.inner().charge(charges, take))
    }

    fn charge_each<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        take: Take,
    ) -> Answer<'a, Vec<ChargeReadings>> {
        let before = self.before(Call::Charge(charges, take));
        after(before, move || self.inner().charge_each(charges, take))
    }

    fn give_back<'a>(&'a self, taken: &'a [TakenCharge<'a>]) -> Answer<'a, ChargeReadings> {
        let before = self.before(Call::GiveBack(taken));
        after(before, move || self.inner().give_back(taken))
    }

    fn refund<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ChargeReadings> {
        let before = self.before(Call::Refund(charges));
        after(before, move || self.inner().refund(charges))
    }

    fn correct<'a>(&'a self, correction: &'a Correction<'a>) -> Answer<'a, CorrectionOutcome> {
        let before = self.before(Call::Correct(correction));
        after(before, move || self.inner().correct(correction))
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ResetDone> {
        let before = self.before(Call::Reset(charges));
        after(before, move || self.inner().reset(charges))
    }
}

impl<I: Interceptor> Records for I {
    fn load<'a>(&'a self, keys: &'a [RecordKey]) -> Answer<'a, LoadedRecords> {
        after(self.before(Call::Load(keys)), move || {
            self.inner().load(keys)
        })
    }

    fn commit<'a>(&'a self, writes: &'a [RecordWrite]) -> Answer<'a, Commit> {
        let before = self.before(Call::Commit(writes));
        after(before, move || self.inner().commit(writes))
    }

    fn set_aside(&self, key: RecordKey) -> Answer<'_, ()> {
        after(self.before(Call::Record), move || {
            self.inner().set_aside(key)
        })
    }

    fn scan<'a>(
        &'a self,
        kind: RecordKind,
        cursor: Option<&'a str>,
        count_max: usize,
    ) -> Answer<'a, RecordPage> {
        let before = self.before(Call::Record);
        after(before, move || self.inner().scan(kind, cursor, count_max))
    }
}

impl<I: Interceptor> Registries for I {
    fn put_entry(&self, registry: Registry, entry: Entry) -> Answer<'_, ()> {
        let before = self.before(Call::Registry(registry));
        after(before, move || self.inner().put_entry(registry, entry))
    }

    fn remove_entry<'a>(&'a self, registry: Registry, id: &'a str) -> Answer<'a, bool> {
        let before = self.before(Call::Registry(registry));
        after(before, move || self.inner().remove_entry(registry, id))
    }

    fn entries(&self, registry: Registry, seen: Option<u64>) -> Answer<'_, Option<Entries>> {
        let before = self.before(Call::Registry(registry));
        after(before, move || self.inner().entries(registry, seen))
    }
}

impl<I: Interceptor> Vitals for I {
    fn probe(&self) -> Answer<'_, Micros> {
        after(self.before(Call::Vital), move || self.inner().probe())
    }

    fn connect(&self) -> Answer<'_, ()> {
        after(self.before(Call::Vital), move || self.inner().connect())
    }

    fn flush(&self) -> Answer<'_, ()> {
        after(self.before(Call::Vital), move || self.inner().flush())
    }

    fn stats(&self) -> StoreStats {
        self.inner().stats()
    }

    fn is_shared(&self) -> bool {
        Interceptor::is_shared(self)
    }
}
