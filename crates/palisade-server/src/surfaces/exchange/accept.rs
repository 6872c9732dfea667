//! Preferences of a client: media types and languages.

use http::header::{ACCEPT, HeaderMap, HeaderName};

/// Most parts of a header that are looked at.
const PARTS_MAX: usize = 32;

/// True if `Accept` names `text/html` and JSON has no greater weight.
pub(crate) fn prefers_html(headers: &HeaderMap) -> bool {
    let mut best = [None; 2];
    for (media, weight) in weighed(headers, &ACCEPT) {
        let place = match media {
            "text/html" | "application/xhtml+xml" => 0,
            "application/json" | "application/problem+json" => 1,
            _ => continue,
        };
        best[place] = best[place].max(Some(weight));
    }
    let [html, json] = best;
    html > Some(0) && html >= json
}

/// The parts of a header with their weights, in thousandths.
pub(crate) fn weighed<'h>(
    headers: &'h HeaderMap,
    name: &'h HeaderName,
) -> impl Iterator<Item = (&'h str, u16)> {
    let lines = headers.get_all(name).iter();
    lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .take(PARTS_MAX)
        .map(part)
}

/// Parses a part and its weight, in thousandths.
fn part(part: &str) -> (&str, u16) {
    let mut parameters = part.split(';').map(str::trim);
    let value = parameters.next().unwrap_or_default();
    let weight = parameters
        .filter_map(|parameter| parameter.strip_prefix("q="))
        .find_map(|weight| weight.parse::<f32>().ok())
        .map_or(1.0, |weight| weight.clamp(0.0, 1.0));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a weight is clamped to 0..=1"
    )]
    let thousandths = (weight * 1000.0) as u16;
    (value, thousandths)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_page_is_for_who_prefers_one() {
        for (accept, html) in [
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                true,
            ),
            ("text/html;q=0.5, application/json", false),
            ("application/json, text/html;q=0.5", false),
            ("text/html, application/json", true),
            ("*/*", false),
            ("text/html;q=0", false),
            ("application/json", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(prefers_html(&headers), html, "{accept}");
        }
        assert!(!prefers_html(&HeaderMap::new()));
    }
}
