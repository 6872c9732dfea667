//! Names in bodies and queries: what is counted, beside readers that were written apart from
//! it and read as applications do. Whatever one of them finds under the name's field is the
//! name that was counted, or the request was refused.

use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderValue};
use palisade::extract::login::username;
use palisade_core::Id;
use palisade_policy::UsernameSource;

const FIELD: &str = "email";
const FORM: &str = "application/x-www-form-urlencoded";
const DECOY: &str = "decoy";

fn form() -> UsernameSource {
    UsernameSource::Form(FIELD.to_owned())
}

fn counted(
    source: &UsernameSource,
    query: Option<&str>,
    media: &'static str,
    body: &[u8],
) -> Option<Id> {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(media))]);
    username(source, query, &headers, body).ok().flatten()
}

/// What is counted of an application's value: of the plainest form that holds it.
fn counted_as(value: &[u8]) -> Option<Id> {
    let escaped: String = value.iter().map(|byte| format!("%{byte:02x}")).collect();
    let body = format!("{FIELD}={escaped}");
    counted(&form(), None, FORM, body.as_bytes())
}

/// Every value that some reader found is the name that was counted.
fn agree(values: impl IntoIterator<Item = Vec<u8>>, name: &Id) {
    for value in values {
        let found = counted_as(&value);
        let shown = String::from_utf8_lossy(&value);
        assert_eq!(found.as_ref(), Some(name), "a reader finds {shown:?}");
    }
}

/// A URL-encoded form.
pub fn form_names(data: &[u8]) {
    if let Some(name) = counted(&form(), None, FORM, data) {
        let plain = forms::plain(data, b"&", FIELD);
        assert_eq!(plain.len(), 1, "one field of the very name");
        agree(forms::every_reader(data, FIELD), &name);
    }
}

/// A query beside a form or a JSON body that names somebody.
pub fn query_names(data: &[u8]) {
    let Ok(query) = std::str::from_utf8(data) else {
        return;
    };
    let body = format!("{FIELD}={DECOY}");
    let json = format!("{{\"{FIELD}\":\"{DECOY}\"}}");
    let path = UsernameSource::Json(vec![FIELD.to_owned()]);
    let names = [
        counted(&form(), Some(query), FORM, body.as_bytes()),
        counted(&path, Some(query), "application/json", json.as_bytes()),
    ];
    for name in names.into_iter().flatten() {
        agree(forms::every_reader(data, FIELD), &name);
    }
}

/// A multipart form whose boundary is `b`.
pub fn multipart_names(data: &[u8]) {
    let Some(name) = counted(&form(), None, "multipart/form-data; boundary=b", data) else {
        return;
    };
    let found = multipart::values(data, FIELD);
    assert_eq!(found.len(), 1, "one part of the name");
    agree(found, &name);
    // Some applications take any body for a URL-encoded one.
    agree(forms::plain(data, b"&", FIELD), &name);
}

/// A JSON body.
pub fn json_names(data: &[u8]) {
    for path in [&["email"][..], &["user", "name"]] {
        let source = UsernameSource::Json(path.iter().map(|&name| name.to_owned()).collect());
        let Some(name) = counted(&source, None, "application/json", data) else {
            continue;
        };
        let Some(value) = json::read(data) else {
            panic!("it is no JSON to a strict reader");
        };
        let found = value.at_any_depth(path);
        assert_eq!(found.len(), 1, "one member of the name");
        agree(found.into_iter().map(String::into_bytes), &name);
    }
}

/// Readers of URL-encoded forms.
mod forms {
    /// What each reader finds.
    pub(super) fn every_reader(form: &[u8], field: &str) -> Vec<Vec<u8>> {
        let mut found = plain(form, b"&", field);
        found.extend(plain(form, b"&;", field));
        found.extend(of_any_case(form, field));
        found.extend(php(form, field));
        found.extend(qs(form, field));
        found
    }

    /// The web's own rules; Flask takes the first, Django the last.
    pub(super) fn plain(form: &[u8], marks: &[u8], field: &str) -> Vec<Vec<u8>> {
        let pairs = form.split(|byte| marks.contains(byte)).map(cut);
        let own = pairs.filter(|(key, _)| unescaped(key) == field.as_bytes());
        own.map(|(_, value)| unescaped(value)).collect()
    }

    /// ASP.NET.
    fn of_any_case(form: &[u8], field: &str) -> Vec<Vec<u8>> {
        let pairs = form.split(|byte| *byte == b'&').map(cut);
        let own = pairs.filter(|(key, _)| unescaped(key).eq_ignore_ascii_case(field.as_bytes()));
        own.map(|(_, value)| unescaped(value)).collect()
    }

