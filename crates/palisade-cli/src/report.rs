//! Errors and warnings of a configuration, for people, with the line that each is about.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use palisade_policy::document::schema::Schema;
use palisade_policy::{ConfigError, Place, Severity};
use serde_json::{Value, json};

use palisade_server::config;

/// Longest line that is shown, in characters.
const LINE_CHARS_MAX: usize = 160;

/// Renders errors with the lines they are about.
pub(super) struct Report {
    tables: Vec<Schema>,
    texts: BTreeMap<PathBuf, Option<String>>,
    colour: bool,
}

impl Report {
    /// A report on standard error, coloured on a terminal.
    pub(super) fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none();
        Self {
            tables: config::schemas(),
            texts: BTreeMap::new(),
            colour: wanted && std::io::stderr().is_terminal(),
        }
    }

    /// Returns the text of all errors.
    pub(super) fn text(&mut self, errors: &[ConfigError]) -> String {
        errors.iter().map(|error| self.one(error)).collect()
    }

    fn one(&mut self, error: &ConfigError) -> String {
        let (code, name) = match error.severity {
            Severity::Error => ("1;31", "error"),
            Severity::Warning => ("1;33", "warning"),
        };
        let place = self.painted("1", &error.place.to_string());
        let name = self.painted(code, name);
        let mut text = format!("{place}: {name}: {}\n", error.message);
        if let Some(also) = &error.also {
            text.push_str(&self.excerpt(also, "first written here", "34"));
        }
        text.push_str(&self.excerpt(&error.place, "", code));
        if let Some(hint) = &error.hint {
            let _ = writeln!(text, "  {} {hint}", self.painted("36", "hint:"));
        }
        text
    }

    fn painted(&self, code: &str, text: &str) -> String {
        match self.colour {
            true => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            false => text.to_owned(),
        }
    }

    /// Returns the line, and a caret under the part that an error is about.
    fn excerpt(&mut self, place: &Place, note: &str, code: &str) -> String {
        let Place::File {
            path,
            line,
            column,
            width,
        } = place
        else {
            return String::new();
        };
        let Some(written) = self.line(path, *line) else {
            return String::new();
        };
        let shown = shown(&written, &self.tables);
        let hidden = shown != written;
        let length = shown.chars().count();
        // The replaced text is shorter than the original.
        let start = column.saturating_sub(1).min(length);
        let carets = match hidden {
            true => length.saturating_sub(start).min(*width),
            false => *width,
        };
        let carets = "^".repeat(carets.clamp(1, LINE_CHARS_MAX));
        let margin = " ".repeat(line.to_string().len());
        let bar = self.painted("34", "|");
        let number = self.painted("34", &line.to_string());
        let mark = self.painted(code, format!("{carets} {note}").trim_end());
        format!(
            "{margin} {bar}\n{number} {bar} {shown}\n{margin} {bar} {}{mark}\n",
            " ".repeat(start)
        )
    }

    fn line(&mut self, path: &Path, line: usize) -> Option<String> {
        let text = self
            .texts
            .entry(path.to_owned())
            .or_insert_with(|| palisade_policy::read_file(path).ok());
        let line = text.as_deref()?.lines().nth(line.checked_sub(1)?)?;
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        Some(line.chars().take(LINE_CHARS_MAX).map(plain).collect())
    }
}

/// Returns a line as it may be shown. Text in quotes is shown only if its key is known and holds
/// nothing that is secret or names somebody.
fn shown(line: &str, tables: &[Schema]) -> String {
    let name = line.split('=').next().unwrap_or_default().trim();
    let is_heading = line.trim_start().starts_with('[') && !line.contains('=');
    let mut keys = tables.iter().flat_map(|table| table.keys);
    let mut same = keys.by_ref().filter(|key| key.name == name).peekable();
    let is_known = same.peek().is_some();
    let is_open = is_known && name != "id" && same.all(|key| !key.private);
    if is_heading || is_open {
        return line.to_owned();
    }
    hide_quoted(line)
}

fn hide_quoted(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut inside = None;
    for c in line.chars() {
        match inside {
            None => {
                shown.push(c);
                if c == '"' || c == '\'' {
                    shown.push('…');
                    inside = Some(c);
                }
            }
            Some(quote) if c == quote => {
                shown.push(c);
                inside = None;
            }
            Some(_) => {}
        }
    }
    shown
}

/// Returns errors as JSON, for programs.
pub(super) fn as_json(errors: &[ConfigError]) -> Vec<Value> {
    errors.iter().map(one_as_json).collect()
}

fn one_as_json(error: &ConfigError) -> Value {
    let (line, column) = match &error.place {
        Place::File { line, column, .. } => (Some(line), Some(column)),
        _ => (None, None),
    };
    json!({
        "severity": error.severity.name(),
        "place": error.place.to_string(),
        "line": line,
        "column": column,
        "also": error.also.as_ref().map(ToString::to_string),
        "message": error.message,
        "hint": error.hint,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_hides_what_may_be_a_secret_or_an_identifier() {
        let tables = config::schemas();
        for line in [
            "key = \"canary\"",
            "tokn = 'canary'",
            "  url = \"redis://u:canary@h\"",
            "id = \"canary\"",
            "hash = \"canary",
            "{ rate = \"canary\" }",
        ] {
            assert!(!shown(line, &tables).contains("canary"), "{line}");
        }
        for line in [
            "rate = \"5/min\"",
            "[[limit]]",
            "listen = \"0.0.0.0:1\" # why",
        ] {
            assert_eq!(shown(line, &tables), line);
        }
    }
}
