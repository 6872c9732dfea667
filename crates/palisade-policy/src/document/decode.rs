//! Decodes nodes into values. A decoder reports the problem and what would be right; it never
//! repeats what was written.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use crate::document::error::{Origin, nearest};
use crate::document::tree::{Node, Value};

/// Most members of a list.
pub(crate) const LIST_MAX: usize = 1024;
/// Longest text, in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 4096;

/// A problem with one value. The message continues "`key` …".
#[derive(Clone, Debug)]
pub struct Problem {
    /// The element of a list, if it is not the value as a whole.
    pub origin: Option<Origin>,
    /// The problem, as the end of a sentence.
    pub message: String,
    /// The remedy.
    pub hint: Option<String>,
}

impl Problem {
    /// A problem with the value as a whole.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            origin: None,
            message: message.into(),
            hint: None,
        }
    }

    /// Adds the remedy.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// All problems with one value.
pub type Problems = Vec<Problem>;

/// A value that can stand in the configuration.
pub trait Decode: Sized {
    /// Whether the written value may be a secret or an identifier: no excerpt of the file shows it
    /// then.
    const PRIVATE: bool = false;

    /// Returns the name of the type in the reference.
    fn kind() -> String;

    /// Reads a node.
    ///
    /// # Errors
    /// All problems with the node.
    fn decode(node: &Node) -> Result<Self, Problems>;

    /// Formats a default, written as in a variable, as it would stand in the file.
    fn show(text: &str) -> String {
        format!("\"{text}\"")
    }

    /// Whether the value is outside bounds that are written as in a variable.
    fn outside(&self, _min: &str, _max: &str) -> bool {
        false
    }
}

/// A single problem.
///
/// # Errors
/// Always.
pub fn wrong<T>(message: impl Into<String>) -> Result<T, Problems> {
    Err(vec![Problem::new(message)])
}

/// The text of a node, bounded and without control characters.
///
/// # Errors
/// The node is no text, or its text is empty, too long, or has control characters.
pub fn text_of(node: &Node) -> Result<&str, Problems> {
    let Some(text) = node.as_str() else {
        return Err(vec![
            Problem::new("must be a string").hint("write it in quotes"),
        ]);
    };
    if text.is_empty() {
        return wrong("must not be empty");
    }
    if text.len() > TEXT_BYTES_MAX {
        return wrong("is too long");
    }
    if text.chars().any(char::is_control) {
        return wrong("must not contain control characters");
    }
    Ok(text)
}

impl Decode for String {
    fn kind() -> String {
        "string".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        text_of(node).map(str::to_owned)
    }
}

impl Decode for PathBuf {
    fn kind() -> String {
        "path".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        text_of(node).map(Self::from)
    }
}

impl Decode for bool {
    fn kind() -> String {
        "`true` or `false`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        match &node.value {
            Value::Boolean(flag) => Ok(*flag),
            Value::Text(text) => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "1" => Ok(true),
                "false" | "0" => Ok(false),
                _ => wrong("must be `true` or `false`"),
            },
            _ => Err(vec![
                Problem::new("must be `true` or `false`").hint("without quotes"),
            ]),
        }
    }

    fn show(text: &str) -> String {
        text.to_owned()
    }
}

pub(crate) fn integer(node: &Node) -> Option<i128> {
    match &node.value {
        Value::Integer(number) => Some(*number),
        Value::Text(text) => digits(text.trim()),
        _ => None,
    }
}

/// A number in digits, with single underscores between them as in TOML.
pub(crate) fn digits(text: &str) -> Option<i128> {
    let bare = text.strip_prefix('-').unwrap_or(text);
    let plain = bare
        .split('_')
        .all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()));
    plain.then(|| text.replace('_', "").parse().ok())?
}