    /// PHP: leading spaces go, a dot and a space are `_`, brackets nest, NUL ends a name.
    fn php(form: &[u8], field: &str) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        for (key, value) in form.split(|byte| *byte == b'&').map(cut) {
            let key = unescaped(key);
            let key = key.split(|byte| *byte == 0).next().unwrap_or_default();
            let from = key.iter().position(|byte| *byte != b' ');
            let key = from.map_or(&b""[..], |from| &key[from..]);
            let root = key.split(|byte| *byte == b'[').next().unwrap_or_default();
            let seen = root.iter().map(|byte| match byte {
                b' ' | b'.' => b'_',
                other => *other,
            });
            if seen.eq(field.bytes()) {
                found.push(unescaped(value));
            }
        }
        found
    }

    /// Express: a name goes on to `]=`, and its root is what stands before a bracket.
    fn qs(form: &[u8], field: &str) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        for pair in form.split(|byte| *byte == b'&') {
            let bracket = pair.windows(2).position(|two| two == b"]=");
            let (key, value) = match bracket {
                Some(at) => (&pair[..=at], &pair[at + 2..]),
                None => cut(pair),
            };
            let key = unescaped(key);
            let root = match key.strip_prefix(b"[") {
                Some(inner) => inner.split(|byte| *byte == b']').next(),
                None => key.split(|byte| *byte == b'[').next(),
            };
            if root == Some(field.as_bytes()) {
                found.push(unescaped(value));
            }
        }
        found
    }

    fn cut(pair: &[u8]) -> (&[u8], &[u8]) {
        let mut halves = pair.splitn(2, |byte| *byte == b'=');
        let key = halves.next().unwrap_or_default();
        (key, halves.next().unwrap_or_default())
    }

    fn unescaped(text: &[u8]) -> Vec<u8> {
        let hex = |byte: u8| char::from(byte).to_digit(16);
        let mut plain = Vec::new();
        let mut at = 0;
        while let Some(&byte) = text.get(at) {
            let digits = (text.get(at + 1).copied().and_then(hex)).zip(text.get(at + 2).copied());
            let escape = digits.and_then(|(high, low)| u8::try_from(high * 16 + hex(low)?).ok());
            match (byte, escape) {
                (b'%', Some(escaped)) => {
                    plain.push(escaped);
                    at += 3;
                    continue;
                }
                (b'+', _) => plain.push(b' '),
                _ => plain.push(byte),
            }
            at += 1;
        }
        plain
    }
}

/// A loose reader of multipart forms with the boundary `b`: lines may end with a bare LF, and
/// names are cut at NUL and compared without case.
mod multipart {
    pub(super) fn values(body: &[u8], field: &str) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let mut part: Option<Vec<&[u8]>> = None;
        for line in body.split_inclusive(|byte| *byte == b'\n') {
            let text = line.trim_ascii_end();
            if text == b"--b" || text == b"--b--" {
                found.extend(
                    part.replace(Vec::new())
                        .and_then(|lines| value(&lines, field)),
                );
            } else if let Some(lines) = &mut part {
                lines.push(line);
            }
        }
        found
    }

    fn value(lines: &[&[u8]], field: &str) -> Option<Vec<u8>> {
        let blank = lines.iter().position(|line| line.trim_ascii().is_empty())?;
        let mut heads = lines[..blank].iter();
        heads.find(|head| names(&String::from_utf8_lossy(head), field))?;
        let value = lines[blank + 1..].concat();
        let value = value.strip_suffix(b"\n").unwrap_or(&value);
        Some(value.strip_suffix(b"\r").unwrap_or(value).to_vec())
    }

    fn names(head: &str, field: &str) -> bool {
        let head = head.trim().to_ascii_lowercase();
        let Some(said) = head.strip_prefix("content-disposition:") else {
            return false;
        };
        said.split(';').any(|parameter| {
            let name = parameter.trim().strip_prefix("name=").unwrap_or_default();
            let name = name.trim_matches('"').split('\0').next();
            name.map(str::trim) == Some(field)
        })
    }
}

/// A strict reader of JSON (RFC 8259).
mod json {
    pub(super) enum Value {
        Text(String),
        Number(String),
        Object(Vec<(String, Value)>),
        List(Vec<Value>),
        Word,
    }

