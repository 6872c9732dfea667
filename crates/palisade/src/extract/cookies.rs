//! Cookies of a request.

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

/// The values of the cookies with this name.
pub fn values<'h>(headers: &'h HeaderMap, name: &'h str) -> impl Iterator<Item = &'h str> {
    headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.split_once('='))
        .filter(move |(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}

/// Takes out of a request the cookies that are not to be kept, by the bytes before and after the
/// first `=`.
pub fn retain(headers: &mut HeaderMap, is_kept: impl Fn(&[u8], &[u8]) -> bool) {
    let lines = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
    let pairs: Vec<&[u8]> = lines
        .flat_map(|line| line.split(|byte| *byte == b';'))
        .collect();
    let is_kept = |pair: &&&[u8]| {
        let mut parts = pair.splitn(2, |byte| *byte == b'=');
        let key = parts.next().unwrap_or_default().trim_ascii();
        is_kept(key, parts.next().unwrap_or_default())
    };
    let kept: Vec<&[u8]> = pairs.iter().filter(is_kept).copied().collect();
    if kept.len() == pairs.len() {
        return;
    }
    let line = HeaderValue::from_bytes(kept.join(&b';').trim_ascii_start());
    headers.remove(COOKIE);
    if let Some(line) = line.ok().filter(|line| !line.is_empty()) {
        headers.insert(COOKIE, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(lines: &[&'static str]) -> HeaderMap {
        let lines = lines.iter().map(|line| HeaderValue::from_static(line));
        lines.map(|line| (COOKIE, line)).collect()
    }

    #[test]
    fn cookies_are_read_by_their_whole_name() {
        let headers = sent(&["a=1; ab=2", "a = 3;b"]);
        assert_eq!(values(&headers, "a").collect::<Vec<_>>(), ["1", "3"]);
        assert_eq!(values(&headers, "b").count(), 0);
    }

    #[test]
    fn cookies_that_are_not_kept_are_taken_out_of_every_line() {
        let mut headers = sent(&["a=1; b=2; a=3", " a =4; c=x=y"]);
        retain(&mut headers, |name, _| name != b"a");
        assert_eq!(headers[COOKIE], "b=2; c=x=y");
        retain(&mut headers, |_, value| value == b"x=y");
        assert_eq!(headers[COOKIE], "c=x=y");
        retain(&mut headers, |_, _| false);
        assert!(!headers.contains_key(COOKIE));
    }
}
