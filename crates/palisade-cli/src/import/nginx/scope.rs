//! Collects zones from directives, and the limits that apply to each location.

use std::collections::BTreeMap;

use super::tree::Directive;
use crate::import::problem::{Place, Problem};

/// A `limit_req_zone`.
#[derive(Clone, Debug)]
pub(super) struct Zone {
    pub(super) key: String,
    /// The rate in this policy's form, `10/s` or `30/min`.
    pub(super) rate: String,
    /// True if nginx, which counts in thousandths of a request a second, rounds the rate down.
    pub(super) is_rounded: bool,
    pub(super) comments: Vec<String>,
}

/// A `limit_req` and the directives that affect it.
#[derive(Clone, Debug)]
pub(super) struct LimitReq {
    pub(super) place: Place,
    pub(super) zone: String,
    pub(super) burst: u32,
    /// True if requests beyond the rate are delayed.
    pub(super) delays: bool,
    pub(super) dry_run: bool,
    pub(super) comments: Vec<String>,
}

/// A location and the limits that apply to it.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) place: Place,
    /// A pattern as routes have it; `None` for a regular expression.
    pub(super) pattern: Option<String>,
    pub(super) limits: Vec<LimitReq>,
}

/// The relevant parts of a configuration.
#[derive(Debug, Default)]
pub(super) struct NginxConfig {
    pub(super) zones: BTreeMap<String, Zone>,
    /// Variables that `map` or `geo` define.
    pub(super) made_variables: Vec<String>,
    /// The limits of each server outside of its locations, and its locations.
    pub(super) servers: Vec<(Place, Vec<LimitReq>, Vec<Location>)>,
    /// Directives that stay in nginx.
    pub(super) stays: Vec<(Place, Vec<String>)>,
}

pub(super) fn find(directives: &[Directive], problems: &mut Vec<Problem>) -> NginxConfig {
    let mut finder = Finder {
        found: NginxConfig::default(),
        problems,
    };
    finder.zones(directives);
    finder.block(directives, &Around::default());
    finder.found
}

/// The settings that a block inherits.
#[derive(Clone, Default)]
struct Around {
    limits: Vec<LimitReq>,
    dry_run: bool,
}

struct Finder<'a> {
    found: NginxConfig,
    problems: &'a mut Vec<Problem>,
}