    impl Value {
        /// What stands at a path, wherever it begins and in whatever case it is written.
        pub(super) fn at_any_depth(&self, path: &[&str]) -> Vec<String> {
            let mut found = self.at(path);
            match self {
                Self::Object(members) => {
                    found.extend(
                        members
                            .iter()
                            .flat_map(|(_, inner)| inner.at_any_depth(path)),
                    );
                }
                Self::List(items) => {
                    found.extend(items.iter().flat_map(|inner| inner.at_any_depth(path)));
                }
                _ => {}
            }
            found
        }

        fn at(&self, path: &[&str]) -> Vec<String> {
            match (self, path) {
                (Self::Text(text) | Self::Number(text), []) => vec![text.clone()],
                (Self::Object(members), [name, rest @ ..]) => {
                    let is_own = |key: &str| {
                        let key = key.split('\0').next().unwrap_or_default();
                        key.eq_ignore_ascii_case(name)
                    };
                    let own = members.iter().filter(|(key, _)| is_own(key));
                    own.flat_map(|(_, inner)| inner.at(rest)).collect()
                }
                _ => Vec::new(),
            }
        }
    }

    pub(super) fn read(text: &[u8]) -> Option<Value> {
        let text = std::str::from_utf8(text).ok()?;
        let mut reader = Reader { text, at: 0 };
        let value = reader.value()?;
        reader.skip_space();
        (reader.at == text.len()).then_some(value)
    }

    struct Reader<'a> {
        text: &'a str,
        at: usize,
    }

    impl Reader<'_> {
        fn peek(&self) -> Option<u8> {
            self.text.as_bytes().get(self.at).copied()
        }

        fn skip_space(&mut self) {
            while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
                self.at += 1;
            }
        }

        fn take(&mut self, wanted: &[u8]) -> Option<()> {
            let rest = &self.text.as_bytes()[self.at..];
            rest.starts_with(wanted).then_some(())?;
            self.at += wanted.len();
            Some(())
        }

        fn value(&mut self) -> Option<Value> {
            self.skip_space();
            match self.peek()? {
                b'"' => self.string().map(Value::Text),
                b'{' => self.object(),
                b'[' => self.list(),
                b't' => self.take(b"true").map(|()| Value::Word),
                b'f' => self.take(b"false").map(|()| Value::Word),
                b'n' => self.take(b"null").map(|()| Value::Word),
                _ => self.number().map(Value::Number),
            }
        }

        fn object(&mut self) -> Option<Value> {
            let mut members = Vec::new();
            self.take(b"{")?;
            self.skip_space();
            if self.take(b"}").is_some() {
                return Some(Value::Object(members));
            }
            loop {
                self.skip_space();
                let key = self.string()?;
                self.skip_space();
                self.take(b":")?;
                members.push((key, self.value()?));
                self.skip_space();
                if self.take(b",").is_none() {
                    self.take(b"}")?;
                    return Some(Value::Object(members));
                }
            }
        }

        fn list(&mut self) -> Option<Value> {
            let mut items = Vec::new();
            self.take(b"[")?;
            self.skip_space();
            if self.take(b"]").is_some() {
                return Some(Value::List(items));
            }
            loop {
                items.push(self.value()?);
                self.skip_space();
                if self.take(b",").is_none() {
                    self.take(b"]")?;
                    return Some(Value::List(items));
                }
            }
        }

        fn number(&mut self) -> Option<String> {
            let is_of_number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
            let rest = &self.text[self.at..];
            let length = rest.bytes().take_while(is_of_number).count();
            let text = &rest[..length];
            text.parse::<f64>().ok()?;
            self.at += length;
            Some(text.to_owned())
        }

        fn string(&mut self) -> Option<String> {
            self.take(b"\"")?;
            let mut units: Vec<u16> = Vec::new();
            loop {
                let next = self.text[self.at..].chars().next()?;
                self.at += next.len_utf8();
                match next {
                    '"' => return String::from_utf16(&units).ok(),
                    '\\' => units.push(self.escape()?),
                    '\0'..='\u{1f}' => return None,
                    plain => units.extend(plain.encode_utf16(&mut [0; 2]).iter()),
                }
            }
        }

        fn escape(&mut self) -> Option<u16> {
            let kind = self.peek()?;
            self.at += 1;
            Some(match kind {
                b'"' | b'\\' | b'/' => u16::from(kind),
                b'b' => 8,
                b'f' => 12,
                b'n' => 10,
                b'r' => 13,
                b't' => 9,
                b'u' => {
                    let digits = self.text.get(self.at..self.at + 4)?;
                    self.at += 4;
                    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                    u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)?
                }
                _ => return None,
            })
        }
    }
}
