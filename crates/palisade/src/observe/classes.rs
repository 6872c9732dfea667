//! The class names of the policy. A class that only a caller names may be any text, even an
//! identifier, and is shown as `other`.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use palisade_core::facts::GuardOp;
use palisade_core::policy::{ClassKind, PolicySet};
use palisade_core::record::Flow;

/// Name for every class that is not known.
pub(super) const OTHER: &str = "other";

const CLASS_BYTES_MAX: usize = 64;

/// Returns the class of a flow's guard commands.
pub(super) const fn flow_name(flow: Flow) -> &'static str {
    match flow {
        Flow::Login => "login",
        Flow::Otp => "otp",
        Flow::Api => "api",
    }
}

/// Returns the class of a guard command: that of its flow, and one of their own for sends, which
/// are no attempts.
pub(super) const fn op_class(op: GuardOp) -> &'static str {
    match op {
        GuardOp::OtpSend => "otp-send",
        _ => flow_name(op.flow()),
    }
}

/// Returns every class and Envoy domain that a policy names, those of the guard, and the name for
/// requests without a class.
pub(super) fn names(policy: &PolicySet) -> impl Iterator<Item = &str> {
    let of_limits = policy.limits().iter().flat_map(|limit| &limit.def.classes);
    let of_routes = policy.routes().iter();
    let of_domains = policy.domains().map(|domain| &**domain);
    ["login", "otp", "otp-send", "api", "none"]
        .into_iter()
        .chain(of_limits.map(String::as_str))
        .chain(of_routes.filter_map(|route| route.class.as_deref()))
        .chain(of_domains)
        .filter(|name| is_plain(name))
}

fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/:".contains(&byte);
    !name.is_empty() && name.len() <= CLASS_BYTES_MAX && name.bytes().all(plain)
}

/// The classes of the policy in force.
#[derive(Debug, Default)]
pub(super) struct KnownClasses(ArcSwap<HashMap<Arc<str>, ClassKind>>);

impl KnownClasses {
    pub(super) fn learn(&self, policy: &PolicySet) {
        let named = |name: &str| (Arc::from(name), policy.class_kind(name));
        let known = names(policy).map(named).collect();
        self.0.store(Arc::new(known));
    }

    /// Returns the name of the class if the policy has it, otherwise `other`.
    pub(super) fn shown(&self, class: &str) -> Arc<str> {
        let known = self.0.load();
        let shown = known.get_key_value(class).map(|(name, _)| Arc::clone(name));
        shown.unwrap_or_else(|| OTHER.into())
    }

    /// Behaviour of the class in an outage.
    pub(super) fn kind(&self, class: &str) -> ClassKind {
        self.0.load().get(class).copied().unwrap_or_default()
    }
}
