//! Renders the counters as the OpenMetrics text of one scrape.

use std::fmt;
use std::sync::atomic::Ordering;

use palisade_core::geo::DatabaseState;
use palisade_store::StoreRisks;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::registry::Registry;

use super::catalogue::{self as names, Kind, MetricDescription};
use super::cells::LabelCount;
use super::{COUNTERS, Metrics};
use crate::engine::{CandidateReport, CauseCounts, Comparison, Figures, LoadFigures};

/// Hexadecimal digits of the secret's fingerprint that are shown.
const SECRET_DIGITS: usize = 8;

/// One series: its label values and its value.
type Series = (Vec<String>, u64);

#[derive(Debug)]
enum Value {
    Series(Vec<Series>),
    Histogram(f64, u64, Vec<(f64, u64)>),
}

/// All values of one scrape.
#[derive(Debug)]
struct Snapshot(Vec<(MetricDescription, Value)>);

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (metric, value) in &self.0 {
            let kind = metric.kind.metric_type();
            let name = metric.registered_name();
            let family = encoder.encode_descriptor(name, metric.help, None, kind)?;
            encode_value(metric, value, family)?;
        }
        Ok(())
    }
}

fn encode_value(
    metric: &MetricDescription,
    value: &Value,
    mut encoder: MetricEncoder<'_>,
) -> fmt::Result {
    let all = match value {
        Value::Histogram(sum, count, buckets) => {
            return encoder.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None);
        }
        Value::Series(all) => all,
    };
    for (values, number) in all {
        if metric.labels.is_empty() {
            encode_number(metric.kind, *number, &mut encoder)?;
            continue;
        }
        let values = values.iter().map(String::as_str);
        let labels: Vec<(&str, &str)> = metric.labels.iter().copied().zip(values).collect();
        encode_number(metric.kind, *number, &mut encoder.encode_family(&labels)?)?;
    }
    Ok(())
}

fn encode_number(kind: Kind, number: u64, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
    match kind {
        Kind::Gauge => encoder.encode_gauge(&number),
        Kind::Counter | Kind::Histogram => {
            encoder.encode_counter::<NoLabelSet, _, u64>(&number, None)
        }
    }
}

impl Metrics {
    /// Returns the text of `/metrics`: the counters, and the engine's current gauges.
    pub fn render(&self, figures: &Figures) -> String {
        let snapshot = Snapshot(
            names::ALL
                .iter()
                .map(|metric| (*metric, self.value(metric, figures)))
                .collect(),
        );
        let mut registry = Registry::default();
        registry.register_collector(Box::new(snapshot));
        let mut text = String::with_capacity(16 * 1024);
        // Writing to a string does not fail.
        let _ = encode(&mut text, &registry);
        text
    }

