//! Why a command ended otherwise than well, and its exit code.

use std::fmt;
use std::process::ExitCode;

use palisade_policy::{ConfigError, ConfigErrors, Place};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It did what was asked.
    Done,
    /// It did, and the answer is no.
    Negative,
    /// It did, and something that it asked did not answer.
    Unavailable,
}

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Done => Self::SUCCESS,
            Ending::Negative => Self::from(1),
            Ending::Unavailable => Self::from(3),
        }
    }
}

/// Why a command could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    kind: Kind,
    message: String,
    hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// What was asked or configured is wrong: exit code 2.
    Usage,
    /// Something that is needed is not there: exit code 3.
    Unavailable,
}

impl Failure {
    /// Something to correct in the command line or configuration.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            kind: Kind::Usage,
            message: message.into(),
            hint: Some(hint.into()),
        }
    }

    /// Something that the machine or another service does not give.
    pub fn unavailable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            kind: Kind::Unavailable,
            message: message.into(),
            hint: Some(hint.into()),
        }
    }

    /// The same, as something to correct at a place of the configuration.
    pub fn at(self, place: Place) -> ConfigError {
        ConfigError {
            hint: self.hint,
            ..ConfigError::at(place, self.message, "")
        }
    }

    /// What is wrong, for a list of several.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to do about it.
    pub fn hint(&self) -> &str {
        self.hint.as_deref().unwrap_or_default()
    }

    /// What the process ends with.
    pub fn exit_code(&self) -> ExitCode {
        match self.kind {
            Kind::Usage => ExitCode::from(2),
            Kind::Unavailable => ExitCode::from(3),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self {
            kind: Kind::Usage,
            message: format!("the configuration is not valid\n{errors}"),
            hint: None,
        }
    }
}
