//! Risks in the servers' own settings (F-EVICT), as the servers report them.
//!
//! Nearly every user may call `INFO`; hosted servers often refuse `CONFIG`. What only `CONFIG`
//! shows is then left out, and it is not asked for again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use redis::{Pipeline, Value};

use crate::StoreRisks;

/// Longest answer to `INFO` that is read; that of a server with every module is far shorter.
const INFO_BYTES_MAX: usize = 256 * 1024;

/// Report of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ServerReport {
    /// Id of one run of the server: its counters start anew with the next run.
    run: String,
    evicts: bool,
    evicted_keys: u64,
    has_replicas: bool,
    /// False only if the server writes neither a log nor snapshots.
    is_saved: bool,
}

/// Risks of all servers together.
#[derive(Default)]
pub(super) struct RiskWatch {
    summary: Mutex<Summary>,
    hides_settings: AtomicBool,
}

#[derive(Default)]
struct Summary {
    risks: Option<StoreRisks>,
    /// Dropped keys of each run, as they were last seen.
    evicted: HashMap<String, u64>,
}

impl RiskWatch {
    /// The risks as they were last seen.
    pub(super) fn risks(&self) -> Option<StoreRisks> {
        self.summary.lock().risks
    }

    /// Commands that ask a server about its risks. After a server has refused to show its
    /// settings, the commands leave them out: each refusal would be a line in its ACL log.
    pub(super) fn question(&self) -> Pipeline {
        let mut pipe = Pipeline::with_capacity(2);
        pipe.cmd("INFO");
        if !self.hides_settings.load(Relaxed) {
            pipe.cmd("CONFIG").arg("GET").arg("save");
        }
        pipe
    }

    /// Takes in the answers of all servers.
    pub(super) fn learn(&self, answers: Vec<Vec<Value>>) {
        let mut reports = Vec::new();
        for answer in answers {
            let mut answer = answer.into_iter();
            let info = answer.next().unwrap_or(Value::Nil);
            let settings = answer.next().and_then(|settings| {
                let shown = settings.extract_error();
                if shown.is_err() {
                    self.hides_settings.store(true, Relaxed);
                }
                shown.ok()
            });
            let Some(report) = read(info, settings) else {
                return;
            };
            reports.push(report);
        }
        if !reports.is_empty() {
            self.summary.lock().take(reports);
        }
    }
}

impl Summary {
    /// Replaces the reports. Keys that a server dropped before it was seen for the first time are
    /// not counted.
    fn take(&mut self, reports: Vec<ServerReport>) {
        let before = self.risks.map_or(0, |risks| risks.evicted_keys);
        let dropped: u64 = reports
            .iter()
            .filter_map(|server| {
                let last = self.evicted.get(&server.run)?;
                Some(server.evicted_keys.saturating_sub(*last))
            })
            .sum();
        self.risks = Some(StoreRisks {
            eviction: reports.iter().any(|server| server.evicts),
            unsaved_replication: reports
                .iter()
                .any(|server| server.has_replicas && !server.is_saved),
            evicted_keys: before.saturating_add(dropped),
        });
        let counted = reports.into_iter().map(|one| (one.run, one.evicted_keys));
        self.evicted = counted.collect();
    }
}

/// Reads `INFO` and, if the server shows it, the schedule of snapshots.
fn read(info: Value, snapshots: Option<Value>) -> Option<ServerReport> {
    let text: String = redis::from_redis_value(info).ok()?;
    let text = text.get(..INFO_BYTES_MAX).unwrap_or(&text);
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
    let policy = field("maxmemory_policy")?;
    let writes_log = number("aof_enabled") == Some(1);
    Some(ServerReport {
        run: field("run_id").unwrap_or_default().to_owned(),
        // Also without `maxmemory`: nothing is dropped today, but the first operator who sets it
        // would find out too late.
        evicts: policy != "noeviction",
        evicted_keys: number("evicted_keys").unwrap_or(0),
        has_replicas: number("connected_slaves").is_some_and(|count| count > 0),
        is_saved: writes_log || snapshots.is_none_or(takes_snapshots),
    })
}

/// Reads `CONFIG GET save`: a name and its value, which is empty if no snapshot is ever taken.
fn takes_snapshots(answer: Value) -> bool {
    let pairs: Option<HashMap<String, String>> = redis::from_redis_value(answer).ok();
    let save = pairs.and_then(|mut pairs| pairs.remove("save"));
    save.is_none_or(|points| !points.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(info: &str, snapshots: Option<&str>) -> Option<ServerReport> {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let snapshots = snapshots.map(|points| Value::Array(vec![text("save"), text(points)]));
        read(text(info), snapshots)
    }

    fn info(run: &str, policy: &str, evicted: u64) -> String {
        format!(
            "# Server\r\nrun_id:{run}\r\n# Memory\r\nmaxmemory:0\r\n\
             maxmemory_policy:{policy}\r\naof_enabled:0\r\nconnected_slaves:1\r\n\
             evicted_keys:{evicted}\r\n"
        )
    }

    fn learned(watch: &RiskWatch, servers: &[String]) -> StoreRisks {
        let reports = servers.iter().filter_map(|info| said(info, Some("3600 1")));
        watch.summary.lock().take(reports.collect());
        watch.risks().unwrap()
    }

    #[test]
    fn f_evict_only_noeviction_keeps_every_key() {
        for (policy, evicts) in [
            ("noeviction", false),
            ("volatile-lru", true),
            ("allkeys-lfu", true),
            ("volatile-ttl", true),
        ] {
            assert_eq!(said(&info("a", policy, 0), None).unwrap().evicts, evicts);
        }
        assert_eq!(said("# Server\r\nrun_id:a\r\n", None), None);
    }

    #[test]
    fn f_evict_replicas_of_a_server_that_saves_nothing_are_a_risk() {
        let info = info("a", "noeviction", 0);
        let is_saved = |snapshots| said(&info, snapshots).unwrap().is_saved;
        assert!(!is_saved(Some("")));
        assert!(is_saved(Some("3600 1 300 100")));
        assert!(is_saved(None), "what cannot be seen is not held against it");
        let with_log = info.replace("aof_enabled:0", "aof_enabled:1");
        assert!(said(&with_log, Some("")).unwrap().is_saved);
    }

    #[test]
    fn f_evict_dropped_keys_are_counted_from_the_first_look_at_each_server() {
        let watch = RiskWatch::default();
        let node = |run: &str, evicted| info(run, "volatile-lru", evicted);
        let dropped = |servers: &[String]| learned(&watch, servers).evicted_keys;
        assert_eq!(dropped(&[node("a", 500), node("b", 0)]), 0);
        assert_eq!(dropped(&[node("a", 507), node("b", 1)]), 8);
        // A replaced server starts with a count of its own.
        assert_eq!(dropped(&[node("a", 507), node("c", 90)]), 8);
        assert_eq!(dropped(&[node("a", 508), node("c", 91)]), 10);
    }
}
