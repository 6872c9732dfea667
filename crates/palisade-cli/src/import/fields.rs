//! Mappings of an imported file as fields: known fields are taken, all others refused.

use std::rc::Rc;

use super::problem::{Place, Problem};
use super::yaml::{Entry, Node, Value};

/// The entries of one mapping, taken by name.
pub(super) struct Fields<'a> {
    file: &'a Rc<str>,
    line: usize,
    entries: Vec<&'a Entry>,
}

impl<'a> Fields<'a> {
    /// Returns the fields of a mapping.
    pub(super) fn of(
        file: &'a Rc<str>,
        node: &'a Node,
        what: &str,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        match &node.value {
            Value::Map(entries) => Some(Self {
                file,
                line: node.line,
                entries: entries.iter().collect(),
            }),
            _ => {
                let place = Place::new(file, node.line);
                let message = format!("{what} must be a mapping");
                problems.push(Problem::new(place, message, "write `name: value` lines"));
                None
            }
        }
    }

    pub(super) fn place(&self) -> Place {
        Place::new(self.file, self.line)
    }

    /// Removes and returns a field.
    pub(super) fn take(&mut self, name: &str) -> Option<&'a Entry> {
        let at = self.entries.iter().position(|entry| entry.key == name)?;
        Some(self.entries.remove(at))
    }

    /// Takes a text; numbers and booleans are texts too.
    pub(super) fn text(&mut self, name: &str, problems: &mut Vec<Problem>) -> Option<&'a str> {
        let entry = self.take(name)?;
        match &entry.node.value {
            Value::Null => None,
            Value::Scalar(text) => Some(text),
            _ => {
                self.refuse(
                    entry,
                    "must be a single value",
                    "write it after the colon",
                    problems,
                );
                None
            }
        }
    }

    pub(super) fn flag(&mut self, name: &str, problems: &mut Vec<Problem>) -> bool {
        let Some(entry) = self.take(name) else {
            return false;
        };
        match &entry.node.value {
            Value::Null => false,
            Value::Scalar(text) if text.eq_ignore_ascii_case("true") => true,
            Value::Scalar(text) if text.eq_ignore_ascii_case("false") => false,
            _ => {
                self.refuse(
                    entry,
                    "must be `true` or `false`",
                    "write one of them",
                    problems,
                );
                false
            }
        }
    }

    /// Takes a whole number that a limit can hold.
    pub(super) fn number(&mut self, name: &str, problems: &mut Vec<Problem>) -> Option<u32> {
        let entry = self.take(name)?;
        let number = match &entry.node.value {
            Value::Scalar(text) => text.parse().ok(),
            _ => None,
        };
        if number.is_none() {
            let problem = "must be a whole number from 0 to 4294967295";
            self.refuse(entry, problem, "write the figure in digits", problems);
        }
        number
    }

    pub(super) fn list(&mut self, name: &str, problems: &mut Vec<Problem>) -> &'a [Node] {
        let Some(entry) = self.take(name) else {
            return &[];
        };
        match &entry.node.value {
            Value::Null => &[],
            Value::List(items) => items,
            _ => {
                self.refuse(
                    entry,
                    "must be a list",
                    "begin each item with `- `",
                    problems,
                );
                &[]
            }
        }
    }

    fn refuse(&self, entry: &Entry, problem: &str, hint: &str, problems: &mut Vec<Problem>) {
        let place = Place::new(self.file, entry.line);
        let message = format!("`{}` {problem}", entry.key);
        problems.push(Problem::new(place, message, hint));
    }

    /// Reports the fields that were not taken.
    pub(super) fn finish(self, known: &str, problems: &mut Vec<Problem>) {
        for entry in &self.entries {
            let hint = format!("correct or remove it; known are {known}");
            self.refuse(entry, "is not known here", &hint, problems);
        }
    }
}