macro_rules! decode_integer {
    ($($type:ty: $least:expr),* $(,)?) => {$(
        impl Decode for $type {
            fn kind() -> String {
                "integer".into()
            }

            fn decode(node: &Node) -> Result<Self, Problems> {
                let Some(number) = integer(node) else {
                    return wrong("must be a whole number");
                };
                let fits = Self::try_from_i128(number);
                fits.map_or_else(
                    || wrong(format!("must be {} to {}", $least, <$type>::MAX)),
                    Ok,
                )
            }

            fn show(text: &str) -> String {
                text.to_owned()
            }

            fn outside(&self, min: &str, max: &str) -> bool {
                let bound = |text: &str| digits(text).and_then(Self::try_from_i128);
                bound(min).is_some_and(|min| *self < min) || bound(max).is_some_and(|max| *self > max)
            }
        }
    )*};
}

/// Narrowing conversion that includes the non-zero types.
pub(crate) trait FromWide: Sized {
    fn try_from_i128(number: i128) -> Option<Self>;
}

macro_rules! from_wide {
    ($($type:ty => |$n:ident| $from:expr),* $(,)?) => {$(
        impl FromWide for $type {
            fn try_from_i128($n: i128) -> Option<Self> {
                $from
            }
        }
    )*};
}

from_wide! {
    u8 => |n| u8::try_from(n).ok(),
    u16 => |n| u16::try_from(n).ok(),
    u32 => |n| u32::try_from(n).ok(),
    u64 => |n| u64::try_from(n).ok(),
    usize => |n| usize::try_from(n).ok(),
    NonZeroU32 => |n| u32::try_from(n).ok().and_then(NonZeroU32::new),
    NonZeroU64 => |n| u64::try_from(n).ok().and_then(NonZeroU64::new),
}

decode_integer!(u8: 0, u16: 0, u32: 0, u64: 0, usize: 0, NonZeroU32: 1, NonZeroU64: 1);

impl Decode for Duration {
    fn kind() -> String {
        "duration".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        const EXAMPLE: &str =
            "write a number and a unit: \"100ms\", \"30s\", \"5min\", \"1h\", \"1day\", \"1week\"";
        let problem = |hint: String| vec![Problem::new("must be a duration").hint(hint)];
        let text = node.as_str().ok_or_else(|| problem(EXAMPLE.into()))?;
        let unit = text
            .trim()
            .trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
        let micros = duration_micros(text.trim()).ok_or_else(|| match meant_unit(unit) {
            Some(meant) if UNITS.iter().any(|(name, _)| *name == meant) => {
                problem(format!("did you mean the unit `{meant}`?"))
            }
            _ => problem(EXAMPLE.into()),
        })?;
        Ok(Self::from_micros(micros))
    }

    fn outside(&self, min: &str, max: &str) -> bool {
        let bound = |text: &str| duration_micros(text).map(Self::from_micros);
        bound(min).is_some_and(|min| *self < min) || bound(max).is_some_and(|max| *self > max)
    }
}

/// Units of time, in microseconds.
pub(crate) const UNITS: [(&str, u64); 6] = [
    ("ms", 1_000),
    ("s", 1_000_000),
    ("min", 60_000_000),
    ("h", 3_600_000_000),
    ("day", 86_400_000_000),
    ("week", 604_800_000_000),
];

/// The unit that another spelling probably means: `m` is taken for a minute.
pub(crate) fn meant_unit(written: &str) -> Option<&'static str> {
    let written = written.trim().to_ascii_lowercase();
    Some(match written.as_str() {
        "m" | "mn" | "mins" | "minute" | "minutes" => "min",
        "sec" | "secs" | "second" | "seconds" => "s",
        "hr" | "hrs" | "hour" | "hours" => "h",
        "d" | "days" => "day",
        "w" | "wk" | "weeks" => "week",
        "mo" | "mon" | "months" => "month",
        "msec" | "millis" | "millisecond" | "milliseconds" => "ms",
        "y" | "yr" | "years" => "year",
        _ => {
            return UNITS
                .iter()
                .map(|(name, _)| *name)
                .find(|name| *name == written);
        }
    })
}

/// Converts a text such as `15min` into microseconds.
pub(crate) fn duration_micros(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '_')?;
    let (count, unit) = text.split_at(split);
    let count = u64::try_from(digits(count)?).ok()?;
    let (_, micros) = UNITS.iter().find(|(name, _)| *name == unit.trim())?;
    count.checked_mul(*micros)
}

