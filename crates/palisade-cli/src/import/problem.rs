//! A refusal of an import: the file, the line, the problem and the advice.

use std::fmt;
use std::rc::Rc;

use palisade_server::failure::Failure;

/// A line of an imported file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    file: Rc<str>,
    line: usize,
}

impl Place {
    pub(super) fn new(file: &Rc<str>, line: usize) -> Self {
        Self {
            file: Rc::clone(file),
            line,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A part of the source that cannot be taken over. Names fields, never their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) place: Place,
    pub(super) message: String,
    pub(super) hint: String,
}

impl Problem {
    pub(super) fn new(place: Place, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            place,
            message: message.into(),
            hint: hint.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)?;
        write!(f, "\n  hint: {}", self.hint)
    }
}

/// Returns one failure for all problems together: nobody wants to correct a file error by error.
pub(super) fn refusal(problems: &[Problem], hint: &str) -> Failure {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let message = format!("the import is refused\n{}", lines.join("\n"));
    Failure::usage(message, hint)
}
