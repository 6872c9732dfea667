//! Splits bytes into requests: an array of strings, or a line of words.
//!
//! Every length is compared with its bound when it is read, and no memory is reserved for it.

use arrayvec::ArrayVec;

/// Most arguments of one request, its name included.
pub const ARGS_MAX: usize = 32;
/// Longest argument, in bytes.
pub const BULK_BYTES_MAX: usize = 16 * 1024;
/// Longest request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// Longest line of words, in bytes.
const INLINE_BYTES_MAX: usize = 16 * 1024;
/// Longest line with a length in it, in bytes.
const LENGTH_BYTES_MAX: usize = 16;

/// The arguments of a request, its name first.
pub type Args<'a> = ArrayVec<&'a [u8], ARGS_MAX>;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its arguments; none if the line was empty.
    pub args: Args<'a>,
    /// Length of the request, in bytes.
    pub bytes: usize,
}

/// Input after which nothing can be read. The connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// An array whose length is no number, or too large.
    #[error("Protocol error: invalid multibulk length")]
    ArrayLength,
    /// A string whose length is no number, too large, or not that of its bytes.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// An element that is no string.
    #[error("Protocol error: expected '$'")]
    NoBulk,
    /// A line of words that does not end in time, or has too many.
    #[error("Protocol error: too big inline request")]
    Inline,
    /// A quotation that does not end, or is followed by more of the word.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// Strings that are too long together.
    #[error("Protocol error: too big request")]
    TooBig,
    /// A line of an HTTP request: it comes from a web page, and its body would be read as commands.
    #[error("Protocol error: HTTP is not spoken here")]
    Http,
}

/// Returns the request that `input` begins with; `None` if it is not complete yet.
///
/// # Errors
/// [`ProtocolError`] if no further bytes can make `input` a request.
pub fn read(input: &[u8]) -> Result<Option<Request<'_>>, ProtocolError> {
    let request = match input.first() {
        None => return Ok(None),
        Some(b'*') => read_array(input)?,
        Some(_) => read_inline(input)?,
    };
    match request {
        None if input.len() >= REQUEST_BYTES_MAX => Err(ProtocolError::TooBig),
        Some(request) if request.bytes > REQUEST_BYTES_MAX => Err(ProtocolError::TooBig),
        request => Ok(request),
    }
}

fn read_array(input: &[u8]) -> Result<Option<Request<'_>>, ProtocolError> {
    let Some((count, mut at)) = read_length(input, ProtocolError::ArrayLength)? else {
        return Ok(None);
    };
    // A null array and an empty one ask for nothing.
    let count = usize::try_from(count.max(0)).map_err(|_| ProtocolError::ArrayLength)?;
    if count > ARGS_MAX {
        return Err(ProtocolError::ArrayLength);
    }
    let mut args = Args::new();
    for _ in 0..count {
        let Some((arg, bytes)) = read_bulk(&input[at..])? else {
            return Ok(None);
        };
        args.push(arg);
        at += bytes;
    }
    Ok(Some(Request { args, bytes: at }))
}

fn read_bulk(input: &[u8]) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    match input.first() {
        None => return Ok(None),
        Some(b'$') => {}
        Some(_) => return Err(ProtocolError::NoBulk),
    }
    let Some((length, at)) = read_length(input, ProtocolError::BulkLength)? else {
        return Ok(None);
    };
    let length = usize::try_from(length).map_err(|_| ProtocolError::BulkLength)?;
    if length > BULK_BYTES_MAX {
        return Err(ProtocolError::BulkLength);
    }
    let end = at + length;
    match input.get(end..end + 2) {
        Some(b"\r\n") => Ok(Some((&input[at..end], end + 2))),
        Some(_) => Err(ProtocolError::BulkLength),
        None => Ok(None),
    }
}

