//! The usage that an application's answer states: in its body, in the last event of a stream that
//! has it, or in a header. The answer is read as it passes.

use std::sync::Arc;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use palisade_policy::UsedSource;

use super::members::{Members, Path, Scalar};

/// Units that an answer says were used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) total: Option<u64>,
    input: Option<u64>,
    output: Option<u64>,
    cached: Option<u64>,
}

impl Usage {
    /// Tokens of the prompt, those of them that were cached, and generated ones. What is not said
    /// is taken for generated, which costs more.
    pub(super) fn parts(&self, total: u64) -> (u64, u64, u64) {
        let output = self.output;
        let input = self.input;
        let input =
            input.unwrap_or_else(|| output.map_or(0, |output| total.saturating_sub(output)));
        let output = output.unwrap_or_else(|| total.saturating_sub(input));
        (input, self.cached.unwrap_or(0), output)
    }

    fn note(&mut self, at: usize, value: &Scalar) {
        let Scalar::Number(number) = *value else {
            return;
        };
        match at {
            0 => self.total = Some(number),
            1 | 2 => self.input = Some(number),
            3 | 4 => self.output = Some(number),
            _ => self.cached = Some(number),
        }
    }
}

/// Paths of the total and, beside it, of its parts as the interfaces of OpenAI name them.
fn paths(total: &Path) -> Arc<[Path]> {
    let parent = total.split_last().map_or(&[][..], |(_, parent)| parent);
    let beside = [
        "prompt_tokens",
        "input_tokens",
        "completion_tokens",
        "output_tokens",
        "prompt_tokens_details/cached_tokens",
        "input_tokens_details/cached_tokens",
    ];
    let beside = beside.map(|path| {
        let names = path.split('/').map(str::to_owned);
        parent.iter().cloned().chain(names).collect()
    });
    std::iter::once(total.clone()).chain(beside).collect()
}

/// Reads the usage from an answer.
pub(super) enum Reading {
    /// There is nothing to read in the body.
    Nothing(Usage),
    Body(Members, Usage),
    Events(Events),
}

impl Reading {
    /// The reading of an answer with this head.
    pub(super) fn of(source: &UsedSource, headers: &HeaderMap) -> Self {
        let path = match source {
            UsedSource::Json(path) => path,
            UsedSource::Header(name) => {
                let value = headers.get(&**name).and_then(|value| value.to_str().ok());
                let total = value.and_then(|value| value.trim().parse().ok());
                return Self::Nothing(Usage {
                    total,
                    ..Usage::default()
                });
            }
        };
        let is_plain = headers
            .get(CONTENT_ENCODING)
            .is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"));
        let media = headers
            .get(CONTENT_TYPE)
            .and_then(|media| media.to_str().ok());
        let media = media
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default();
        let media = media.trim().to_ascii_lowercase();
        match &*media {
            "text/event-stream" if is_plain => Self::Events(Events::new(&paths(path))),
            media if is_plain && media.ends_with("json") => {
                Self::Body(Members::new(&paths(path)), Usage::default())
            }
            _ => Self::Nothing(Usage::default()),
        }
    }

    /// Reads a part of the body.
    pub(super) fn saw(&mut self, part: &[u8]) {
        match self {
            Self::Nothing(_) => {}
            Self::Body(members, usage) => {
                members.feed(part, &mut |at, value| usage.note(at, &value));
            }
            Self::Events(events) => events.feed(part),
        }
    }

    /// The usage so far.
    pub(super) fn usage(&self) -> Usage {
        match self {
            Self::Nothing(usage) | Self::Body(_, usage) => *usage,
            Self::Events(events) => events.usage(),
        }
    }
}

/// The position in a line of an event stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    /// So many bytes of the name are `data:`.
    Name(usize),
    Data,
    /// Another field, or a comment.
    Other,
}

const DATA: &[u8] = b"data:";

/// Reads the usage from the last event of a stream that has one.
pub(super) struct Events {
    members: Members,
    line: Line,
    /// The last byte was a carriage return: a line feed after it ends no further line.
    has_returned: bool,
    current: Usage,
    last: Usage,
}

impl Events {
    fn new(paths: &Arc<[Path]>) -> Self {
        Self {
            members: Members::new(paths),
            line: Line::Name(0),
            has_returned: false,
            current: Usage::default(),
            last: Usage::default(),
        }
    }

