//! Reads `[[limit]]` into [`LimitDef`]: the meaning of one limit, and whether it can ever match.

use palisade_core::key::SEGMENTS_MAX;
use palisade_core::limit::{Algorithm, BucketSpec, SpecError, Window};
use palisade_core::plan::OnExceed;
use palisade_core::policy::{
    Accuracy, ClassKind, Dimension, Family, LimitDef, OnStoreFailure, Standing,
};

use crate::document::decode::Decode;
use crate::document::error::{Sink, nearest};
use crate::document::schema::read_array;
use crate::document::tree::{Node, Table, Value, member_origin};
use crate::geo::Conditions;
use crate::policy::descriptors;
use crate::policy::resolve::KnownNames;
use crate::policy::tables::{LimitTable, Overdraft};
use crate::policy::values::{MaybeZero, Rate};

mod challenged;
mod held;
mod slots;

/// Most limits of a policy: each request evaluates those of its class.
const LIMITS_MAX: usize = 1_000;
/// Names of buckets that the core defines itself.
const RESERVED: [&str; 4] = [
    "api-key-quota",
    "guard-api-minor",
    "guard-api-moderate",
    "guard-api-severe",
];
/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// A window for limits that do not count: they need one, and none of its effects.
const A_SECOND: Window = Window::Span(1_000_000);

/// Reads all limits; those with an error are reported and left out.
pub(crate) fn read(root: &Table, known: &KnownNames<'_>, sink: &mut Sink) -> Vec<LimitDef> {
    zeros(root, sink);
    let tables = read_array::<LimitTable>(root, sink);
    if let Some((_, extra)) = tables.get(LIMITS_MAX) {
        sink.report(
            &extra.origin,
            format!("a policy may have at most {LIMITS_MAX} limits"),
        );
    }
    let mut limits = Vec::with_capacity(tables.len());
    for (table, item) in tables {
        let checker = Checker { item, known, sink };
        limits.extend(checker.limit(table).map(|limit| (limit, item)));
    }
    descriptors::check(&limits, sink);
    held::outlived_windows(&limits, sink);
    limits.into_iter().map(|(limit, _)| limit).collect()
}

/// Reports limits of requests that let nothing pass.
fn zeros(root: &Table, sink: &mut Sink) {
    let items = root.get("limit").map(|entry| &entry.node.value);
    let Some(Value::Array(items)) = items else {
        return;
    };
    for item in items.iter().filter(|item| !item.member_is_set("domain")) {
        let rate = item.as_table().and_then(|table| table.get("rate"));
        let decoded = rate.map(|rate| MaybeZero::decode(&rate.node));
        if let Some(Ok(MaybeZero::Zero(_))) = decoded {
            let message = "`limit.rate` must not be zero";
            sink.report_with(
                &member_origin(item, "rate"),
                message,
                "a rate is at least 1",
            );
        }
    }
}

pub(super) struct Checker<'a> {
    pub(super) item: &'a Node,
    known: &'a KnownNames<'a>,
    sink: &'a mut Sink,
}

