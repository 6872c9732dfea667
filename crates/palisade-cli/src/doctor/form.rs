//! The login form of an application, as a browser would fill it in.

/// Most tags of a page that are read.
const TAGS_MAX: usize = 20_000;

/// Fields that a browser adds to a form that somebody fills in.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LoginForm {
    /// Hidden fields, by name: a CSRF token stands in one.
    pub(super) hidden: Vec<(String, String)>,
    /// The name of the password's field.
    pub(super) password: Option<String>,
}

impl LoginForm {
    /// Reads the form of a page that has a field of this name; `None` if there is none.
    pub(super) fn find(page: &str, field: &str) -> Option<Self> {
        let mut form = Self::default();
        let mut has_field = false;
        for tag in tags(page).take(TAGS_MAX) {
            match tag.name.as_str() {
                "form" => (form, has_field) = (Self::default(), false),
                "/form" if has_field => return Some(form),
                "input" => {
                    let kind = tag.attribute("type").unwrap_or_default();
                    let Some(name) = tag.attribute("name") else {
                        continue;
                    };
                    has_field |= name == field;
                    match kind.to_ascii_lowercase().as_str() {
                        "hidden" => {
                            let value = tag.attribute("value").unwrap_or_default();
                            form.hidden.push((name, value));
                        }
                        "password" => form.password = Some(name),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        has_field.then_some(form)
    }
}

struct Tag<'p> {
    name: String,
    attributes: &'p str,
}

/// The tags of a page, in order.
fn tags(page: &str) -> impl Iterator<Item = Tag<'_>> {
    page.split('<').skip(1).map(|text| {
        let end = text
            .find(|c: char| c.is_ascii_whitespace() || c == '>')
            .unwrap_or(text.len());
        Tag {
            name: text[..end].to_ascii_lowercase(),
            attributes: &text[end..],
        }
    })
}

impl Tag<'_> {
    /// The value of an attribute.
    fn attribute(&self, wanted: &str) -> Option<String> {
        let mut rest = self.attributes;
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '/');
            let end = rest.find(|c: char| c.is_ascii_whitespace() || "=>/".contains(c))?;
            let (name, after) = rest.split_at(end);
            let value = after.trim_start().strip_prefix('=').map(str::trim_start);
            let (value, after) = match value {
                Some(value) => quoted(value)?,
                None if after.starts_with('>') => ("", ""),
                None => ("", after),
            };
            if name.eq_ignore_ascii_case(wanted) {
                return Some(unescaped(value));
            }
            rest = after;
        }
    }
}

/// An attribute's value, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    for mark in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(mark) {
            return inner.split_once(mark);
        }
    }
    let end = text.find(|c: char| c.is_ascii_whitespace() || c == '>')?;
    Some(text.split_at(end))
}

/// The entities that tokens and names are escaped with.
fn unescaped(text: &str) -> String {
    let entities = [
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#x27;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#43;", "+"),
        ("&#x2B;", "+"),
        ("&#x3D;", "="),
        ("&#61;", "="),
        // Last: what it brings about is no entity.
        ("&amp;", "&"),
    ];
    entities
        .iter()
        .fold(text.to_owned(), |text, (entity, plain)| {
            text.replace(entity, plain)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n1_a_login_form_is_filled_in_as_a_browser_does() {
        let page = "<!doctype html><form action=/search><input name=q><input type=hidden name=x value=1></form>\
            <FORM method='post'>\n<input type=\"hidden\" name='csrf_token' value=\"a+b&amp;c==\" >\
            <input name=email required autofocus><INPUT TYPE=password NAME=pass/>\
            <input type=hidden name=next value><button>in</button></form>";
        let form = LoginForm::find(page, "email").unwrap();
        let hidden = [("csrf_token", "a+b&c=="), ("next", "")];
        let hidden = hidden.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(form.hidden, hidden);
        assert_eq!(form.password.as_deref(), Some("pass/"));
        assert_eq!(LoginForm::find(page, "user"), None);
        assert_eq!(LoginForm::find("", "email"), None);
        assert!(LoginForm::find("<form><input name=email", "email").is_none());
        assert!(LoginForm::find("<input name=\"email\">", "email").is_some());
    }
}
