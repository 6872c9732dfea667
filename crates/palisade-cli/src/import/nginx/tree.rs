//! Parses tokens into directives, with the included files.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::ReadFile;
use super::lexer::{self, Kind, Token};
use crate::import::problem::{Place, Problem};

/// Deepest nesting of included files.
const INCLUDES_DEEP_MAX: usize = 16;
/// Most files of a configuration.
const FILES_MAX: usize = 1_000;
/// Deepest nesting of blocks.
const BLOCKS_DEEP_MAX: usize = 64;

/// A directive, its comments and its block.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    pub(super) place: Place,
    pub(super) name: String,
    pub(super) arguments: Vec<String>,
    pub(super) comments: Vec<String>,
    pub(super) block: Vec<Directive>,
}

/// Reads a configuration with all that it includes.
pub(super) fn read(
    path: &Path,
    main: (Rc<str>, String),
    read: &ReadFile<'_>,
    problems: &mut Vec<Problem>,
) -> Vec<Directive> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut reader = Reader {
        folder,
        read,
        problems,
        files: 0,
    };
    reader.file(main, 0)
}

struct Reader<'a> {
    folder: &'a Path,
    read: &'a ReadFile<'a>,
    problems: &'a mut Vec<Problem>,
    files: usize,
}

impl Reader<'_> {
    fn refuse(&mut self, place: Place, message: &str, hint: &str) {
        self.problems.push(Problem::new(place, message, hint));
    }

    fn file(&mut self, (name, text): (Rc<str>, String), depth: usize) -> Vec<Directive> {
        match lexer::tokens(&text) {
            Ok(tokens) => {
                let mut tokens = Tokens {
                    file: name,
                    tokens: tokens.into_iter().peekable(),
                };
                self.block(&mut tokens, depth, 0)
            }
            Err((line, message)) => {
                let place = Place::new(&name, line);
                self.refuse(place, message, "correct the line; `nginx -t` says more");
                Vec::new()
            }
        }
    }

    /// Reads directives up to the end of the block or file.
    fn block(&mut self, tokens: &mut Tokens, depth: usize, level: usize) -> Vec<Directive> {
        let mut found: Vec<Directive> = Vec::new();
        let mut above = Vec::new();
        let mut ended = 0;
        while let Some(token) = tokens.tokens.next() {
            match token.kind {
                // A comment on the line of a directive is about that one, a comment on a line of
                // its own about the next.
                Kind::Comment(text) if token.line == ended => {
                    if let Some(last) = found.last_mut() {
                        last.comments.push(text);
                    }
                }
                Kind::Comment(text) => above.push(text),
                Kind::End => ended = token.line,
                Kind::Close => break,
                Kind::Open => {
                    let place = Place::new(&tokens.file, token.line);
                    self.refuse(place, "a block has no name", "`nginx -t` says more");
                    break;
                }
                Kind::Word(name) => {
                    let comments = std::mem::take(&mut above);
                    let place = Place::new(&tokens.file, token.line);
                    let (arguments, opens, end) = tokens.arguments();
                    ended = end;
                    let block = match opens {
                        true if level >= BLOCKS_DEEP_MAX => {
                            self.refuse(place.clone(), "blocks stand too deep", "flatten them");
                            break;
                        }
                        true => self.block(tokens, depth, level + 1),
                        false => Vec::new(),
                    };
                    let one = Directive {
                        place,
                        name,
                        arguments,
                        comments,
                        block,
                    };
                    match one.name.as_str() {
                        "include" => found.extend(self.include(&one, depth)),
                        _ => found.push(one),
                    }
                }
            }
        }
        found
    }

    fn include(&mut self, include: &Directive, depth: usize) -> Vec<Directive> {
        let place = &include.place;
        if depth >= INCLUDES_DEEP_MAX || self.files >= FILES_MAX {
            let hint = "a file may include itself: look at the `include` lines";
            self.refuse(place.clone(), "too many files include each other", hint);
            return Vec::new();
        }
        let mut found = Vec::new();
        for argument in &include.arguments {
            for path in self.included(argument) {
                self.files += 1;
                match (self.read)(&path) {
                    Ok(file) => found.extend(self.file(file, depth + 1)),
                    Err(_) => {
                        let hint = "run the import where nginx's folder is, or remove the line";
                        self.refuse(place.clone(), "the included file cannot be read", hint);
                    }
                }
            }
        }
        found
    }

    /// Returns the files that match a pattern; the last part may have a `*`, as in `conf.d/*.conf`.
    fn included(&self, pattern: &str) -> Vec<PathBuf> {
        let path = self.folder.join(pattern);
        let name = path.file_name().and_then(|name| name.to_str());
        let Some((start, end)) = name.and_then(|name| name.split_once('*')) else {
            return vec![path];
        };
        let folder = path.parent().unwrap_or(Path::new("."));
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with(start) && name.ends_with(end))
            })
            .collect();
        files.sort();
        files
    }
}

struct Tokens {
    file: Rc<str>,
    tokens: std::iter::Peekable<std::vec::IntoIter<Token>>,
}

impl Tokens {
    /// Reads the words after a name. Returns them, whether a block opens, and the last line.
    fn arguments(&mut self) -> (Vec<String>, bool, usize) {
        let mut words = Vec::new();
        let mut line = 0;
        loop {
            match self.tokens.peek().map(|token| &token.kind) {
                None | Some(Kind::Close) => return (words, false, line),
                Some(_) => {}
            }
            let Some(token) = self.tokens.next() else {
                return (words, false, line);
            };
            line = token.line;
            match token.kind {
                Kind::Word(word) => words.push(word),
                Kind::Open => return (words, true, line),
                Kind::End | Kind::Close => return (words, false, line),
                Kind::Comment(_) => {}
            }
        }
    }
}
