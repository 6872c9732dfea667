//! Output of commands, for people and scripts.

use std::io::{self, Write};

/// Writes text to standard output. A closed pipe is no error: the reader wanted no more.
pub fn print(text: &str) {
    let _ = io::stdout()
        .write_all(text.as_bytes())
        .and_then(|()| io::stdout().flush());
}

/// Writes a line to standard output.
pub fn line(text: &str) {
    print(&format!("{text}\n"));
}

/// Writes a line to standard error.
pub fn error_line(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes a value as one line of JSON.
pub fn json(value: &serde_json::Value) {
    line(&value.to_string());
}
