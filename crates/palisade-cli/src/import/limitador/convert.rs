//! Converts limits of limitador to limits of a domain, with the differences.

use palisade_core::key::SEGMENTS_MAX;
use palisade_core::policy::{EntryMatch, ValueMatch};

use super::condition::Test;
use super::read;
use crate::import::draft::{By, Draft, Figure, Limit, Subject};
use crate::import::kept::KeptComments;
use crate::import::names::Names;
use crate::import::problem::Problem;

const AMONG_OTHERS: &str = "limitador matches a descriptor that holds these entries among others, \
    in any order; here it has exactly these, in this order: compare with the actions of Envoy, or \
    import again with `--entries` and the keys that Envoy sends";
const SLIDING: &str = "a window of limitador begins with its first request, and around its end \
    twice the figure passes; here never more than the figure in any window of that length";
const ALIGNED: &str = "a window of limitador begins with its first request; here windows are \
    aligned to the clock";
const EXCEPT: &str = "this stands in for what a condition with `!=` leaves out";

/// A limit, the values that it leaves out, and its place in the source.
struct Pattern<'a> {
    limit: &'a read::Limit,
    entries: Vec<EntryMatch>,
    except: Vec<(usize, String)>,
}

pub(super) fn limits(
    draft: &mut Draft,
    limits: &[read::Limit],
    order: &[String],
    keep_windows: bool,
    kept: &mut KeptComments,
) -> Result<(), Problem> {
    let mut patterns: Vec<Pattern<'_>> = Vec::new();
    for limit in limits {
        match pattern(limit, order) {
            Ok(made) if patterns.iter().any(|other| both_answer(&made, other)) => {
                draft.unsupported.push(overlap(limit));
            }
            Ok(made) => patterns.push(made),
            Err(problem) => draft.unsupported.push(problem),
        }
    }
    let (patterns, hidden) = without_hidden(patterns);
    draft.unsupported.extend(hidden);
    let mut names = Names::default();
    let mut free = Vec::new();
    for made in &patterns {
        let comments = kept.of_item(made.limit.line);
        let limit = convert(made, &mut names, comments, order.is_empty(), keep_windows);
        draft.limit(limit)?;
        for entries in stand_ins(made, &patterns) {
            let one = (made.limit.namespace.clone(), entries);
            if !free.contains(&one) {
                draft.limit(stand_in(made, one.1.clone(), &mut names))?;
                free.push(one);
            }
        }
    }
    Ok(())
}

/// Returns the limits that can be kept together, and a problem for each of the others. A value that
/// a limit leaves out with `!=` is admitted by a limit of its own, which must not hide that value
/// from another limit that counts it.
fn without_hidden(mut patterns: Vec<Pattern<'_>>) -> (Vec<Pattern<'_>>, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut position = 0;
    while let Some(made) = patterns.get(position) {
        if hides_another(made, &patterns) {
            problems.push(hidden(made.limit));
            patterns.remove(position);
        } else {
            position += 1;
        }
    }
    (patterns, problems)
}

fn hides_another(made: &Pattern<'_>, all: &[Pattern<'_>]) -> bool {
    let specificity = |entries: &[EntryMatch]| -> Vec<(u8, usize)> {
        let values = entries.iter().map(|entry| &entry.value);
        values.map(ValueMatch::specificity).collect()
    };
    stand_ins(made, all).into_iter().any(|entries| {
        let free = Pattern {
            limit: made.limit,
            entries,
            except: Vec::new(),
        };
        let others = all.iter().filter(|other| !std::ptr::eq(*other, made));
        let mut met = others.filter(|other| both_answer(&free, other));
        met.any(|other| specificity(&other.entries) < specificity(&free.entries))
    })
}

fn hidden(limit: &read::Limit) -> Problem {
    let message = "what this limit leaves out with `!=` is in part what another limit counts";
    let hint = "here one limit answers a descriptor: let Envoy send a second descriptor for one of \
        them, with a `generic_key` of its own";
    Problem::new(limit.place.clone(), message, hint)
}

fn overlap(limit: &read::Limit) -> Problem {
    let message = "this limit and one before it answer the same descriptors";
    let hint = "limitador would apply both; here one limit answers a descriptor: let Envoy send a \
        second descriptor for one of them, with a `generic_key` of its own";
    Problem::new(limit.place.clone(), message, hint)
}

fn pattern<'a>(limit: &'a read::Limit, order: &[String]) -> Result<Pattern<'a>, Problem> {
    let refuse = |message: &str, hint: &str| Err(Problem::new(limit.place.clone(), message, hint));
    let own = own_keys(limit);
    let keys = if order.is_empty() {
        own.clone()
    } else {
        order.to_vec()
    };
    if keys.is_empty() {
        let hint = "import again with `--entries` and the keys that Envoy sends";
        return refuse("the limit has neither conditions nor variables", hint);
    }
    if own.iter().any(|key| !keys.contains(key)) {
        let hint = "name every key of the descriptor, in the order in which Envoy sends it";
        return refuse("the limit names a key that `--entries` does not have", hint);
    }
    let mut entries = Vec::with_capacity(keys.len());
    let mut except = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        let Some(value) = value(limit, key, at, &mut except) else {
            let hint = "keep one test of each key";
            return refuse("its conditions on one key exclude each other", hint);
        };
        let key = key.as_str().into();
        entries.push(EntryMatch { key, value });
    }
    let open = entries.iter().filter(|entry| entry.value.is_open());
    if open.count() > SEGMENTS_MAX {
        let hint = "leave variables out, or test some keys for a value";
        return refuse("the limit tells too many values apart", hint);
    }
    Ok(Pattern {
        limit,
        entries,
        except,
    })
}

