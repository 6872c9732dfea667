//! A policy in the making: every source is converted to a draft before the policy is written.

use palisade_core::policy::EntryMatch;

use super::problem::{Place, Problem};

/// Most limits that a policy may have.
const LIMITS_MAX: usize = 1_000;

/// The result of an import.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// Name of the source.
    pub(super) source: String,
    /// Differences that concern all limits.
    pub(super) general: Vec<String>,
    /// Tables before the limits, as TOML.
    pub(super) settings: String,
    /// The limits and the remarks between them, in the order of the source.
    pub(super) parts: Vec<Part>,
    /// Parts of the source without a counterpart here.
    pub(super) unsupported: Vec<Problem>,
}

#[derive(Debug)]
pub(super) enum Part {
    /// Comments that belong to no limit.
    Remark(Vec<String>),
    /// A part that was left out, with its comments, place and reason.
    LeftOut(Vec<String>, Place, String),
    Limit(Box<Limit>),
}

/// A limit, its comments and its differences from the original.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    pub(super) comments: Vec<String>,
    pub(super) differences: Vec<String>,
    pub(super) place: Place,
    pub(super) name: String,
    pub(super) subject: Subject,
    pub(super) figure: Figure,
    pub(super) shadow: bool,
    pub(super) replaces: Vec<String>,
}

/// The subject that a limit counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Descriptor {
        domain: String,
        entries: Vec<EntryMatch>,
        by: By,
    },
    Requests {
        classes: Vec<String>,
        by: Vec<String>,
        /// A path of those classes, for the policy case.
        path: String,
    },
}

/// The values of a descriptor that have buckets of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Each open value.
    Each,
    /// No value: one bucket for all.
    Share,
    /// The values of these keys.
    Only(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    Admits,
    Denies,
    Window {
        count: u32,
        window: String,
        /// True for aligned windows, as in the source.
        fixed: bool,
    },
    Bucket {
        rate: String,
        burst: u32,
    },
}

impl Draft {
    /// Returns the limits, without the remarks between them.
    pub(super) fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.parts.iter().filter_map(|part| match part {
            Part::Limit(limit) => Some(&**limit),
            _ => None,
        })
    }

    pub(super) fn limits_mut(&mut self) -> impl Iterator<Item = &mut Limit> {
        self.parts.iter_mut().filter_map(|part| match part {
            Part::Limit(limit) => Some(&mut **limit),
            _ => None,
        })
    }

    pub(super) fn remark(&mut self, comments: Vec<String>) {
        if !comments.is_empty() {
            self.parts.push(Part::Remark(comments));
        }
    }

    /// Adds a limit, unless the policy is full.
    pub(super) fn limit(&mut self, limit: Limit) -> Result<(), Problem> {
        if self.limits().count() >= LIMITS_MAX {
            let message = format!("this makes more than {LIMITS_MAX} limits");
            let hint = "split the file by domain, and serve the domains apart";
            return Err(Problem::new(limit.place, message, hint));
        }
        self.parts.push(Part::Limit(Box::new(limit)));
        Ok(())
    }
}
