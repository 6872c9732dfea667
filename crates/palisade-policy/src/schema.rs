//! Sections: one declaration gives the type, the keys, the defaults, the bounds,
//! the decoder and the reference page, so that none can drift from another.

use crate::decode::{Decode, Problem};
use crate::error::{Origin, Sink};
use crate::tree::{Node, Table, lookup};
use crate::unknown::has_old_name;

/// What stands under a table's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `[name]`.
    Table,
    /// `[[name]]`.
    Array,
}

/// A table of the configuration.
pub(crate) struct Schema {
    pub(crate) path: &'static str,
    pub(crate) shape: Shape,
    pub(crate) doc: &'static [&'static str],
    pub(crate) keys: &'static [Key],
}

/// A key of a table.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static [&'static str],
    pub(crate) kind: fn() -> String,
    pub(crate) show: fn(&str) -> String,
    pub(crate) optional: bool,
    pub(crate) default: Option<&'static str>,
    pub(crate) bounds: Option<(&'static str, &'static str)>,
}

impl Key {
    pub(crate) const fn is_required(&self) -> bool {
        !self.optional && self.default.is_none()
    }
}

/// A declared section.
pub(crate) trait Section: Sized {
    const SCHEMA: Schema;

    /// Reads every key; `None` if any of them was reported.
    fn read(reader: &mut Reader<'_>) -> Option<Self>;
}

/// Default and bounds of a key, written as in a variable.
pub(crate) struct Rule {
    pub(crate) default: Option<&'static str>,
    pub(crate) bounds: Option<(&'static str, &'static str)>,
}

/// A field of a section: a value, or an optional one.
pub(crate) trait Field: Sized {
    const OPTIONAL: bool;
    fn kind() -> String;
    fn show(text: &str) -> String;
    fn read(reader: &mut Reader<'_>, key: &'static str, rule: &Rule) -> Option<Self>;
}

impl<T: Decode> Field for T {
    const OPTIONAL: bool = false;

    fn kind() -> String {
        T::kind()
    }

    fn show(text: &str) -> String {
        T::show(text)
    }

    fn read(reader: &mut Reader<'_>, key: &'static str, rule: &Rule) -> Option<Self> {
        if let Some(found) = reader.written(key, rule) {
            return found;
        }
        match rule.default {
            Some(text) => T::decode(&Node::text(text, Origin::Nowhere)).ok(),
            None => reader.missing(key),
        }
    }
}

impl<T: Decode> Field for Option<T> {
    const OPTIONAL: bool = true;

    fn kind() -> String {
        T::kind()
    }

    fn show(text: &str) -> String {
        T::show(text)
    }

    fn read(reader: &mut Reader<'_>, key: &'static str, rule: &Rule) -> Option<Self> {
        match reader.written(key, rule) {
            Some(found) => found.map(Some),
            None => Some(None),
        }
    }
}

/// Reads the keys of one table.
pub(crate) struct Reader<'a> {
    pub(crate) table: Option<&'a Table>,
    /// Where the table starts, for keys that are missing.
    pub(crate) at: Origin,
    pub(crate) path: &'static str,
    pub(crate) sink: &'a mut Sink,
}

impl Reader<'_> {
    /// The value of a key: `None` if it is not written, `Some(None)` if it is wrong.
    fn written<T: Decode>(&mut self, key: &str, rule: &Rule) -> Option<Option<T>> {
        let entry = self.table?.get(key)?;
        let value = match T::decode(&entry.node) {
            Ok(value) => value,
            Err(problems) => {
                for problem in problems {
                    self.report(key, &entry.node.origin, problem);
                }
                return Some(None);
            }
        };
        if let Some((min, max)) = rule.bounds
            && value.outside(min, max)
        {
            let problem = Problem::new(format!("must be {min} to {max}"));
            self.report(key, &entry.node.origin, problem);
            return Some(None);
        }
        Some(Some(value))
    }

    fn missing<T>(&mut self, key: &str) -> Option<T> {
        if self
            .table
            .is_some_and(|table| has_old_name(self.path, key, table))
        {
            return None;
        }
        let message = format!("`{}.{key}` is missing", self.path);
        self.sink
            .report_with(&self.at, message, format!("add `{key} = …`"));
        None
    }

    fn report(&mut self, key: &str, at: &Origin, problem: Problem) {
        let origin = problem.origin.as_ref().unwrap_or(at);
        let message = format!("`{}.{key}` {}", self.path, problem.message);
        match problem.hint {
            Some(hint) => self.sink.report_with(origin, message, hint),
            None => self.sink.report(origin, message),
        }
    }
}

/// Reads the section at its own path.
pub(crate) fn read_table<S: Section>(root: &Table, sink: &mut Sink) -> Option<S> {
    let entry = lookup(root, S::SCHEMA.path);
    let mut reader = Reader {
        table: entry.and_then(|entry| entry.node.as_table()),
        at: entry.map_or(Origin::Nowhere, |entry| entry.key.clone()),
        path: S::SCHEMA.path,
        sink,
    };
    S::read(&mut reader)
}

/// Reads every member of an array of tables, each with the node it was read from.
pub(crate) fn read_array<'t, S: Section>(root: &'t Table, sink: &mut Sink) -> Vec<(S, &'t Node)> {
    let Some(entry) = root.get(S::SCHEMA.path) else {
        return Vec::new();
    };
    let crate::tree::Value::Array(items) = &entry.node.value else {
        return Vec::new();
    };
    items
        .iter()
        .filter_map(|item| {
            let mut reader = Reader {
                table: Some(item.as_table()?),
                at: item.origin.clone(),
                path: S::SCHEMA.path,
                sink: &mut *sink,
            };
            S::read(&mut reader).map(|section| (section, item))
        })
        .collect()
}

/// Declares a section: `field: Type = "default" where "min"..="max";` where the
/// default is written as in a variable. A type without a default is required
/// unless it is an `Option`.
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident ($shape:ident $path:expr) {
            $(
                $(#[doc = $fdoc:literal])*
                $field:ident $(as $key:literal)? : $type:ty
                $(= $default:literal)? $(where $min:literal ..= $max:literal)?;
            )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $name {
            $($(#[doc = $fdoc])* pub $field: $type,)*
        }

        impl $crate::schema::Section for $name {
            const SCHEMA: $crate::schema::Schema = $crate::schema::Schema {
                path: $path,
                shape: $crate::schema::Shape::$shape,
                doc: &[$($doc),*],
                keys: &[$($crate::schema::Key {
                    name: $crate::schema::key_name!($field $($key)?),
                    doc: &[$($fdoc),*],
                    kind: <$type as $crate::schema::Field>::kind,
                    show: <$type as $crate::schema::Field>::show,
                    optional: <$type as $crate::schema::Field>::OPTIONAL,
                    default: $crate::schema::maybe!($($default)?),
                    bounds: $crate::schema::maybe!($(($min, $max))?),
                }),*],
            };

            fn read(reader: &mut $crate::schema::Reader<'_>) -> Option<Self> {
                $(let $field = <$type as $crate::schema::Field>::read(
                    reader,
                    $crate::schema::key_name!($field $($key)?),
                    &$crate::schema::Rule {
                        default: $crate::schema::maybe!($($default)?),
                        bounds: $crate::schema::maybe!($(($min, $max))?),
                    },
                );)*
                Some(Self { $($field: $field?),* })
            }
        }
    };
}

macro_rules! key_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $key:literal) => {
        $key
    };
}

macro_rules! maybe {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

pub(crate) use {key_name, maybe, section};