    fn value(&self, metric: &MetricDescription, figures: &Figures) -> Value {
        let one = |number: u64| Value::Series(vec![(Vec::new(), number)]);
        match *metric {
            names::REQUESTS => series(self.cells.requests()),
            names::EXCEEDED => series(self.cells.exceeded()),
            names::SHADOW_EXCEEDED => series(self.cells.shadow()),
            names::DESCRIPTORS => series(self.descriptors.read()),
            names::COUNTRY_REQUESTS => series(self.geo.countries()),
            names::NETWORK_REQUESTS => series(self.geo.networks()),
            names::PLACES_STALE => databases(figures, |one| u64::from(one.error.is_some())),
            names::PLACES_REFUSED => databases(figures, |one| one.refused),
            names::STORE_LATENCY => histogram(self.latency.read()),
            names::REFILL_SECONDS => histogram(self.refill.read()),
            names::ORG_QUOTA_REMAINING => labelled(self.orgs.read()),
            names::STORE_QUEUE_DEPTH => one(figures.store.queue_depth),
            names::STORE_HEALTHY => one(u64::from(figures.store_answers)),
            names::STORE_RISK => risks(figures.store.risks),
            names::STORE_EVICTED => one(figures.store.risks.map_or(0, |risks| risks.evicted_keys)),
            names::BREAKER_STATE => by_policy(&figures.circuits),
            names::POLICY_MODE => by_policy(&figures.modes),
            names::DEGRADATION_LEVEL => one(u64::from(figures.degradation_level)),
            names::POLICY_CACHE_SIZE => one(figures.tenants.cached),
            names::POLICY_REFRESH_FAILURES => one(figures.tenants.refresh_failures),
            names::POLICY_REVISION => one(figures.policy_revision),
            names::CANDIDATE_DECISIONS => candidate(figures, verdicts),
            names::CANDIDATE_DIFFERENCES => candidate(figures, differences),
            names::ENABLED => one(u64::from(figures.enabled)),
            names::TRACKED_KEYS => one(figures.store.tracked_keys + figures.local_keys),
            names::EVICTIONS => Value::Series(vec![
                (vec!["capacity".to_owned()], figures.store.evictions),
                (vec!["expired".to_owned()], figures.store.expired),
            ]),
            names::USED_PERCENT => one(figures.store.used_percent),
            names::UNSAVED => one(u64::from(figures.store.is_unsaved)),
            names::LAST_BACKUP => {
                let at = self.last_backup.get().map(|last| (last.0)());
                Value::Series(at.map(|at| (Vec::new(), at)).into_iter().collect())
            }
            names::RESERVATIONS => {
                let outcomes = figures.reservations.outcomes.iter();
                let named = outcomes.map(|(name, count)| (vec![(*name).to_owned()], *count));
                Value::Series(named.collect())
            }
            names::SPEND => {
                let results = figures.reservations.spends.iter();
                let named = results.map(|(name, count)| (vec![(*name).to_owned()], *count));
                Value::Series(named.collect())
            }
            names::RESERVATIONS_WAITING => one(figures.reservations.waiting),
            names::OVERDRAFT => {
                let units = figures.reservations.overdraft.iter();
                let named = units.map(|(unit, over)| (vec![unit.to_string()], *over));
                Value::Series(named.collect())
            }
            names::THRESHOLDS => {
                let thresholds = self.thresholds.lock();
                let counts = thresholds.iter();
                let named = counts.map(|((limit, share), count)| {
                    (vec![limit.to_string(), share.clone()], *count)
                });
                Value::Series(named.collect())
            }
            names::CHALLENGES => series(self.challenges.read()),
            names::UNDER_ATTACK => {
                let classes = figures.attacks.iter();
                labelled(
                    classes
                        .map(|(class, is_on)| (class.clone(), u64::from(*is_on)))
                        .collect(),
                )
            }
            names::LOAD_LIMIT => load(figures, |load| u64::from(load.limit)),
            names::LOAD_IN_PROGRESS => load(figures, |load| u64::from(load.in_progress)),
            names::LOAD_ROUND_TRIP => {
                let series = figures.load.map(|load| {
                    [("smoothed", load.round_trip_us), ("floor", load.floor_us)]
                        .map(|(of, us)| (of.to_owned(), us))
                        .to_vec()
                });
                labelled(series.unwrap_or_default())
            }
            names::UPSTREAM_UP => labelled(self.instances.up()),
            names::UPSTREAM_FAILURES => series(self.instances.failures()),
            names::GUARD_ONLY_SUCCESSES => labelled(self.only_successes.read()),
            names::LAST_MATCHED => labelled(self.limits.read()),
            names::INFO => Value::Series(vec![(self.info(), 1)]),
            names::RISKS => one(self.risks.load(Ordering::Relaxed)),
            names::DEFAULT_DENY_LAST => one(self.default_deny_last.load(Ordering::Relaxed)),
            names::OVERFLOWED => one(figures.store.overflowed),
            _ => self.counted(metric),
        }
    }

    /// Returns the version, and the start of the secret's fingerprint: enough to tell two secrets
    /// apart.
    fn info(&self) -> Vec<String> {
        let mut secret = self.keyring.fingerprints().current.hex();
        secret.truncate(SECRET_DIGITS);
        vec![env!("CARGO_PKG_VERSION").to_owned(), secret]
    }

