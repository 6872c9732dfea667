//! A store that hands every call on to another.

/// Makes a [`Store`](crate::Store) of a type that hands every call on.
///
/// It is given the type, and two macros that know whom to hand a call to: `asked` for what is
/// waited for, `told` for what is answered at once. Each gets `self` and a call without its
/// receiver. Nothing is left to the traits' own defaults: what a store does better than they do
/// is done behind this type too.
///
/// ```
/// use palisade_store::Store;
///
/// /// A store with a name.
/// struct Named<S>(S, &'static str);
///
/// macro_rules! asked {
///     ($self:ident.$call:ident($($given:ident),*)) => { $self.0.$call($($given),*).await };
/// }
/// macro_rules! told {
///     ($self:ident.$call:ident()) => { $self.0.$call() };
/// }
/// palisade_store::forward_store!([S: Store] Named<S>, asked, told);
/// ```
#[macro_export]
macro_rules! forward_store {
    ([$($generics:tt)*] $store:ty, $asked:ident, $told:ident) => {
        const _: () = {
            use $crate::core::plan::Charge;
            use $crate::core::record::{RecordKey, RecordKind, RecordWrite};
            use $crate::core::time::Micros;
            use $crate::{
                Buckets, Charged, Commit, Entries, Entry, Loaded, RecordPage, Records, Registries,
                Registry, ResetDone, StoreError, StoreStats, Take, Taken, Vitals,
            };

            type Answer<T> = Result<T, StoreError>;

            impl<$($generics)*> Buckets for $store {
                async fn charge(&self, charges: &[Charge<'_>], take: Take) -> Answer<Charged> {
                    $asked!(self.charge(charges, take))
                }

                async fn charge_each(
                    &self,
                    charges: &[Charge<'_>],
                    take: Take,
                ) -> Answer<Vec<Charged>> {
                    $asked!(self.charge_each(charges, take))
                }

                async fn give_back(&self, taken: &[Taken<'_>]) -> Answer<Charged> {
                    $asked!(self.give_back(taken))
                }

                async fn refund(&self, charges: &[Charge<'_>]) -> Answer<Charged> {
                    $asked!(self.refund(charges))
                }

                async fn reset(&self, charges: &[Charge<'_>]) -> Answer<ResetDone> {
                    $asked!(self.reset(charges))
                }
            }

            impl<$($generics)*> Records for $store {
                async fn load(&self, keys: &[RecordKey]) -> Answer<Loaded> {
                    $asked!(self.load(keys))
                }

                async fn commit(&self, writes: &[RecordWrite]) -> Answer<Commit> {
                    $asked!(self.commit(writes))
                }

                async fn set_aside(&self, key: RecordKey) -> Answer<()> {
                    $asked!(self.set_aside(key))
                }

                async fn scan(
                    &self,
                    kind: RecordKind,
                    cursor: Option<&str>,
                    count_max: usize,
                ) -> Answer<RecordPage> {
                    $asked!(self.scan(kind, cursor, count_max))
                }
            }

            impl<$($generics)*> Registries for $store {
                async fn put_entry(&self, registry: Registry, entry: Entry) -> Answer<()> {
                    $asked!(self.put_entry(registry, entry))
                }

                async fn remove_entry(&self, registry: Registry, id: &str) -> Answer<bool> {
                    $asked!(self.remove_entry(registry, id))
                }

                async fn entries(
                    &self,
                    registry: Registry,
                    seen: Option<u64>,
                ) -> Answer<Option<Entries>> {
                    $asked!(self.entries(registry, seen))
                }
            }

            impl<$($generics)*> Vitals for $store {
                async fn probe(&self) -> Answer<Micros> {
                    $asked!(self.probe())
                }

                async fn connect(&self) -> Answer<()> {
                    $asked!(self.connect())
                }

                async fn flush(&self) -> Answer<()> {
                    $asked!(self.flush())
                }

                fn stats(&self) -> StoreStats {
                    $told!(self.stats())
                }

                fn is_shared(&self) -> bool {
                    $told!(self.is_shared())
                }

                fn never_waits(&self) -> bool {
                    $told!(self.never_waits())
                }
            }
        };
    };
}
