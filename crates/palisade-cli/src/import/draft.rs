//! A policy in the making: what every source is turned into before it is written.

use palisade_core::policy::EntryMatch;

use super::problem::{Place, Problem};

/// Most limits that a policy may have.
const LIMITS_MAX: usize = 1_000;

/// What an import has made.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// What it was made of.
    pub(super) source: String,
    /// Differences that concern all of it.
    pub(super) general: Vec<String>,
    /// Tables that stand before the limits, as TOML.
    pub(super) settings: String,
    /// The limits and what stands between them, in the order of the source.
    pub(super) parts: Vec<Part>,
    /// What has no counterpart here.
    pub(super) unsupported: Vec<Problem>,
}

#[derive(Debug)]
pub(super) enum Part {
    /// Comments that stand alone.
    Remark(Vec<String>),
    /// Something that was left out, and why.
    LeftOut(Vec<String>, Place, String),
    Limit(Box<Limit>),
}

/// A limit, its comments and what differs.
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

/// What a limit is about.
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
        /// A path of those classes, for the case.
        path: String,
    },
}

/// Which values of a descriptor are told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Every open one.
    Each,
    /// None: one bucket for all.
    Share,
    /// Those of these keys.
    Only(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    Admits,
    Denies,
    Window {
        count: u32,
        window: String,
        /// Aligned windows, as the source has them.
        fixed: bool,
    },
    Bucket {
        rate: String,
        burst: u32,
    },
}

impl Draft {
    /// The limits, without what stands between them.
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

    /// Adds a limit, unless there are more than a policy holds.
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
