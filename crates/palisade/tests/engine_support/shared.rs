//! One reference store behind several engines, like a server that nodes share.

use std::sync::Arc;

use palisade::core::time::Clock;
use palisade::store::memory::MemoryStore;
use palisade::store::{Answer, Call, Interceptor, Store};

use super::Model;

type Memory = MemoryStore<Arc<dyn Clock>>;

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident($store:ty, $is_shared:literal);)*) => {$(
        $(#[$meta])*
        #[derive(Clone)]
        pub struct $name(pub Arc<$store>);

        impl Interceptor for $name {
            fn inner(&self) -> &dyn Store {
                &*self.0
            }

            fn before<'a>(&'a self, call: Call<'a>) -> Answer<'a, ()> {
                // Lets other tasks run between a read and its commit or correction.
                let gives_way = matches!(
                    call,
                    Call::Load(_) | Call::Commit(_) | Call::Correct(_)
                );
                Answer::later(async move {
                    if gives_way {
                        tokio::task::yield_now().await;
                    }
                    Ok(())
                })
            }

            fn is_shared(&self) -> bool {
                $is_shared
            }
        }
    )*};
}

handles! {
    /// The reference store, used by several nodes.
    Shared(Model, true);
    /// The embedded store, used by several nodes.
    SharedMemory(Memory, true);
    /// The embedded store, used by one node after another.
    MemoryInTurn(Memory, false);
}