impl Checker<'_> {
    pub(super) fn refuse(&mut self, key: &str, problem: &str, hint: &str) {
        let origin = member_origin(self.item, key);
        self.sink
            .report_with(&origin, format!("`limit.{key}` {problem}"), hint);
    }

    fn limit(mut self, table: LimitTable) -> Option<LimitDef> {
        self.name(&table.name);
        self.placement(&table);
        self.references(&table);
        self.auth_stays_bounded(&table);
        self.held(&table);
        let by = self.dimensions(&table);
        let at = ("limit", self.item);
        let geo = conditions(&table).filter(at, self.known.geo, self.sink);
        let limit = self.bucket(table, by)?;
        Some(LimitDef { geo, ..limit })
    }

    fn bucket(&mut self, table: LimitTable, by: Option<Vec<Dimension>>) -> Option<LimitDef> {
        if table.concurrency.is_some() || table.hold.is_some() {
            return self.slots(table, by?);
        }
        for (key, is_set) in [
            ("queue", table.queue.is_some()),
            ("wait", table.wait.is_some()),
        ] {
            if is_set {
                let hint = "only callers of a limit with `concurrency` wait";
                self.refuse(key, "needs `concurrency`", hint);
            }
        }
        let figure = self.figure(&table);
        let spec = figure.and_then(|(rate, _)| self.spec(&table, rate));
        let (by, spec, (_, standing)) = (by?, spec?, figure?);
        if table.unit.is_named() && table.cost.get() > 1 {
            let hint = "leave it out: decisions say what they cost in a unit of your own";
            self.refuse("cost", "only multiplies requests", hint);
        }
        self.released(&table, &spec);
        if u64::from(table.cost.get()) > spec.capacity() && table.overdraft == Overdraft::Never {
            let hint = "lower `cost`, or raise `rate` or `burst`: no request could ever pass";
            self.refuse("cost", "is above the limit itself", hint);
        }
        Some(define(table, by, spec, standing))
    }

    fn name(&mut self, name: &str) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
            let problem = "must be at most 64 letters, digits, `-`, `_` or `.`";
            self.refuse("name", problem, "it is used in headers and metrics");
        }
        if RESERVED.contains(&name) {
            let problem = "is reserved for a bucket that is always there";
            self.refuse("name", problem, "choose another name");
        }
    }

    /// Checks keys that exclude each other.
    fn placement(&mut self, table: &LimitTable) {
        let set = [
            ("class", table.class.is_some()),
            ("operation", table.operation.is_some()),
            ("client_type", table.client_type.is_some()),
            ("bot", table.bot),
        ];
        for (key, is_set) in set.into_iter().chain(conditions(table).keys()) {
            if is_set && table.throttle {
                let problem = "never applies to the global throttle";
                self.refuse(key, problem, "leave it out, or `throttle`");
            }
            if is_set && table.domain.is_some() {
                let problem = "never applies to an Envoy domain";
                self.refuse(key, problem, "leave it out, or `domain`");
            }
        }
        if table.throttle && table.domain.is_some() {
            let problem = "never applies to an Envoy domain";
            self.refuse("throttle", problem, "leave it out, or `domain`");
        }
        self.overdraft(table);
        self.challenged(table);
        if table.throttle && table.warn_at.is_some() {
            let problem = "never applies to the global throttle";
            self.refuse("warn_at", problem, "leave it out, or `throttle`");
        }
        self.under_attack(table);
        self.descriptor(table);
    }

    /// Checks what an attack does not tighten.
    fn under_attack(&mut self, table: &LimitTable) {
        if table.under_attack.is_none() {
            return;
        }
        let set = [
            ("throttle", table.throttle),
            ("domain", table.domain.is_some()),
            ("concurrency", table.concurrency.is_some()),
            ("shadow", table.shadow),
            ("overdraft", table.overdraft != Overdraft::Never),
        ];
        for (key, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
            let problem = format!("and `{key}` exclude each other");
            self.refuse("under_attack", &problem, "leave one of them out");
        }
    }

    /// Checks what cannot be overdrawn.
    fn overdraft(&mut self, table: &LimitTable) {
        if table.overdraft == Overdraft::Never {
            return;
        }
        let set = [
            ("shadow", table.shadow),
            ("throttle", table.throttle),
            ("concurrency", table.concurrency.is_some()),
            ("unlimited", table.unlimited),
        ];
        for (key, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
            let problem = format!("and `{key}` exclude each other");
            self.refuse("overdraft", &problem, "leave one of them out");
        }
        if table.accuracy == Accuracy::Leased {
            let hint = "use `exact` or `local`: a lease has no tokens below zero";
            self.refuse("accuracy", "must not be `leased` beside `overdraft`", hint);
        }
    }

    /// Reports a class or operation that no route assigns: the limit would never match.
    fn references(&mut self, table: &LimitTable) {
        let known = self.known;
        for class in table.class.iter().flat_map(|list| &list.0) {
            if !known.classes.contains(class) {
                let hint = match nearest(class, known.classes.iter().map(String::as_str)) {
                    Some(name) => format!("did you mean `{name}`?"),
                    None => "add a `[[route]]` with it, or a `[[class]]` if callers name it".into(),
                };
                let problem = "can never match: no route assigns this class";
                self.refuse("class", problem, &hint);
            }
        }
        for operation in table.operation.iter().flat_map(|list| &list.0) {
            if !known.operations.contains(operation) {
                let hint = match nearest(operation, known.operations.iter().map(String::as_str)) {
                    Some(name) => format!("did you mean `{name}`?"),
                    None => "add a `[[route]]` with it".into(),
                };
                let problem = "can never match: no route assigns this operation";
                self.refuse("operation", problem, &hint);
            }
        }
    }

    fn auth_stays_bounded(&mut self, table: &LimitTable) {
        if table.failure != OnStoreFailure::OpenBounded || table.domain.is_some() {
            return;
        }
        let is_auth = |class: &String| self.known.kinds.get(class) == Some(&ClassKind::Auth);
        let concerned = match &table.class {
            Some(classes) => classes.0.iter().any(is_auth),
            None => self.known.classes.iter().any(is_auth),
        };
        if concerned {
            let problem = "must not be `open-bounded` where an authentication class is concerned";
            let hint = "use `fallback` or `closed`, or name other classes with `class`";
            self.refuse("failure", problem, hint);
        }
    }

    fn dimensions(&mut self, table: &LimitTable) -> Option<Vec<Dimension>> {
        match (&table.by, &table.domain) {
            (Some(by), None) => self.request_dimensions(by),
            (Some(by), Some(_)) => self.descriptor_dimensions(by, table),
            (None, Some(_)) => self.open_entries(table),
            // A key under a former name is reported separately.
            (None, None) if self.item.has_any(&["key", "keys"]) => None,
            (None, None) => {
                let hint =
                    "say what it counts by, for example `by = [\"ip\"]`; `[]` is one shared bucket";
                self.sink
                    .report_with(&self.item.origin, "`limit.by` is missing", hint);
                None
            }
        }
    }

    fn request_dimensions(&mut self, by: &[Dimension]) -> Option<Vec<Dimension>> {
        let repeated = by
            .iter()
            .enumerate()
            .any(|(at, one)| by[..at].contains(one));
        if repeated {
            self.refuse("by", "names a dimension twice", "name each once");
            return None;
        }
        for dimension in by {
            match dimension {
                Dimension::Account => {
                    let hint = "requests carry no account; the guard counts accounts by itself";
                    self.refuse("by", "can never match: `account`", hint);
                    return None;
                }
                Dimension::Descriptor(_) => {
                    let hint = "descriptors belong to limits with `domain`";
                    self.refuse("by", "can never match: `descriptor:…`", hint);
                    return None;
                }
                _ => {}
            }
        }
        // Users and tokens nest under their organisation, which takes up a segment too.
        let nests = by
            .iter()
            .any(|one| matches!(one, Dimension::User | Dimension::Token));
        let places = by.len() + usize::from(nests && !by.contains(&Dimension::Org));
        if places > SEGMENTS_MAX {
            let problem = format!("names too many dimensions: {SEGMENTS_MAX} at most");
            self.refuse("by", &problem, "split the limit in two");
            return None;
        }
        Some(by.to_vec())
    }

    /// Returns the limit's rate and standing.
    fn figure(&mut self, table: &LimitTable) -> Option<(Rate, Standing)> {
        match (table.rate, table.unlimited) {
            (Some(MaybeZero::Rate(rate)), false) => return Some((rate, Standing::Counted)),
            (Some(MaybeZero::Zero(window)), false) if table.domain.is_some() => {
                return Some((Rate::one_in(window), Standing::Denies));
            }
            (None, true) if table.domain.is_some() => {
                return Some((Rate::one_in(A_SECOND), Standing::Admits));
            }
            // Reported by `zeros`, with the table as it was written, whatever else is wrong with
            // it.
            (Some(MaybeZero::Zero(_)), false) => {}
            (Some(_), true) => {
                self.refuse(
                    "unlimited",
                    "and `rate` exclude each other",
                    "keep one of them",
                );
            }
            (None, true) => {
                let hint = "leave the limit out: requests are counted by the others";
                self.refuse("unlimited", "only means something with `domain`", hint);
            }
            // A key under its former name is reported separately.
            (None, false) if self.item.has_any(&["limit"]) => {}
            (None, false) => {
                let message = "`limit.rate` is missing";
                self.sink
                    .report_with(&self.item.origin, message, "add `rate = …`");
            }
        }
        None
    }

    fn spec(&mut self, table: &LimitTable, rate: Rate) -> Option<BucketSpec> {
        let algorithm = table.algorithm.unwrap_or(match rate.window {
            Window::Month | Window::Year => Algorithm::FixedWindow,
            Window::Span(_) if table.burst.is_some() => Algorithm::TokenBucket,
            Window::Span(_) if table.family == Some(Family::Quota) => Algorithm::FixedWindow,
            Window::Span(_) => Algorithm::default_for(rate.limit.get()),
        });
        if table.burst.is_some() && algorithm != Algorithm::TokenBucket {
            let hint = "leave it out, or set `algorithm = \"token-bucket\"`";
            self.refuse("burst", "only means something to a token bucket", hint);
        }
        if table.family == Some(Family::Quota) && algorithm != Algorithm::FixedWindow {
            let hint = "set `algorithm = \"fixed-window\"`";
            self.refuse("family", "`quota` needs fixed windows", hint);
        }
        match BucketSpec::new(
            algorithm,
            rate.limit,
            rate.window,
            table.burst.map(|burst| burst.0),
        ) {
            Ok(spec) => Some(spec),
            Err(error) => {
                self.spec_error(error);
                None
            }
        }
    }

    fn spec_error(&mut self, error: SpecError) {
        let (key, hint) = match error {
            SpecError::CalendarNeedsFixedWindow => (
                "algorithm",
                "set `algorithm = \"fixed-window\"`, or leave it out",
            ),
            SpecError::ZeroWindow | SpecError::WindowTooLong => ("rate", "choose another window"),
            SpecError::FigureTooLarge => ("rate", "lower it"),
            SpecError::RateTooHigh => (
                "rate",
                "use `sliding-wheel` or `fixed-window`, or count in larger units",
            ),
            SpecError::BurstTooLong => ("burst", "lower `burst` or raise `rate`"),
        };
        self.refuse(key, &format!("cannot be: {error}"), hint);
    }
}

