//! What deciding surfaces share: the engine, how requests are read, and what
//! becomes of ones that cannot be believed.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use palisade::Engine;
use palisade::engine::Observer;
use palisade::extract::{EdgeConfig, ExtractError, Extracted, TokenStatus};
use palisade_core::policy::ClassKind;
use palisade_core::{Id, RequestFacts};

use super::exchange::problem::Problem;
use crate::store::AnyStore;

/// The class that guessing tokens counts in.
const AUTH_CLASS: &str = "auth";

/// Shared by the decision API and the proxy.
pub(crate) struct Enforcer {
    pub(crate) engine: Arc<Engine<AnyStore>>,
    pub(crate) edge: ArcSwap<EdgeConfig>,
    pub(crate) observer: Arc<dyn Observer>,
}

impl Enforcer {
    /// The facts to decide on. A token that was refused makes a request count as a
    /// guess (I-JWT).
    pub(crate) fn facts(
        &self,
        peer: IpAddr,
        extracted: Result<Extracted, ExtractError>,
    ) -> Result<RequestFacts, Problem> {
        let extracted = extracted.inspect_err(|error| self.refused(peer, error))?;
        let mut facts = extracted.facts;
        let guess = matches!(extracted.token, TokenStatus::Unverified(_));
        if guess && self.engine.policy().class_kind(AUTH_CLASS) == ClassKind::Auth {
            facts.class = Id::new("class", AUTH_CLASS).ok();
        }
        Ok(facts)
    }

    fn refused(&self, peer: IpAddr, error: &ExtractError) {
        if error.is_audited() {
            let now = self.engine.clock().now();
            self.observer.edge_refused(peer, error.field(), now);
        }
    }
}
