//! Turns a pattern of nginx's `log_format` into a reader of lines in that format.

use palisade::cases::Event;
use palisade_core::Micros;
use palisade_core::path::EncodedSlash;

use super::combined::closing_quote;
use super::envoy::last_hop;
use super::format::Names;
use super::logged::{LoggedRequest, clf_time, request_line, unix_time};
use super::{LineError, format};

/// The parts of a line, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(Box<str>),
    Variable(Variable),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Variable {
    Address,
    Forwarded,
    Local,
    Iso,
    Unix,
    Request,
    Method,
    Uri,
    User,
    Agent,
    /// `$http_…`: a header, which may be one of the policy's identity headers.
    Header(Box<str>),
    Other,
}

impl Variable {
    fn of(name: &str) -> Self {
        match name {
            "remote_addr" | "realip_remote_addr" => Self::Address,
            "http_x_forwarded_for" | "proxy_add_x_forwarded_for" => Self::Forwarded,
            "time_local" => Self::Local,
            "time_iso8601" => Self::Iso,
            "msec" => Self::Unix,
            "request" => Self::Request,
            "request_method" => Self::Method,
            "request_uri" | "uri" | "document_uri" => Self::Uri,
            "remote_user" => Self::User,
            "http_user_agent" => Self::Agent,
            _ => match name.strip_prefix("http_") {
                Some(header) => Self::Header(header.replace('_', "-").into()),
                None => Self::Other,
            },
        }
    }

    fn is_time(&self) -> bool {
        matches!(self, Self::Local | Self::Iso | Self::Unix)
    }
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// The pattern lacks a variable that every request needs, or its variables cannot be told
    /// apart.
    pub(super) fn compile(text: &str) -> Result<Self, String> {
        let mut parts: Vec<Part> = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            if at > 0 {
                parts.push(Part::Literal(rest[..at].into()));
            } else if matches!(parts.last(), Some(Part::Variable(_))) {
                return Err(
                    "two variables stand side by side: nothing says where the first ends"
                        .to_owned(),
                );
            }
            let (name, after) = name_of(&rest[at + 1..]);
            if name.is_empty() {
                return Err("a `$` has no name after it".to_owned());
            }
            parts.push(Part::Variable(Variable::of(name)));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Literal(rest.into()));
        }
        let pattern = Self(parts);
        pattern.check().map(|()| pattern)
    }

    fn check(&self) -> Result<(), String> {
        let has = |wanted: &[Variable]| self.variables().any(|variable| wanted.contains(variable));
        let lacking = if !has(&[Variable::Address, Variable::Forwarded]) {
            "an address: `$remote_addr`"
        } else if !self.variables().any(Variable::is_time) {
            "a time: `$time_local`, `$time_iso8601` or `$msec`"
        } else if !(has(&[Variable::Request]) || has(&[Variable::Method]) && has(&[Variable::Uri]))
        {
            "a request: `$request`, or `$request_method` and `$request_uri`"
        } else {
            return Ok(());
        };
        Err(format!("the pattern lacks {lacking}"))
    }

    fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.0.iter().filter_map(|part| match part {
            Part::Variable(variable) => Some(variable),
            Part::Literal(_) => None,
        })
    }

    /// Returns the event of a line.
    pub(super) fn event(
        &self,
        line: &str,
        names: &Names,
        slash: EncodedSlash,
    ) -> Result<Event, LineError> {
        let logged = self.logged(line, names);
        logged
            .ok_or(LineError::Line("is not written by the pattern"))?
            .into_event(slash)
    }

    fn logged<'a>(&self, line: &'a str, names: &Names) -> Option<LoggedRequest<'a>> {
        let mut logged = LoggedRequest::default();
        let mut rest = line;
        let mut parts = self.0.iter().peekable();
        while let Some(part) = parts.next() {
            match part {
                Part::Literal(literal) => rest = rest.strip_prefix(&**literal)?,
                Part::Variable(variable) => {
                    let end = match parts.peek() {
                        Some(Part::Literal(literal)) => end_of(rest, literal)?,
                        _ => rest.len(),
                    };
                    let (value, after) = rest.split_at(end);
                    put(&mut logged, variable, value, names);
                    rest = after;
                }
            }
        }
        Some(logged)
    }
}

