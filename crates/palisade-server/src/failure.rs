//! Results of commands, and their exit codes.

use std::fmt;
use std::process::ExitCode;

use palisade_policy::{ConfigError, ConfigErrors, Place};

/// Result of a command that did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandStatus {
    /// The command did what was asked.
    Done,
    /// The command did its work, and the answer is no.
    Negative,
    /// The command did its work, but something that it queried did not answer.
    Unavailable,
}

impl From<CommandStatus> for ExitCode {
    fn from(ending: CommandStatus) -> Self {
        match ending {
            CommandStatus::Done => Self::SUCCESS,
            CommandStatus::Negative => Self::from(1),
            CommandStatus::Unavailable => Self::from(3),
        }
    }
}

/// The reason why a command could not do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    kind: Kind,
    message: String,
    hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The command line or the configuration is wrong: exit code 2.
    Usage,
    /// Something that is needed is not available: exit code 3.
    Unavailable,
}

impl Failure {
    /// A failure that a change of the command line or configuration repairs.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            kind: Kind::Usage,
            message: message.into(),
            hint: Some(hint.into()),
        }
    }

    /// A failure of the machine or of another service.
    pub fn unavailable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            kind: Kind::Unavailable,
            message: message.into(),
            hint: Some(hint.into()),
        }
    }

    /// Returns the failure as an error at a place in the configuration.
    pub fn at(self, place: Place) -> ConfigError {
        ConfigError {
            hint: self.hint,
            ..ConfigError::at(place, self.message, "")
        }
    }

    /// The message alone, for a list of several failures.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The hint: a step that repairs the failure.
    pub fn hint(&self) -> &str {
        self.hint.as_deref().unwrap_or_default()
    }

    /// The exit code of the process.
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
