//! Reads YAML as limits of limitador.

use std::rc::Rc;

use super::condition::{self, Term};
use crate::import::fields::Fields;
use crate::import::problem::{Place, Problem};
use crate::import::yaml::{Node, Value};

#[derive(Clone, Debug)]
pub(super) struct Limit {
    pub(super) line: usize,
    pub(super) place: Place,
    pub(super) namespace: String,
    pub(super) name: Option<String>,
    pub(super) max_value: u32,
    pub(super) seconds: u32,
    pub(super) terms: Vec<Term>,
    pub(super) variables: Vec<String>,
}

/// Returns all limits; those that descriptors cannot express go to `unsupported`.
pub(super) fn limits(
    file: &Rc<str>,
    root: &Node,
    unsupported: &mut Vec<Problem>,
    problems: &mut Vec<Problem>,
) -> Vec<Limit> {
    let items = match &root.value {
        Value::List(items) => items.as_slice(),
        Value::Null => &[],
        _ => {
            let place = Place::new(file, root.line);
            let hint = "name limitador's limits file: each limit begins with `- `";
            problems.push(Problem::new(
                place,
                "the file must be a list of limits",
                hint,
            ));
            &[]
        }
    };
    let read = items
        .iter()
        .filter_map(|item| limit(file, item, unsupported, problems));
    read.collect()
}

fn limit(
    file: &Rc<str>,
    item: &Node,
    unsupported: &mut Vec<Problem>,
    problems: &mut Vec<Problem>,
) -> Option<Limit> {
    let mut fields = Fields::of(file, item, "a limit", problems)?;
    let place = fields.place();
    let namespace = fields.text("namespace", problems).unwrap_or_default();
    if namespace.is_empty() {
        let hint = "add `namespace: NAME`, the domain that Envoy sends";
        problems.push(Problem::new(place.clone(), "`namespace` is missing", hint));
    }
    let max_value = fields.number("max_value", problems).unwrap_or(0);
    let seconds = fields.number("seconds", problems).unwrap_or(0);
    if seconds == 0 {
        let hint = "a window is at least 1 second";
        problems.push(Problem::new(
            place.clone(),
            "`seconds` is missing or zero",
            hint,
        ));
    }
    let name = fields.text("name", problems);
    let id = fields.text("id", problems);
    let conditions = fields.list("conditions", problems);
    let variables = fields.list("variables", problems);
    fields.finish(KNOWN, problems);
    let terms = each(conditions, condition::terms);
    let variables = each(variables, condition::key);
    let (Some(terms), Some(variables)) = (terms, variables) else {
        unsupported.push(no_counterpart(place));
        return None;
    };
    Some(Limit {
        line: item.line,
        place,
        namespace: namespace.to_owned(),
        name: name.or(id).map(str::to_owned),
        max_value,
        seconds,
        terms: terms.into_iter().flatten().collect(),
        variables,
    })
}

fn no_counterpart(place: Place) -> Problem {
    let message = "a condition or variable says more than a descriptor can";
    let hint = "what can be taken over is `descriptors[0]['KEY'] == 'VALUE'`, `!=`, \
        `.startsWith('…')`, joined by `&&`, and variables `descriptors[0]['KEY']`: send the rest \
        as an entry of its own from Envoy";
    Problem::new(place, message, hint)
}

/// Returns the meaning of each text; `None` if any of them has none.
fn each<T>(items: &[Node], meaning: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let read = items.iter().map(|item| match &item.value {
        Value::Scalar(text) => meaning(text),
        _ => None,
    });
    read.collect()
}

const KNOWN: &str = "`id`, `namespace`, `name`, `max_value`, `seconds`, `conditions`, `variables`";
