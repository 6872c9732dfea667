//! YAML with line numbers and comments, which a serde value would lose.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use granit_parser::{Event, Parser, Placement, ScalarStyle};

use super::problem::{Place, Problem};

/// Most nodes of a file, with aliases expanded: a few bytes may expand to millions.
const NODES_MAX: usize = 100_000;

/// A value and the line it starts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key of a mapping and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) node: Node,
}

/// A comment and the line it belongs to: its own, or the next one with content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Comment {
    pub(super) about: usize,
    pub(super) text: String,
}

/// A file with one document.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) root: Node,
    pub(super) comments: Vec<Comment>,
}

/// Reads a file.
pub(super) fn parse(file: &Rc<str>, text: &str) -> Result<Document, Problem> {
    let mut builder = Builder::new(file);
    for next in Parser::new_from_str(text) {
        let (event, span) = next.map_err(|error| {
            let place = Place::new(file, error.marker().line());
            let message = format!("this is no valid YAML: {}", error.info());
            Problem::new(place, message, "correct the line, or the one before it")
        })?;
        builder.event(event, span.start.line())?;
    }
    Ok(builder.document())
}

/// A collection that is still open.
enum Open {
    List(Vec<Node>),
    Map(Vec<Entry>, Option<(String, usize)>),
}

struct Frame {
    line: usize,
    anchor: usize,
    open: Open,
}

struct Builder<'a> {
    file: &'a Rc<str>,
    root: Option<Node>,
    stack: Vec<Frame>,
    anchors: BTreeMap<usize, Node>,
    nodes: usize,
    content: BTreeSet<usize>,
    comments: Vec<(usize, Placement, String)>,
}

impl<'a> Builder<'a> {
    fn new(file: &'a Rc<str>) -> Self {
        Self {
            file,
            root: None,
            stack: Vec::new(),
            anchors: BTreeMap::new(),
            nodes: 0,
            content: BTreeSet::new(),
            comments: Vec::new(),
        }
    }

    fn problem(&self, line: usize, message: &str, hint: &str) -> Problem {
        Problem::new(Place::new(self.file, line), message, hint)
    }