impl Finder<'_> {
    fn refuse(&mut self, place: &Place, message: &str, hint: &str) {
        self.problems
            .push(Problem::new(place.clone(), message, hint));
    }

    /// Collects zones, defined variables and directives that stay in nginx, on all levels.
    fn zones(&mut self, directives: &[Directive]) {
        for one in directives {
            match one.name.as_str() {
                "limit_req_zone" => self.zone(one),
                "map" => self
                    .found
                    .made_variables
                    .extend(one.arguments.get(1).cloned()),
                "geo" => self
                    .found
                    .made_variables
                    .extend(one.arguments.last().cloned()),
                "limit_conn" | "limit_conn_zone" => {
                    let stays = (one.place.clone(), one.comments.clone());
                    self.found.stays.push(stays);
                }
                _ => {}
            }
            self.zones(&one.block);
        }
    }

    fn zone(&mut self, one: &Directive) {
        let named = |name: &str| {
            let found = one
                .arguments
                .iter()
                .find_map(|word| word.strip_prefix(name));
            found.map(str::to_owned)
        };
        let zone = named("zone=");
        let name = zone.as_deref().and_then(|zone| zone.split(':').next());
        let rate = named("rate=").and_then(|rate| rate_of(&rate));
        match (one.arguments.first(), name, rate) {
            (Some(key), Some(name), Some((rate, is_rounded))) => {
                let zone = Zone {
                    key: key.clone(),
                    rate,
                    is_rounded,
                    comments: one.comments.clone(),
                };
                self.found.zones.insert(name.to_owned(), zone);
            }
            _ => {
                let hint = "write `limit_req_zone KEY zone=NAME:SIZE rate=Nr/s` or `Nr/m`";
                self.refuse(&one.place, "`limit_req_zone` cannot be read", hint);
            }
        }
    }

    fn block(&mut self, directives: &[Directive], around: &Around) {
        let inside = self.around(directives, around);
        for one in directives {
            match one.name.as_str() {
                "http" => self.block(&one.block, &inside),
                "server" => {
                    let own = self.around(&one.block, &inside);
                    let mut locations = Vec::new();
                    self.locations(&one.block, &own, &mut locations);
                    let server = (one.place.clone(), own.limits, locations);
                    self.found.servers.push(server);
                }
                _ => {}
            }
        }
    }

    fn locations(&mut self, directives: &[Directive], around: &Around, found: &mut Vec<Location>) {
        for one in directives.iter().filter(|one| one.name == "location") {
            let mut own = self.around(&one.block, around);
            for limit in &mut own.limits {
                if one.block.iter().any(|inner| inner.place == limit.place) {
                    limit.comments.splice(0..0, one.comments.iter().cloned());
                }
            }
            self.locations(&one.block, &own, found);
            if one
                .arguments
                .first()
                .is_some_and(|path| path.starts_with('@'))
            {
                continue;
            }
            found.push(Location {
                place: one.place.clone(),
                pattern: pattern(&one.arguments),
                limits: own.limits,
            });
        }
    }

    /// Returns the settings of a block: its own `limit_req`s, else those of the block around it.
    fn around(&mut self, directives: &[Directive], around: &Around) -> Around {
        let dry_run = directives
            .iter()
            .find(|one| one.name == "limit_req_dry_run");
        let dry_run = dry_run.map_or(around.dry_run, |one| one.arguments == ["on"]);
        let own: Vec<LimitReq> = directives
            .iter()
            .filter(|one| one.name == "limit_req")
            .filter_map(|one| self.limit_req(one))
            .collect();
        let mut limits = if own.is_empty() {
            around.limits.clone()
        } else {
            own
        };
        for limit in &mut limits {
            limit.dry_run = dry_run;
        }
        Around { limits, dry_run }
    }

    fn limit_req(&mut self, one: &Directive) -> Option<LimitReq> {
        let named = |name: &str| {
            let mut found = one.arguments.iter();
            found.find_map(|word| word.strip_prefix(name))
        };
        let zone = named("zone=").filter(|zone| self.found.zones.contains_key(*zone));
        let burst = named("burst=").map_or(Some(0), |burst| burst.parse().ok());
        let (Some(zone), Some(burst)) = (zone, burst) else {
            let hint = "name a zone of a `limit_req_zone`: `limit_req zone=NAME burst=N nodelay`";
            self.refuse(&one.place, "`limit_req` cannot be read", hint);
            return None;
        };
        Some(LimitReq {
            place: one.place.clone(),
            zone: zone.to_owned(),
            burst,
            delays: burst > 0 && !one.arguments.iter().any(|word| word == "nodelay"),
            dry_run: false,
            comments: one.comments.clone(),
        })
    }
}

/// Returns the rate in this policy's form, and whether nginx rounds it.
fn rate_of(text: &str) -> Option<(String, bool)> {
    let (count, unit) = text.split_once("r/")?;
    let count: u32 = count.parse().ok().filter(|count| *count > 0)?;
    match unit {
        "s" => Some((format!("{count}/s"), false)),
        "m" => Some((
            format!("{count}/min"),
            !(u64::from(count) * 1_000).is_multiple_of(60),
        )),
        _ => None,
    }
}

/// Returns the pattern of a location: `= /x` is that path, `/x` and `^~ /x` are a prefix. Regular
/// expressions have none.
fn pattern(arguments: &[String]) -> Option<String> {
    match arguments {
        [path] if path.starts_with('/') => Some(format!("{path}*")),
        [sign, path] if sign == "=" => Some(path.clone()),
        [sign, path] if sign == "^~" => Some(format!("{path}*")),
        _ => None,
    }
}