fn own_keys(limit: &read::Limit) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    let tested = limit.terms.iter().map(|term| &term.key);
    for key in tested.chain(&limit.variables) {
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    }
    keys
}

/// Returns the test of a limit for a key; `None` if its tests exclude each other.
fn value(
    limit: &read::Limit,
    key: &str,
    at: usize,
    except: &mut Vec<(usize, String)>,
) -> Option<ValueMatch> {
    let mut value = ValueMatch::Any;
    for term in limit.terms.iter().filter(|term| term.key == key) {
        let wanted = match &term.test {
            Test::Is(text) => ValueMatch::Exact(text.as_str().into()),
            Test::StartsWith(text) if text.is_empty() => ValueMatch::Any,
            Test::StartsWith(text) => ValueMatch::Prefix(text.as_str().into()),
            Test::IsNot(text) => {
                except.push((at, text.clone()));
                continue;
            }
        };
        if value != ValueMatch::Any && value != wanted {
            return None;
        }
        value = wanted;
    }
    Some(value)
}

fn both_answer(one: &Pattern<'_>, other: &Pattern<'_>) -> bool {
    let same_keys = one.entries.len() == other.entries.len()
        && one
            .entries
            .iter()
            .zip(&other.entries)
            .all(|(one, other)| one.key == other.key);
    let meets = one
        .entries
        .iter()
        .zip(&other.entries)
        .all(|(one, other)| overlaps(&one.value, &other.value));
    let is_apart = leaves_out(one, other) || leaves_out(other, one);
    one.limit.namespace == other.limit.namespace && same_keys && meets && !is_apart
}

/// True if `one` leaves out the only value of an entry that `other` matches.
fn leaves_out(one: &Pattern<'_>, other: &Pattern<'_>) -> bool {
    one.except.iter().any(|(at, value)| {
        let tested = other.entries.get(*at).map(|entry| &entry.value);
        tested == Some(&ValueMatch::Exact(value.as_str().into()))
    })
}

fn overlaps(one: &ValueMatch, other: &ValueMatch) -> bool {
    match (one, other) {
        (ValueMatch::Exact(value), wide) | (wide, ValueMatch::Exact(value)) => wide.matches(value),
        (ValueMatch::Prefix(one), ValueMatch::Prefix(other)) => {
            one.starts_with(&**other) || other.starts_with(&**one)
        }
        _ => true,
    }
}

fn convert(
    made: &Pattern<'_>,
    names: &mut Names,
    comments: Vec<String>,
    guessed_order: bool,
    keep_windows: bool,
) -> Limit {
    let limit = made.limit;
    let mut differences = Vec::new();
    if guessed_order {
        differences.push(AMONG_OTHERS.to_owned());
    }
    if limit.max_value > 0 {
        differences.push(if keep_windows { ALIGNED } else { SLIDING }.to_owned());
    }
    let wanted = limit.name.clone().unwrap_or_else(|| name_of(made));
    Limit {
        comments,
        differences,
        place: limit.place.clone(),
        name: names.unique(&wanted),
        subject: Subject::Descriptor {
            domain: limit.namespace.clone(),
            entries: made.entries.clone(),
            by: by(made),
        },
        figure: figure(limit, keep_windows),
        shadow: false,
        replaces: Vec::new(),
    }
}

fn name_of(made: &Pattern<'_>) -> String {
    let keys = made.entries.iter().map(|entry| &*entry.key);
    let keys: Vec<&str> = std::iter::once(made.limit.namespace.as_str())
        .chain(keys)
        .collect();
    keys.join(".")
}

fn by(made: &Pattern<'_>) -> By {
    let open = made.entries.iter().filter(|entry| entry.value.is_open());
    let open: Vec<String> = open.map(|entry| entry.key.to_string()).collect();
    let counts = |key: &String| made.limit.variables.contains(key);
    let apart: Vec<String> = open.iter().filter(|key| counts(key)).cloned().collect();
    match apart.len() {
        count if count == open.len() => By::Each,
        0 => By::Share,
        _ => By::Only(apart),
    }
}

fn figure(limit: &read::Limit, keep_windows: bool) -> Figure {
    if limit.max_value == 0 {
        return Figure::Denies;
    }
    Figure::Window {
        count: limit.max_value,
        window: format!("{}s", limit.seconds),
        fixed: keep_windows,
    }
}

/// Returns the entries that `!=` leaves out, where no other limit has exactly these entries.
fn stand_ins(made: &Pattern<'_>, all: &[Pattern<'_>]) -> Vec<Vec<EntryMatch>> {
    let left_out = made.except.iter().filter_map(|(at, value)| {
        let mut entries = made.entries.clone();
        let entry = entries.get_mut(*at)?;
        if !entry.value.matches(value) {
            return None;
        }
        entry.value = ValueMatch::Exact(value.as_str().into());
        Some(entries)
    });
    let is_answered = |entries: &Vec<EntryMatch>| {
        let mut same = all.iter().filter(|other| other.entries == *entries);
        same.any(|other| other.limit.namespace == made.limit.namespace)
    };
    left_out.filter(|entries| !is_answered(entries)).collect()
}

/// Returns a limit that admits everything.
fn stand_in(made: &Pattern<'_>, entries: Vec<EntryMatch>, names: &mut Names) -> Limit {
    let is_open = entries.iter().any(|entry| entry.value.is_open());
    Limit {
        comments: Vec::new(),
        differences: vec![EXCEPT.to_owned()],
        place: made.limit.place.clone(),
        name: names.unique(&format!("{}.free", name_of(made))),
        subject: Subject::Descriptor {
            domain: made.limit.namespace.clone(),
            entries,
            by: if is_open { By::Share } else { By::Each },
        },
        figure: Figure::Admits,
        shadow: false,
        replaces: Vec::new(),
    }
}
