//! Sections: one declaration gives the type, the keys, the defaults, the bounds,
//! the decoder and the reference page, so that none can drift from another.

use crate::document::decode::{Decode, Problem};
use crate::document::error::{Origin, Sink};
use crate::document::tree::{Node, Table, lookup};

/// Shape of the value under a table's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `[name]`.
    Table,
    /// `[[name]]`.
    Array,
    /// `[array.name]`: a table in a member of an array of tables.
    Inner,
}

/// A table of the configuration.
#[derive(Clone, Copy)]
pub struct Schema {
    /// Dotted path of the table.
    pub path: &'static str,
    /// One table or many.
    pub shape: Shape,
    /// Description of the table, for the reference.
    pub doc: &'static [&'static str],
    /// Keys that the table may have.
    pub keys: &'static [Key],
}

/// A key of a table.
pub struct Key {
    /// Name of the key.
    pub name: &'static str,
    /// Description of the key, for the reference.
    pub doc: &'static [&'static str],
    /// Name of the value's type in the reference.
    pub kind: fn() -> String,
    /// Formats the default as it would stand in the file.
    pub show: fn(&str) -> String,
    /// Whether the key may be left out without a default.
    pub optional: bool,
    /// Default, written as in a variable.
    pub default: Option<&'static str>,
    /// Least and largest value, written as in a variable.
    pub bounds: Option<(&'static str, &'static str)>,
    /// Former names of the key.
    pub formerly: &'static [&'static str],
    /// Whether the written value may be a secret or an identifier.
    pub private: bool,
}

impl Key {
    /// Whether the key must be written.
    #[must_use]
    pub const fn is_required(&self) -> bool {
        !self.optional && self.default.is_none()
    }
}

/// A declared section.
pub trait Section: Sized {
    /// Table of the section.
    const SCHEMA: Schema;

    /// Reads every key; `None` if any of them was reported.
    fn read(reader: &mut Reader<'_>) -> Option<Self>;
}

/// Default and bounds of a key, written as in a variable.
pub struct Rule {
    /// Default.
    pub default: Option<&'static str>,
    /// Least and largest.
    pub bounds: Option<(&'static str, &'static str)>,
    /// Former names of the key.
    pub formerly: &'static [&'static str],
}

/// A field of a section: a value, or an optional one.
pub trait Field: Sized {
    /// Whether the key may be left out without a default.
    const OPTIONAL: bool;

    /// Whether the written value may be a secret or an identifier.
    const PRIVATE: bool;

    /// Returns the name of this type in the reference.
    fn kind() -> String;

    /// Formats a default as it would stand in the file.
    fn show(text: &str) -> String;

    /// Reads the key; `None` if it was reported.
    fn read(reader: &mut Reader<'_>, key: &'static str, rule: &Rule) -> Option<Self>;
}

impl<T: Decode> Field for T {
    const OPTIONAL: bool = false;
    const PRIVATE: bool = T::PRIVATE;

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
            None => reader.missing(key, rule),
        }
    }
}

impl<T: Decode> Field for Option<T> {
    const OPTIONAL: bool = true;
    const PRIVATE: bool = T::PRIVATE;

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
pub struct Reader<'a> {
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

    fn missing<T>(&mut self, key: &str, rule: &Rule) -> Option<T> {
        // A key under a former name is reported separately.
        let has = |name: &&str| self.table.is_some_and(|table| table.contains_key(*name));
        if rule.formerly.iter().any(has) {
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

/// The section as it is where nothing is written; `None` if a key of it is required.
#[must_use]
pub fn unwritten<S: Section>() -> Option<S> {
    read_table(&Table::new(), &mut Sink::default())
}

/// Reads every member of an array of tables, each with the node it was read from.
pub(crate) fn read_array<'t, S: Section>(root: &'t Table, sink: &mut Sink) -> Vec<(S, &'t Node)> {
    let Some(entry) = root.get(S::SCHEMA.path) else {
        return Vec::new();
    };
    let crate::document::tree::Value::Array(items) = &entry.node.value else {
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

/// Reads the table under `name` of a member of an array; `None` if there is none, or it was
/// reported.
pub(crate) fn read_inner<S: Section>(item: &Node, name: &str, sink: &mut Sink) -> Option<S> {
    let entry = item.as_table()?.get(name)?;
    let mut reader = Reader {
        table: Some(entry.node.as_table()?),
        at: entry.key.clone(),
        path: S::SCHEMA.path,
        sink,
    };
    S::read(&mut reader)
}

/// Declares a section: `field formerly "old": Type = "default" where "min"..="max";` where
/// the default is written as in a variable. A type without a default is required unless it
/// is an `Option`.
#[macro_export]
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident ($shape:ident $path:expr) {
            $(
                $(#[doc = $fdoc:literal])*
                $field:ident $(as $key:literal)? $(formerly $($old:literal),+)? : $type:ty
                $(= $default:literal)? $(where $min:literal ..= $max:literal)?;
            )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $name {
            $($(#[doc = $fdoc])* pub $field: $type,)*
        }

        impl $crate::document::schema::Section for $name {
            const SCHEMA: $crate::document::schema::Schema = $crate::document::schema::Schema {
                path: $path,
                shape: $crate::document::schema::Shape::$shape,
                doc: &[$($doc),*],
                keys: &[$($crate::document::schema::Key {
                    name: $crate::key_name!($field $($key)?),
                    doc: &[$($fdoc),*],
                    kind: <$type as $crate::document::schema::Field>::kind,
                    show: <$type as $crate::document::schema::Field>::show,
                    optional: <$type as $crate::document::schema::Field>::OPTIONAL,
                    default: $crate::maybe!($($default)?),
                    bounds: $crate::maybe!($(($min, $max))?),
                    formerly: &[$($($old),+)?],
                    private: <$type as $crate::document::schema::Field>::PRIVATE,
                }),*],
            };

            fn read(reader: &mut $crate::document::schema::Reader<'_>) -> Option<Self> {
                $(let $field = <$type as $crate::document::schema::Field>::read(
                    reader,
                    $crate::key_name!($field $($key)?),
                    &$crate::document::schema::Rule {
                        default: $crate::maybe!($($default)?),
                        bounds: $crate::maybe!($(($min, $max))?),
                        formerly: &[$($($old),+)?],
                    },
                );)*
                Some(Self { $($field: $field?),* })
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! key_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $key:literal) => {
        $key
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! maybe {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}
