//! Converts zones and locations to routes and limits, with the differences.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::key::{self, Meaning};
use super::scope::{LimitReq, Location, NginxConfig};
use crate::import::draft::{Draft, Figure, Limit, Part, Subject};
use crate::import::names::Names;
use crate::import::problem::{Place, Problem};
use crate::import::render::quoted;

const DELAYS: &str = "nginx holds requests beyond the rate back until they fit; here nothing \
    waits: as many pass at once, and the next is refused";
const APART: &str = "nginx counts all uses of a zone together; those with another `burst` or \
    `limit_req_dry_run` are counted apart here";
const ROUNDED: &str = "nginx rounds a rate down to thousandths of a request a second: a little \
    less passes there";
const STAYS: &str = "connections are nginx's own business: keep `limit_conn` there";

/// A route: its pattern and its limits.
struct Spot {
    pattern: String,
    limits: Vec<LimitReq>,
}

impl Spot {
    /// Returns a path that matches this pattern and none of the others, for the policy case.
    fn path(&self, all: &[Self]) -> String {
        let Some(start) = self.pattern.strip_suffix('*') else {
            return self.pattern.clone();
        };
        let comes_here = |path: &String| {
            let others = all.iter().filter(|other| other.pattern != self.pattern);
            let mut closer = others.filter(|other| match other.pattern.strip_suffix('*') {
                Some(longer) => longer.len() > start.len() && path.starts_with(longer),
                None => other.pattern == *path,
            });
            closer.next().is_none()
        };
        let ends = std::iter::once(String::new()).chain((0..10).map(|n| n.to_string()));
        let mut candidates = ends.map(|end| format!("{start}{end}"));
        candidates
            .find(comes_here)
            .unwrap_or_else(|| start.to_owned())
    }
}

/// Uses of a zone that become one limit here.
type Uses = BTreeMap<(String, u32, bool), (LimitReq, Vec<String>, String)>;

pub(super) fn limits(draft: &mut Draft, found: &NginxConfig) -> Result<(), Problem> {
    for (place, comments) in &found.stays {
        let part = Part::LeftOut(comments.clone(), place.clone(), STAYS.to_owned());
        draft.parts.push(part);
    }
    let mut classes = Names::default();
    let mut uses = Uses::new();
    let spots = spots(draft, found);
    let paths: Vec<String> = spots.iter().map(|spot| spot.path(&spots)).collect();
    for (spot, path) in spots.into_iter().zip(paths) {
        let class = classes.unique(&class_name(&spot.pattern));
        let pattern = quoted(&spot.pattern);
        let class_quoted = quoted(&class);
        let _ = write!(
            draft.settings,
            "\n[[route]]\npath = {pattern}\nclass = {class_quoted}\n"
        );
        for limit in spot.limits {
            let key = (limit.zone.clone(), limit.burst, limit.dry_run);
            let entry = uses.entry(key);
            let (_, classes, _) = entry.or_insert_with(|| (limit, Vec::new(), path.clone()));
            classes.push(class.clone());
        }
    }
    let mut names = Names::default();
    names.unique("not-limited");
    let mut made: Vec<Limit> = Vec::new();
    for ((zone, ..), (limit, classes, path)) in &uses {
        let is_apart = uses.keys().filter(|(other, ..)| other == zone).count() > 1;
        made.extend(convert(
            draft, found, limit, classes, path, is_apart, &mut names,
        ));
    }
    made.into_iter().try_for_each(|limit| draft.limit(limit))
}

/// Returns the routes of the one server that has limits. A second such server is reported: the
/// policy cannot tell hosts apart, because imported routes name none.
fn spots(draft: &mut Draft, found: &NginxConfig) -> Vec<Spot> {
    let limits_any = |locations: &[Location]| locations.iter().any(|one| !one.limits.is_empty());
    let mut servers = found
        .servers
        .iter()
        .filter(|(_, own, locations)| !own.is_empty() || limits_any(locations));
    let Some((_, own, locations)) = servers.next() else {
        return Vec::new();
    };
    for (place, ..) in servers {
        let message = "another `server` has limits too, and requests have no host here";
        let hint = "import each server from a file of its own, and serve them apart";
        draft
            .unsupported
            .push(Problem::new(place.clone(), message, hint));
    }
    let mut spots = Vec::new();
    if locations
        .iter()
        .all(|one| one.pattern.as_deref() != Some("/*"))
    {
        spots.push(Spot {
            pattern: "/*".to_owned(),
            limits: own.clone(),
        });
    }
    for location in locations {
        match &location.pattern {
            Some(pattern) => spots.push(Spot {
                pattern: pattern.clone(),
                limits: location.limits.clone(),
            }),
            None => draft.unsupported.push(regular_expression(&location.place)),
        }
    }
    spots
}

fn regular_expression(place: &Place) -> Problem {
    let message = "a location with a regular expression has no counterpart";
    let hint = "write it as paths or beginnings of paths: `location /x` or `location = /x`";
    Problem::new(place.clone(), message, hint)
}

fn class_name(pattern: &str) -> String {
    let words = pattern.trim_matches(['/', '*']).replace('/', "-");
    if words.is_empty() {
        "everything-else".to_owned()
    } else {
        words
    }
}

fn convert(
    draft: &mut Draft,
    found: &NginxConfig,
    limit: &LimitReq,
    classes: &[String],
    path: &str,
    is_apart: bool,
    names: &mut Names,
) -> Option<Limit> {
    let zone = found.zones.get(&limit.zone)?;
    let Meaning::By(by, known) = key::meaning(&zone.key) else {
        draft
            .unsupported
            .push(unknown_key(&limit.place, &zone.key, found));
        return None;
    };
    let mut differences: Vec<String> = known.into_iter().map(str::to_owned).collect();
    if zone.is_rounded {
        differences.push(ROUNDED.to_owned());
    }
    if limit.delays {
        differences.push(DELAYS.to_owned());
    }
    if is_apart {
        differences.push(APART.to_owned());
    }
    let comments = zone.comments.iter().chain(&limit.comments).cloned();
    Some(Limit {
        comments: comments.collect(),
        differences,
        place: limit.place.clone(),
        name: names.unique(&limit.zone),
        subject: Subject::Requests {
            classes: classes.to_vec(),
            by,
            path: path.to_owned(),
        },
        figure: Figure::Bucket {
            rate: zone.rate.clone(),
            // nginx does not count the first request as part of the burst.
            burst: limit.burst.saturating_add(1),
        },
        shadow: limit.dry_run,
        replaces: Vec::new(),
    })
}

fn unknown_key(place: &Place, key: &str, found: &NginxConfig) -> Problem {
    let is_made = found.made_variables.iter().any(|name| key.contains(name));
    let hint = if is_made {
        "a variable of `map` or `geo` that lets some addresses through is an allowlist here: use \
         `$binary_remote_addr` as the key, and `palisade allowlist add`"
    } else {
        "what can be taken over is `$binary_remote_addr`, `$remote_addr`, `$uri`, `$remote_user` \
         and `$server_name`: choose what the limit counts by"
    };
    let message = "the key of its zone has a variable that requests do not have here";
    Problem::new(place.clone(), message, hint)
}