/// Returns the number after the first byte of a line, and the length of that line. Read digit by
/// digit, for speed: a request has a length for each of its arguments.
fn read_length(input: &[u8], wrong: ProtocolError) -> Result<Option<(i64, usize)>, ProtocolError> {
    let is_negative = input.get(1) == Some(&b'-');
    let first = 1 + usize::from(is_negative);
    let mut number: i64 = 0;
    for at in first..LENGTH_BYTES_MAX - 1 {
        match input.get(at) {
            // No overflow: a line has room for twelve digits.
            Some(digit @ b'0'..=b'9') => number = number * 10 + i64::from(digit - b'0'),
            Some(b'\r') if at > first => {
                let number = if is_negative { -number } else { number };
                return match input.get(at + 1) {
                    Some(b'\n') => Ok(Some((number, at + 2))),
                    Some(_) => Err(wrong),
                    None => Ok(None),
                };
            }
            Some(_) => return Err(wrong),
            None => return Ok(None),
        }
    }
    Err(wrong)
}

fn read_inline(input: &[u8]) -> Result<Option<Request<'_>>, ProtocolError> {
    let window = &input[..input.len().min(INLINE_BYTES_MAX)];
    let Some(end) = window.iter().position(|byte| *byte == b'\n') else {
        return match window.len() < INLINE_BYTES_MAX {
            true => Ok(None),
            false => Err(ProtocolError::Inline),
        };
    };
    let line = &input[..end];
    if is_http(line) {
        return Err(ProtocolError::Http);
    }
    let args = words(line.strip_suffix(b"\r").unwrap_or(line))?;
    Ok(Some(Request {
        args,
        bytes: end + 1,
    }))
}

/// True for a line that only an HTTP request has: its first line, or the one that names the host.
/// Browsers send both, and a page can choose neither.
fn is_http(line: &[u8]) -> bool {
    let begins = |word: &[u8]| {
        let start = line.trim_ascii_start().get(..word.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(word))
    };
    let is_version = |word: &[u8]| word.starts_with(b"HTTP/");
    let mut words = line.trim_ascii().split(u8::is_ascii_whitespace);
    begins(b"POST ") || begins(b"host:") || words.next_back().is_some_and(is_version)
}

/// Splits a line into words at white space; a word that begins with a quotation mark ends with the
/// next one of its kind. (Escapes within are not supported: clients that need them send arrays.)
fn words(line: &[u8]) -> Result<Args<'_>, ProtocolError> {
    let mut args = Args::new();
    let mut rest = line.trim_ascii_start();
    while let Some(first) = rest.first() {
        let (word, after) = match first {
            b'"' | b'\'' => quoted(*first, &rest[1..])?,
            _ => {
                let end = rest.iter().position(u8::is_ascii_whitespace);
                rest.split_at(end.unwrap_or(rest.len()))
            }
        };
        args.try_push(word).map_err(|_| ProtocolError::Inline)?;
        rest = after.trim_ascii_start();
    }
    Ok(args)
}

