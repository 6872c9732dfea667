//! nginx's syntax: words, quotes, braces, comments.

/// A token of the file and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) line: usize,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Word(String),
    Open,
    Close,
    End,
    Comment(String),
}

/// Returns the tokens of a text; an error is a line and the problem with it.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, (usize, &'static str)> {
    let mut lexer = Lexer {
        rest: text,
        line: 1,
        found: Vec::new(),
    };
    while lexer.next()? {}
    Ok(lexer.found)
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    found: Vec<Token>,
}

impl Lexer<'_> {
    fn next(&mut self) -> Result<bool, (usize, &'static str)> {
        self.skip_space();
        let Some(c) = self.rest.chars().next() else {
            return Ok(false);
        };
        match c {
            '#' => self.comment(),
            '{' if self.after_lua() => self.raw_block()?,
            '{' => self.sign(Kind::Open),
            '}' => self.sign(Kind::Close),
            ';' => self.sign(Kind::End),
            '"' | '\'' => self.quoted(c)?,
            _ => self.word(),
        }
        Ok(true)
    }

    fn push(&mut self, kind: Kind) {
        let line = self.line;
        self.found.push(Token { line, kind });
    }

    /// Advances by this many bytes, and returns them.
    fn pass(&mut self, bytes: usize) -> &str {
        let (passed, rest) = self.rest.split_at(bytes);
        self.line += passed.matches('\n').count();
        self.rest = rest;
        passed
    }

    fn skip_space(&mut self) {
        let space = self.rest.len() - self.rest.trim_start().len();
        self.pass(space);
    }

    fn sign(&mut self, kind: Kind) {
        self.push(kind);
        self.pass(1);
    }

    fn comment(&mut self) {
        let end = self.rest.find('\n').unwrap_or(self.rest.len());
        let line = self.line;
        let text = self.pass(end).trim_start_matches('#').trim().to_owned();
        let kind = Kind::Comment(text);
        self.found.push(Token { line, kind });
    }

    fn word(&mut self) {
        let mut end = self.rest.len();
        let mut inside = false;
        for (at, c) in self.rest.char_indices() {
            // `${name}` is a variable, not a block.
            match c {
                '{' if self.rest[..at].ends_with('$') => inside = true,
                '}' if inside => inside = false,
                c if c.is_whitespace() || "{};".contains(c) => {
                    end = at;
                    break;
                }
                _ => {}
            }
        }
        let line = self.line;
        let kind = Kind::Word(self.pass(end).to_owned());
        self.found.push(Token { line, kind });
    }

    fn quoted(&mut self, quote: char) -> Result<(), (usize, &'static str)> {
        let line = self.line;
        let mut text = String::new();
        let mut escaped = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            match c {
                c if escaped => {
                    text.push(c);
                    escaped = false;
                }
                '\\' => escaped = true,
                c if c == quote => {
                    self.pass(at + 1);
                    let kind = Kind::Word(text);
                    self.found.push(Token { line, kind });
                    return Ok(());
                }
                c => text.push(c),
            }
        }
        Err((line, "a quote is not closed"))
    }

    fn after_lua(&self) -> bool {
        match self.found.last().map(|token| &token.kind) {
            Some(Kind::Word(word)) => word.ends_with("_by_lua_block"),
            _ => false,
        }
    }

    /// Skips a block in another language, by its braces.
    fn raw_block(&mut self) -> Result<(), (usize, &'static str)> {
        let line = self.line;
        let mut depth = 0_usize;
        for (at, c) in self.rest.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                self.pass(at + 1);
                self.push(Kind::End);
                return Ok(());
            }
        }
        Err((line, "a block is not closed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let tokens = tokens(text).unwrap().into_iter();
        tokens
            .map(|token| format!("{}:{:?}", token.line, token.kind))
            .collect()
    }

    #[test]
    fn words_quotes_variables_and_comments_are_told_apart() {
        assert_eq!(
            words("# top\nzone \"a b\" ${x}y; # beside\nloc {\n}"),
            [
                "1:Comment(\"top\")",
                "2:Word(\"zone\")",
                "2:Word(\"a b\")",
                "2:Word(\"${x}y\")",
                "2:End",
                "2:Comment(\"beside\")",
                "3:Word(\"loc\")",
                "3:Open",
                "4:Close",
            ]
        );
        let lua = words("content_by_lua_block { if x { y } }\na;");
        assert_eq!(lua[1..], ["1:End", "2:Word(\"a\")", "2:End"]);
        assert_eq!(tokens("a \"b"), Err((1, "a quote is not closed")));
    }
}