    fn feed(&mut self, part: &[u8]) {
        for byte in part {
            let follows = std::mem::replace(&mut self.has_returned, *byte == b'\r');
            match (*byte, self.line) {
                (b'\n', _) if follows => {}
                (b'\n' | b'\r', line) => self.end_line(line),
                (byte, Line::Name(at)) if DATA.get(at) == Some(&byte) => {
                    self.line = match at + 1 == DATA.len() {
                        true => Line::Data,
                        false => Line::Name(at + 1),
                    };
                }
                (_, Line::Name(_) | Line::Other) => self.line = Line::Other,
                (byte, Line::Data) => self.read(byte),
            }
        }
    }

    fn read(&mut self, byte: u8) {
        let current = &mut self.current;
        self.members
            .feed(&[byte], &mut |at, value| current.note(at, &value));
    }

    fn end_line(&mut self, line: Line) {
        match line {
            // An empty line ends the event.
            Line::Name(0) => {
                self.last = self.usage();
                self.current = Usage::default();
                self.members.restart();
            }
            Line::Data => self.read(b'\n'),
            _ => {}
        }
        self.line = Line::Name(0);
    }

    fn usage(&self) -> Usage {
        match self.current.total {
            Some(_) => self.current,
            None => self.last,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn head(media: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(media))])
    }

    fn total() -> UsedSource {
        UsedSource::Json(vec!["usage".to_owned(), "total_tokens".to_owned()])
    }

    fn read(media: &'static str, text: &str, piece: usize) -> Usage {
        let mut reading = Reading::of(&total(), &head(media));
        for piece in text.as_bytes().chunks(piece) {
            reading.saw(piece);
        }
        reading.usage()
    }

    #[test]
    fn b_spend_a_json_answer_says_what_was_used_wherever_it_is_split() {
        let text = r#"{"choices":[{"usage":{"total_tokens":1}}],"usage":{"prompt_tokens":12,"completion_tokens":30,"total_tokens":42,"prompt_tokens_details":{"cached_tokens":8}}}"#;
        for piece in [1, 3, 4_096] {
            let usage = read("application/json; charset=utf-8", text, piece);
            assert_eq!(usage.total, Some(42));
            assert_eq!(usage.parts(42), (12, 8, 30));
            let input = text
                .replace("prompt", "input")
                .replace("completion", "output");
            assert_eq!(read("application/problem+json", &input, piece), usage);
        }
        assert_eq!(read("text/plain", text, 9).total, None);
        assert_eq!(read("application/json", r#"{"usage":null}"#, 9).total, None);
    }

    #[test]
    fn b_spend_of_a_stream_the_last_event_with_usage_counts() {
        let events = [
            ": a comment with data:{\"usage\":{\"total_tokens\":9}}",
            "data: {\"usage\":{\"total_tokens\":1}}",
            "event: chunk\ndata: {\"usage\":\ndata: {\"total_tokens\":\ndata: 812}}\nid: 7",
            "data: {\"usage\":null}",
            "data:[DONE]",
        ];
        for end in ["\n", "\r\n", "\r"] {
            let all = events.join("\n\n").replace('\n', end);
            for whole in [all.clone(), format!("{all}{end}{end}")] {
                for piece in [1, 2, 7, 4_096] {
                    let usage = read("text/event-stream", &whole, piece);
                    assert_eq!(usage.total, Some(812), "{whole:?} {piece}");
                }
            }
        }
        assert_eq!(read("text/event-stream", "data: {}\n\n", 3).total, None);
    }

    #[test]
    fn b_spend_a_header_says_it_at_once_and_coded_answers_say_nothing() {
        let named = UsedSource::Header("x-tokens-used".into());
        let mut headers = head("application/json");
        headers.insert("x-tokens-used", HeaderValue::from_static("812"));
        assert_eq!(Reading::of(&named, &headers).usage().total, Some(812));
        headers.insert("x-tokens-used", HeaderValue::from_static("many"));
        assert_eq!(Reading::of(&named, &headers).usage().total, None);
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert!(matches!(
            Reading::of(&total(), &headers),
            Reading::Nothing(_)
        ));
    }

    #[test]
    fn b_spend_what_is_not_said_of_a_total_is_taken_for_generated() {
        let usage = |input, output| Usage {
            input,
            output,
            ..Usage::default()
        };
        assert_eq!(usage(None, None).parts(10), (0, 0, 10));
        assert_eq!(usage(Some(4), None).parts(10), (4, 0, 6));
        assert_eq!(usage(None, Some(4)).parts(10), (6, 0, 4));
    }
}