fn quoted(mark: u8, rest: &[u8]) -> Result<(&[u8], &[u8]), ProtocolError> {
    let end = rest.iter().position(|byte| *byte == mark);
    let (word, after) = rest.split_at(end.ok_or(ProtocolError::Quotes)?);
    match after.get(1) {
        None => Ok((word, &[])),
        Some(next) if next.is_ascii_whitespace() => Ok((word, &after[1..])),
        Some(_) => Err(ProtocolError::Quotes),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn args(input: &[u8]) -> Vec<Vec<u8>> {
        let request = read(input).unwrap().unwrap();
        request.args.iter().map(|arg| arg.to_vec()).collect()
    }

    fn array(args: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            bytes.extend(format!("${}\r\n", arg.len()).bytes());
            bytes.extend(arg);
            bytes.extend(b"\r\n");
        }
        bytes
    }

    #[test]
    fn a_line_is_read_word_by_word() {
        assert_eq!(args(b"PING\r\n"), [b"PING"]);
        assert_eq!(args(b"  ECHO \t hello\n"), [&b"ECHO"[..], b"hello"]);
        assert_eq!(
            args(b"ECHO \"a b\" 'c d'\n"),
            [&b"ECHO"[..], b"a b", b"c d"]
        );
        assert_eq!(args(b"\r\n"), [b""; 0]);
        assert_eq!(read(b"ECHO \"a\r\n"), Err(ProtocolError::Quotes));
        assert_eq!(read(b"ECHO \"a\"b\r\n"), Err(ProtocolError::Quotes));
        assert_eq!(
            read(&[b"x "[..].repeat(33), b"\n".to_vec()].concat()),
            Err(ProtocolError::Inline)
        );
        assert_eq!(read(&[b'x'; INLINE_BYTES_MAX]), Err(ProtocolError::Inline));
    }

    #[test]
    fn s8_a_line_of_http_is_no_request() {
        for line in [
            "POST / HTTP/1.1\r\n",
            "post /\n",
            "GET /x?y=\"z HTTP/1.0\r\n",
            "OPTIONS * HTTP/1.1\r\n",
            "PRI * HTTP/2.0\r\n",
            "Host: localhost:6379\r\n",
            " hOsT:localhost\r\n",
        ] {
            assert_eq!(read(line.as_bytes()), Err(ProtocolError::Http), "{line}");
        }
        for line in [
            "GET x\r\n",
            "ECHO host:\r\n",
            "POSTS x\r\n",
            "ECHO HTTP\r\n",
        ] {
            assert!(matches!(read(line.as_bytes()), Ok(Some(_))), "{line}");
        }
        let array = array(&[b"ECHO".to_vec(), b"POST / HTTP/1.1".to_vec()]);
        assert!(matches!(read(&array), Ok(Some(_))));
    }

    #[test]
    fn a_length_is_refused_before_anything_is_awaited_for_it() {
        assert_eq!(read(b"*33\r\n"), Err(ProtocolError::ArrayLength));
        assert_eq!(read(b"*a\r\n"), Err(ProtocolError::ArrayLength));
        assert_eq!(read(b"*1\n"), Err(ProtocolError::ArrayLength));
        assert_eq!(
            read(b"*11111111111111111111"),
            Err(ProtocolError::ArrayLength)
        );
        assert_eq!(read(b"*1\r\n$16385\r\n"), Err(ProtocolError::BulkLength));
        assert_eq!(read(b"*1\r\n$-1\r\n"), Err(ProtocolError::BulkLength));
        assert_eq!(read(b"*1\r\n:5\r\n"), Err(ProtocolError::NoBulk));
        assert_eq!(read(b"*1\r\n$1\r\nabc"), Err(ProtocolError::BulkLength));
        let long = array(&vec![vec![b'x'; BULK_BYTES_MAX]; 5]);
        assert_eq!(read(&long), Err(ProtocolError::TooBig));
        assert_eq!(read(&long[..long.len() - 1]), Err(ProtocolError::TooBig));
    }

    #[test]
    fn arrays_of_nothing_ask_for_nothing() {
        assert_eq!(args(b"*0\r\n"), [b""; 0]);
        assert_eq!(args(b"*-1\r\n"), [b""; 0]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_every_part_of_it_waits_for_the_rest(
            list in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..8),
            rest in proptest::collection::vec(any::<u8>(), 0..8),
        ) {
            let whole = array(&list);
            for end in 0..whole.len() {
                prop_assert_eq!(read(&whole[..end]), Ok(None));
            }
            let input = [whole.clone(), rest].concat();
            let request = read(&input).unwrap().unwrap();
            prop_assert_eq!(request.bytes, whole.len());
            prop_assert_eq!(request.args.to_vec(), list);
        }

        #[test]
        fn no_input_is_read_beyond_its_end_or_its_bounds(
            input in proptest::collection::vec(
                prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), b'0'..=b'9', any::<u8>()],
                0..200,
            ),
        ) {
            if let Ok(Some(request)) = read(&input) {
                prop_assert!(request.bytes > 0 && request.bytes <= input.len());
                let total: usize = request.args.iter().map(|arg| arg.len()).sum();
                prop_assert!(total < request.bytes);
            }
        }
    }
}
