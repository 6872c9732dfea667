//! Filling in the page's template.

/// Replaces each `{name}` with its value, escaped. A value is never looked at for further names.
pub(super) fn fill<'v>(template: &str, value: impl Fn(&str) -> Option<&'v str>) -> String {
    let mut filled = String::with_capacity(template.len() * 2);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let named = after.split_once('}');
        let known = named.and_then(|(name, after)| Some((value(name)?, after)));
        match known {
            Some((value, after)) => {
                filled.push_str(&escaped(value));
                rest = after;
            }
            None => {
                filled.push('{');
                rest = after;
            }
        }
    }
    filled.push_str(rest);
    filled
}

/// Text that is no markup, in a page or in the value of an attribute.
pub(in crate::surfaces) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_page_is_markup_of_others() {
        assert_eq!(
            escaped("<a href='x'>&\""),
            "&lt;a href=&#39;x&#39;&gt;&amp;&quot;"
        );
    }

    #[test]
    fn a_value_is_not_a_template() {
        let value = |name: &str| match name {
            "a" => Some("{b}<"),
            "b" => Some("B"),
            _ => None,
        };
        assert_eq!(fill("{a} {b} {c} {", value), "{b}&lt; B {c} {");
    }
}