impl Decode for SocketAddr {
    fn kind() -> String {
        "address and port".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        text_of(node)?.parse().map_err(|_| {
            vec![
                Problem::new("must be an IP address and a port")
                    .hint("for example \"127.0.0.1:8080\" or \"[::1]:8080\""),
            ]
        })
    }
}

impl Decode for IpNet {
    fn kind() -> String {
        "CIDR".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        let net = text.parse::<Self>();
        let net = net.or_else(|_| text.parse::<std::net::IpAddr>().map(Self::from));
        let Ok(net) = net else {
            return Err(vec![
                Problem::new("must be an address or a CIDR block")
                    .hint("for example \"10.0.0.0/8\" or \"2001:db8::/32\""),
            ]);
        };
        if net.trunc() == net {
            Ok(net)
        } else {
            Err(vec![
                Problem::new("has bits set beyond its prefix length")
                    .hint("write the first address of the block"),
            ])
        }
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn kind() -> String {
        format!("list of {}", T::kind())
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        match &node.value {
            Value::Array(items) if items.len() > LIST_MAX => {
                wrong(format!("must have at most {LIST_MAX} members"))
            }
            Value::Array(items) => all(items
                .iter()
                .map(|item| T::decode(item).map_err(|problems| placed(problems, &item.origin)))),
            Value::Text(text) => {
                all(split(text).map(|part| T::decode(&Node::text(part, node.origin.clone()))))
            }
            _ => Err(vec![
                Problem::new("must be a list")
                    .hint("write it in brackets: `[…]`, also if it is one"),
            ]),
        }
    }

    fn show(text: &str) -> String {
        let members: Vec<String> = split(text).map(T::show).collect();
        format!("[{}]", members.join(", "))
    }
}

impl<T: Decode, const N: usize> Decode for [T; N] {
    fn kind() -> String {
        format!("list of {N} × {}", T::kind())
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        Vec::<T>::decode(node)?
            .try_into()
            .or_else(|_| wrong(format!("must have exactly {N} members")))
    }

    fn show(text: &str) -> String {
        Vec::<T>::show(text)
    }
}

fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

fn placed(mut problems: Problems, origin: &Origin) -> Problems {
    for problem in &mut problems {
        problem.origin.get_or_insert_with(|| origin.clone());
    }
    problems
}

/// All values, or all problems.
fn all<T>(results: impl Iterator<Item = Result<T, Problems>>) -> Result<Vec<T>, Problems> {
    let mut values = Vec::new();
    let mut problems = Vec::new();
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(found) => problems.extend(found),
        }
    }
    if problems.is_empty() {
        Ok(values)
    } else {
        Err(problems)
    }
}

/// One of a few names.
///
/// # Errors
/// Another name; the nearest is suggested.
pub fn one_of<T: Copy>(node: &Node, names: &[(&'static str, T)]) -> Result<T, Problems> {
    let text = node.as_str().unwrap_or_default();
    if let Some((_, value)) = names.iter().find(|(name, _)| *name == text) {
        return Ok(*value);
    }
    let known = || names.iter().map(|(name, _)| *name);
    let list: Vec<String> = known().map(|name| format!("`{name}`")).collect();
    let problem = Problem::new(format!("must be one of {}", list.join(", ")));
    Err(vec![match nearest(text, known()) {
        Some(name) => problem.hint(format!("did you mean `{name}`?")),
        None => problem,
    }])
}

/// Implements [`Decode`] for an enum by its names.
#[macro_export]
macro_rules! named {
    ($type:ty { $($name:literal => $value:expr),* $(,)? }) => {
        impl $crate::document::decode::Decode for $type {
            fn kind() -> String {
                [$(concat!("`", $name, "`")),*].join(", ")
            }

            fn decode(node: &$crate::document::tree::Node) -> Result<Self, $crate::document::decode::Problems> {
                $crate::document::decode::one_of(node, &[$(($name, $value)),*])
            }
        }
    };
}