/// Returns where a value ends that `literal` follows. An escaped quote does not end a value.
fn end_of(text: &str, literal: &str) -> Option<usize> {
    match literal.starts_with('"') {
        true => closing_quote(text),
        false => text.find(literal),
    }
}

fn put<'a>(logged: &mut LoggedRequest<'a>, variable: &Variable, value: &'a str, names: &Names) {
    match variable {
        Variable::Address => logged.ip = Some(value),
        // If the log has no address of its own, the one that the nearest proxy appended is
        // believed.
        Variable::Forwarded => logged.ip = logged.ip.or_else(|| last_hop(value)),
        Variable::Local => logged.at = clf_time(value),
        Variable::Iso => logged.at = Micros::parse_rfc3339(value),
        Variable::Unix => logged.at = unix_time(value),
        Variable::Request => (logged.method, logged.target) = request_line(value),
        Variable::Method => logged.method = Some(value),
        Variable::Uri => logged.target = Some(value),
        Variable::User => logged.user = logged.user.or(Some(value)),
        Variable::Agent => logged.agent = Some(value),
        Variable::Header(header) => match names.meaning(header) {
            Some(format::Meaning::User) => logged.user = Some(value),
            Some(format::Meaning::Org) => logged.org = Some(value),
            Some(format::Meaning::Token) => logged.token = Some(value),
            Some(format::Meaning::ApiKey) => logged.api_key = Some(value),
            None => {}
        },
        Variable::Other => {}
    }
}

/// Returns the name at the start, with or without braces, and the text after it.
fn name_of(text: &str) -> (&str, &str) {
    if let Some(found) = text.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        return found;
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split_at(text.find(|c| !is_part(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use palisade::cases::Operation;

    use super::*;

    #[test]
    fn a_line_is_read_by_the_pattern_it_was_written_by() {
        let pattern = Pattern::compile(
            r#"$remote_addr - ${remote_user} [$time_local] "$request" $status "$http_user_agent" rt=$request_time org=$http_x_palisade_org"#,
        );
        let line = r#"203.0.113.9 - bob [10/Oct/2026:13:55:36 +0200] "GET /a HTTP/1.1" 200 "a \"b\" c" rt=0.004 org=acme"#;
        let event = pattern
            .unwrap()
            .event(line, &Names::default(), EncodedSlash::default());
        match event.unwrap().operation {
            Operation::Request(facts) => {
                assert_eq!(facts.user.unwrap().as_str(), "bob");
                assert_eq!(facts.org.unwrap().as_str(), "acme");
                assert_eq!(&*facts.path, "/a");
                assert_eq!(facts.user_agent.as_deref(), Some(r#"a \"b\" c"#));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pattern_that_cannot_tell_a_request_is_refused_with_what_it_lacks() {
        let cases = [
            ("$time_local $request", "lacks an address"),
            ("$remote_addr $request", "lacks a time"),
            ("$remote_addr $msec $request_method", "lacks a request"),
            ("$remote_addr$msec $request", "side by side"),
            ("$remote_addr $ $request", "no name"),
        ];
        for (text, expected) in cases {
            let told = Pattern::compile(text).unwrap_err();
            assert!(told.contains(expected), "{text}: {told}");
        }
    }

    #[test]
    fn a_line_of_another_pattern_is_refused() {
        let pattern = Pattern::compile("$remote_addr|$msec|$request").unwrap();
        let read = |line| pattern.event(line, &Names::default(), EncodedSlash::default());
        assert!(read("203.0.113.9|1700000000.5|GET /a HTTP/1.1").is_ok());
        let told = read("203.0.113.9 1700000000.5 GET /a").unwrap_err();
        assert_eq!(told.to_string(), "is not written by the pattern");
    }
}