    fn event(&mut self, event: Event<'_>, line: usize) -> Result<(), Problem> {
        match event {
            Event::Comment(text, placement) => {
                self.comments.push((line, placement, plain(&text)));
                Ok(())
            }
            Event::Scalar(text, style, anchor, _) => {
                let value = scalar(&text, style);
                self.complete(Node { line, value }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.open(Open::List(Vec::new()), anchor, line),
            Event::MappingStart(_, anchor, _) => {
                self.open(Open::Map(Vec::new(), None), anchor, line)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(id) => self.alias(id, line),
            Event::DocumentStart(..) if self.root.is_some() => {
                let hint = "put each document into a file of its own";
                Err(self.problem(line, "the file has a second document", hint))
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, open: Open, anchor: usize, line: usize) -> Result<(), Problem> {
        self.content.insert(line);
        self.stack.push(Frame { line, anchor, open });
        Ok(())
    }

    fn close(&mut self) -> Result<(), Problem> {
        let Some(frame) = self.stack.pop() else {
            return Ok(());
        };
        let value = match frame.open {
            Open::List(items) => Value::List(items),
            Open::Map(entries, _) => Value::Map(merged(entries)),
        };
        let line = frame.line;
        self.complete(Node { line, value }, frame.anchor)
    }

    fn alias(&mut self, id: usize, line: usize) -> Result<(), Problem> {
        let Some(known) = self.anchors.get(&id) else {
            let hint = "define the anchor before it is used, and not around its own use";
            return Err(self.problem(line, "an alias leads nowhere", hint));
        };
        self.nodes += count(known);
        let value = known.value.clone();
        self.complete(Node { line, value }, 0)
    }

    fn complete(&mut self, node: Node, anchor: usize) -> Result<(), Problem> {
        self.nodes += 1;
        self.content.insert(node.line);
        if self.nodes > NODES_MAX {
            let hint = "split it; aliases count as often as they are used";
            return Err(self.problem(node.line, "the file has too many values", hint));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.stack.last_mut().map(|frame| &mut frame.open) {
            None => self.root = Some(node),
            Some(Open::List(items)) => items.push(node),
            Some(Open::Map(entries, key)) => match key.take() {
                Some((key, line)) => entries.push(Entry { key, line, node }),
                None => return self.key(node),
            },
        }
        Ok(())
    }

    fn key(&mut self, node: Node) -> Result<(), Problem> {
        let line = node.line;
        let Value::Scalar(text) = node.value else {
            return Err(self.problem(line, "a key is not a plain word", "write `key: value`"));
        };
        let Some(Open::Map(entries, key)) = self.stack.last_mut().map(|frame| &mut frame.open)
        else {
            return Ok(());
        };
        if text != MERGE && entries.iter().any(|entry| entry.key == text) {
            return Err(self.problem(line, "a key stands there twice", "keep one of them"));
        }
        *key = Some((text, line));
        Ok(())
    }

    fn document(self) -> Document {
        let last = usize::MAX;
        let about = |line: usize, placement: Placement| match placement {
            Placement::Right => line,
            _ => self
                .content
                .range(line + 1..)
                .next()
                .copied()
                .unwrap_or(last),
        };
        let comments = self.comments.iter();
        Document {
            comments: comments
                .map(|(line, placement, text)| Comment {
                    about: about(*line, *placement),
                    text: text.clone(),
                })
                .collect(),
            root: self.root.unwrap_or(Node {
                line: 1,
                value: Value::Null,
            }),
        }
    }
}

/// The key that merges another mapping's entries.
const MERGE: &str = "<<";

fn merged(entries: Vec<Entry>) -> Vec<Entry> {
    let (merges, mut own): (Vec<Entry>, Vec<Entry>) =
        entries.into_iter().partition(|entry| entry.key == MERGE);
    for merge in merges {
        let from = match merge.node.value {
            Value::List(items) => items,
            _ => vec![merge.node],
        };
        for entry in from.into_iter().flat_map(entries_of) {
            if own.iter().all(|known| known.key != entry.key) {
                own.push(entry);
            }
        }
    }
    own
}

fn entries_of(node: Node) -> Vec<Entry> {
    match node.value {
        Value::Map(entries) => entries,
        _ => Vec::new(),
    }
}

fn count(node: &Node) -> usize {
    1 + match &node.value {
        Value::List(items) => items.iter().map(count).sum(),
        Value::Map(entries) => entries.iter().map(|entry| count(&entry.node)).sum(),
        _ => 0,
    }
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" if style == ScalarStyle::Plain => Value::Null,
        text => Value::Scalar(text.to_owned()),
    }
}

/// Returns the text of a comment, without characters that a TOML comment may not hold.
fn plain(text: &str) -> String {
    let kept = text.trim_start_matches('#').trim().chars();
    kept.filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Document, String> {
        parse(&Rc::from("f.yaml"), text).map_err(|problem| problem.to_string())
    }

    #[test]
    fn a_comment_belongs_to_its_line_or_to_the_next_with_content() {
        let text = "# head\n\n# above\na: 1 # beside\n# of b\n# too\nb:\n  - x\n# last\n";
        let comments = read(text).unwrap().comments;
        let found: Vec<_> = comments
            .iter()
            .map(|comment| (comment.about, comment.text.as_str()))
            .collect();
        let last = usize::MAX;
        let expected = [
            (4, "head"),
            (4, "above"),
            (4, "beside"),
            (7, "of b"),
            (7, "too"),
            (last, "last"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn aliases_and_merges_are_written_out_within_a_bound() {
        let text = "a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\nc: *a\n";
        let Value::Map(entries) = read(text).unwrap().root.value else {
            panic!("no mapping");
        };
        let keys = |node: &Node| -> Vec<String> {
            let entries = entries_of(node.clone()).into_iter();
            entries
                .map(|entry| format!("{}={:?}", entry.key, entry.node.value))
                .collect()
        };
        assert_eq!(
            keys(&entries[1].node),
            ["y=Scalar(\"3\")", "x=Scalar(\"1\")"]
        );
        assert_eq!(entries[2].node.line, 5);
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for step in 1..9 {
            let one = format!("*a{},", step - 1);
            bomb.push_str(&format!("a{step}: &a{step} [{}]\n", one.repeat(10)));
        }
        assert!(read(&bomb).unwrap_err().contains("too many values"));
    }

    #[test]
    fn what_cannot_be_read_names_its_line() {
        let cases = [
            ("a: 1\nb: [1, 2\n", "f.yaml:"),
            ("a: 1\na: 2\n", "f.yaml:2: a key stands there twice"),
            (
                "a: 1\n---\nb: 2\n",
                "f.yaml:2: the file has a second document",
            ),
            ("? [a]\n: 1\n", "f.yaml:1: a key is not a plain word"),
            ("a: *b\n", "f.yaml:1: this is no valid YAML"),
        ];
        for (text, expected) in cases {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(expected), "{text}: {refused}");
            assert!(refused.contains("hint: "), "{refused}");
        }
    }
}
