//! Findings of the doctor: each thing that was examined, and the result.

use std::fmt::Write;

use serde::Serialize;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Weight {
    /// All is well.
    Ok,
    /// Not examined, or only for information.
    Note,
    /// Something should be changed.
    Warning,
    /// Something must be changed.
    Error,
}

impl Weight {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// The result for one thing that was examined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) about: &'static str,
    pub(super) weight: Weight,
    pub(super) message: String,
    /// Advice; empty if nothing is to be done.
    pub(super) todo: String,
}

/// All findings, in the order of the examination.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) list: Vec<Finding>,
}

impl Findings {
    pub(super) fn add(
        &mut self,
        about: &'static str,
        weight: Weight,
        message: impl Into<String>,
        todo: impl Into<String>,
    ) {
        self.list.push(Finding {
            about,
            weight,
            message: message.into(),
            todo: todo.into(),
        });
    }

    /// Adds a finding without a problem.
    pub(super) fn well(&mut self, about: &'static str, message: impl Into<String>) {
        self.add(about, Weight::Ok, message, "");
    }

    /// True if no finding is worse than a note.
    pub(super) fn is_healthy(&self) -> bool {
        self.list.iter().all(|one| one.weight <= Weight::Note)
    }

    /// Returns the findings for people: a line each, with the advice beneath.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for one in &self.list {
            let (weight, about) = (one.weight.name(), one.about);
            let _ = writeln!(text, "{weight:<8}{about:<14}{}", one.message);
            if !one.todo.is_empty() {
                let _ = writeln!(text, "{:<22}-> {}", "", one.todo);
            }
        }
        let count = |weight| self.list.iter().filter(|one| one.weight == weight).count();
        let (errors, warnings) = (count(Weight::Error), count(Weight::Warning));
        let _ = match (errors, warnings) {
            (0, 0) => writeln!(text, "nothing to do"),
            _ => writeln!(text, "{errors} to correct now, {warnings} to look at"),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_followed_by_what_to_do_about_it() {
        let mut found = Findings::default();
        found.well("store", "answers");
        assert!(found.is_healthy());
        found.add("clock", Weight::Warning, "3 s apart", "run an NTP client");
        assert!(!found.is_healthy());
        insta::assert_snapshot!(found.text(), @r"
        ok      store         answers
        warning clock         3 s apart
                              -> run an NTP client
        0 to correct now, 1 to look at
        ");
    }
}
