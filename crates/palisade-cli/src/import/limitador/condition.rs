//! Conditions and variables of limitador, as far as descriptors can express them.

/// A test of one entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Term {
    pub(super) key: String,
    pub(super) test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Is(String),
    IsNot(String),
    StartsWith(String),
}

/// Returns the terms of a condition, all of which must hold; `None` if descriptors cannot express
/// it.
pub(super) fn terms(text: &str) -> Option<Vec<Term>> {
    split_and(text)?.into_iter().map(term).collect()
}

/// Returns the key of an entry: `descriptors[0].KEY`, `descriptors[0]['KEY']`, or `KEY` as
/// limitador wrote it before version 2.
pub(super) fn key(text: &str) -> Option<String> {
    let text = text.trim();
    let key = match text.strip_prefix("descriptors[") {
        None => text,
        Some(rest) => {
            let (number, rest) = rest.split_once(']')?;
            let _: u32 = number.trim().parse().ok()?;
            match rest.strip_prefix('.') {
                Some(name) => name,
                None => return literal(rest.strip_prefix('[')?.strip_suffix(']')?),
            }
        }
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    (!key.is_empty() && key.chars().all(is_plain)).then(|| key.to_owned())
}

/// Splits at `&&` outside of quotes.
fn split_and(text: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let mut begin = 0;
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '\'' || c == '"' => quote = Some(c),
            None if text[at..].starts_with("&&") => {
                parts.push(&text[begin..at]);
                begin = at + 2;
            }
            None => {}
        }
    }
    parts.push(&text[begin..]);
    quote.is_none().then_some(parts)
}

fn term(text: &str) -> Option<Term> {
    let text = text.trim();
    if let Some((left, rest)) = text.split_once(".startsWith(") {
        let value = literal(rest.strip_suffix(')')?)?;
        return Some(Term {
            key: key(left)?,
            test: Test::StartsWith(value),
        });
    }
    for (operator, make) in [
        ("==", Test::Is as fn(String) -> Test),
        ("!=", Test::IsNot as fn(String) -> Test),
    ] {
        if let Some((left, right)) = text.split_once(operator) {
            let (key, value) = match literal(left) {
                Some(value) => (key(right)?, value),
                None => (key(left)?, literal(right)?),
            };
            // No descriptor has an empty value.
            let test = (!value.is_empty()).then(|| make(value))?;
            return Some(Term { key, test });
        }
    }
    None
}

/// Returns a text in quotes; one with escapes is not read.
fn literal(text: &str) -> Option<String> {
    let text = text.trim();
    let quote = text.chars().next().filter(|c| "'\"".contains(*c))?;
    let inner = text.get(1..)?.strip_suffix(quote)?;
    (!inner.contains(quote) && !inner.contains('\\')).then(|| inner.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_of_both_syntaxes_are_read_and_the_rest_is_not() {
        let one = |key: &str, test: Test| {
            Some(vec![Term {
                key: key.to_owned(),
                test,
            }])
        };
        let is = |value: &str| Test::Is(value.to_owned());
        assert_eq!(terms("req.method == 'GET'"), one("req.method", is("GET")));
        assert_eq!(
            terms("descriptors[0]['req.method'] == \"GET\""),
            one("req.method", is("GET"))
        );
        assert_eq!(terms("'GET' == descriptors[1].m"), one("m", is("GET")));
        assert_eq!(
            terms("m != 'a && b'"),
            one("m", Test::IsNot("a && b".to_owned()))
        );
        assert_eq!(
            terms("descriptors[0].path.startsWith('/v1')"),
            one("path", Test::StartsWith("/v1".to_owned()))
        );
        assert_eq!(terms("a == 'x' && b == 'y'").unwrap().len(), 2);
        for other in [
            "a == b",
            "a in ['x']",
            "a == 'x' || b == 'y'",
            "size(descriptors) > 1",
            "a == 'it\\'s'",
            "a == 'open",
            "a == ''",
            "'' != a",
            "",
        ] {
            assert_eq!(terms(other), None, "{other}");
        }
        assert_eq!(key("descriptors[0]['a b']").as_deref(), Some("a b"));
        assert_eq!(key("descriptors[x].a"), None);
    }
}