fn conditions(table: &LimitTable) -> Conditions<'_> {
    Conditions {
        country: table.country.as_deref(),
        not_country: table.not_country.as_deref(),
        asn: table.asn.as_deref(),
        network_kind: table.network_kind,
    }
}

fn define(table: LimitTable, by: Vec<Dimension>, spec: BucketSpec, standing: Standing) -> LimitDef {
    let family = table.family.unwrap_or(match spec.algorithm() {
        Algorithm::FixedWindow => Family::Quota,
        _ => Family::Limit,
    });
    LimitDef {
        descriptor: descriptors::rule(&table, standing),
        challenge: challenged::extra(&table),
        classes: table.class.map(|list| list.0).unwrap_or_default(),
        operations: table.operation.map(|list| list.0).unwrap_or_default(),
        client_type: table.client_type,
        bots_only: table.bot,
        throttle: table.throttle,
        cost: table.cost,
        accuracy: table.accuracy,
        on_exceed: match (table.shadow, table.overdraft) {
            (true, _) => OnExceed::Report,
            (false, Overdraft::Never) => OnExceed::Deny,
            (false, Overdraft::WhileAnyLeft | Overdraft::Always) => OnExceed::Overdraft,
        },
        charged_anyway: table.overdraft == Overdraft::Always,
        on_store_failure: table.failure,
        family,
        unit: table.unit,
        warn_at: table.warn_at.map(|shares| shares.0).unwrap_or_default(),
        max_share: table.max_share.map(|share| share.0),
        on_expiry: table.on_expiry,
        under_attack: table.under_attack.map(|percent| percent.0),
        ..LimitDef::new(&table.name, by, spec)
    }
}