    /// Returns a plain or labelled counter of this process, or one of the audit's.
    fn counted(&self, metric: &MetricDescription) -> Value {
        let own = COUNTERS
            .iter()
            .enumerate()
            .filter(|(_, counter)| counter.metric == *metric)
            .map(|(index, counter)| {
                let labels = counter.labels.iter().map(|label| (*label).to_owned());
                (labels.collect(), self.read(index))
            });
        let audit = self.audit_series(metric);
        Value::Series(own.chain(audit).collect())
    }

    fn audit_series(&self, metric: &MetricDescription) -> Vec<Series> {
        let Some(counts) = self.audit.get() else {
            return Vec::new();
        };
        match *metric {
            names::AUDIT_EVENTS => vec![(Vec::new(), counts.written())],
            names::AUDIT_SINK_ERRORS => vec![(Vec::new(), counts.sink_errors())],
            names::AUDIT_DROPPED => vec![
                (vec!["security".to_owned()], counts.dropped_security()),
                (vec!["ordinary".to_owned()], counts.dropped_ordinary()),
            ],
            _ => Vec::new(),
        }
    }
}

/// Returns the risks of the store, or no series if the store does not report them.
fn risks(risks: Option<StoreRisks>) -> Value {
    let series = risks.map(|risks| {
        [
            ("eviction", risks.eviction),
            ("unsaved_replication", risks.unsaved_replication),
        ]
    });
    let series = series.into_iter().flatten();
    labelled(
        series
            .map(|(risk, is_run)| (risk.to_owned(), u64::from(is_run)))
            .collect(),
    )
}

fn databases(figures: &Figures, number: fn(&DatabaseState) -> u64) -> Value {
    let databases = figures.geo.iter();
    labelled(
        databases
            .map(|one| (one.name.to_owned(), number(one)))
            .collect(),
    )
}

/// A gauge of the limit on requests in progress, or no series if there is no such limit.
fn load(figures: &Figures, read: fn(&LoadFigures) -> u64) -> Value {
    let number = figures.load.as_ref().map(read);
    Value::Series(
        number
            .map(|number| (Vec::new(), number))
            .into_iter()
            .collect(),
    )
}

fn candidate(figures: &Figures, read: fn(&CandidateReport) -> Vec<Series>) -> Value {
    let report = figures.candidate.as_ref();
    Value::Series(report.map(read).unwrap_or_default())
}

fn verdicts(report: &CandidateReport) -> Vec<Series> {
    let all = Comparison::ALL.iter();
    all.map(|verdict| {
        let labels = vec![verdict.name().to_owned()];
        (labels, report.verdicts.of(*verdict))
    })
    .collect()
}

fn differences(report: &CandidateReport) -> Vec<Series> {
    let of = |row: &CauseCounts, verdict: Comparison, count| {
        (vec![row.name.clone(), verdict.name().to_owned()], count)
    };
    let rows = report.causes.iter().flat_map(|row| {
        [
            of(row, Comparison::NewlyDenied, row.newly_denied),
            of(row, Comparison::NewlyAllowed, row.newly_allowed),
        ]
    });
    rows.filter(|(_, count)| *count > 0).collect()
}

fn series<const N: usize>(counted: Vec<LabelCount<N>>) -> Value {
    let all = counted
        .into_iter()
        .map(|one| (one.labels.to_vec(), one.count));
    Value::Series(all.collect())
}

fn labelled(all: Vec<(String, u64)>) -> Value {
    let all = all.into_iter();
    Value::Series(all.map(|(label, number)| (vec![label], number)).collect())
}

fn histogram((sum, count, buckets): (f64, u64, Vec<(f64, u64)>)) -> Value {
    Value::Histogram(sum, count, buckets)
}

fn by_policy(states: &[(&'static str, u8)]) -> Value {
    let series = states.iter();
    Value::Series(
        series
            .map(|(name, state)| (vec![(*name).to_owned()], u64::from(*state)))
            .collect(),
    )
}
