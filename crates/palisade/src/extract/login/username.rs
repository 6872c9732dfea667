//! The user name of a login attempt.
//!
//! Strict on purpose: the application must read the same name that the guard judges. A body that
//! two readers could read differently (a field sent twice, another media type or charset, a content
//! coding) is refused, not passed on unguarded.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use palisade_core::{FieldError, Id, spelling};
use palisade_policy::UsernameSource;

use super::{graphql, members, multipart};
use crate::extract::authorization::Authorization;
use crate::extract::{client_id, form, header};

const FIELD: &str = "username";
/// The member of a GraphQL request with its variables, and the one with its document.
const VARIABLES: &str = "variables";
const DOCUMENT: &str = "query";

/// Reason why the user name of an attempt cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The name is missing, sent twice, or not valid.
    Field(FieldError),
    /// The body is not of the type that the route reads.
    Media(&'static str),
}

impl From<FieldError> for Unreadable {
    fn from(error: FieldError) -> Self {
        Self::Field(error)
    }
}

/// Returns the user name of a login attempt as it is counted: without surrounding space, in lower
/// case, and without differences that many applications ignore (accents, full-width letters,
/// invisible characters). `None` if the request carries no credential that the route knows of.
///
/// # Errors
/// The user name cannot be determined, or the query names another user, whom many readers of forms
/// and JSON would find.
pub fn username(
    source: &UsernameSource,
    query: Option<&str>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Option<Id>, Unreadable> {
    let found = read(source, headers, body);
    let Some(field) = field(source) else {
        return found;
    };
    let query = query.unwrap_or_default().as_bytes();
    // Servers of GraphQL run a document in the query before one in the body.
    if field == VARIABLES && form::values_alike(query, DOCUMENT).next().is_some() {
        let problem = "is beside a document in the query";
        return Err(FieldError::new(FIELD, problem).into());
    }
    let mut values = form::values_alike(query, field).peekable();
    if values.peek().is_none() {
        return found;
    }
    let names = |value: &[u8]| counted(&form::plain_text(value, FIELD).ok()?).ok();
    // A name in the query is accepted only if it is the one that is counted.
    let same = found
        .ok()
        .flatten()
        .filter(|name| values.all(|value| names(value).as_ref() == Some(name)));
    let elsewhere = FieldError::new(FIELD, "must not be in the query");
    same.map(Some).ok_or(Unreadable::Field(elsewhere))
}

/// True if a reader of such a login may find the name in the query.
#[must_use]
pub fn is_in_query(source: &UsernameSource, query: Option<&str>) -> bool {
    let query = query.unwrap_or_default().as_bytes();
    field(source).is_some_and(|field| form::values_alike(query, field).next().is_some())
}

/// Returns the field that readers look for in the query too. (Those that merge JSON with the query
/// read `user[name]` as a member of `user`.)
fn field(source: &UsernameSource) -> Option<&str> {
    match source {
        UsernameSource::Form(field) => Some(field),
        UsernameSource::Json(path) => path.first().map(String::as_str),
        UsernameSource::Header(_) | UsernameSource::Basic => None,
    }
}

/// Returns the name from the place that the route configures.
fn read(
    source: &UsernameSource,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Option<Id>, Unreadable> {
    let found = match source {
        UsernameSource::Form(field) => {
            let (media, parameters) = plain(headers)?;
            Some(if media.eq_ignore_ascii_case(b"multipart/form-data") {
                let boundary = multipart::boundary(parameters);
                let boundary = boundary.ok_or(Unreadable::Media(
                    "a multipart form must name one plain boundary, and be in UTF-8",
                ))?;
                multipart::only(body, boundary, field)?
            } else {
                is_of(media, parameters, b"application/x-www-form-urlencoded")?;
                form::only(body, field)?
            })
        }
        UsernameSource::Json(path) => {
            let (media, parameters) = plain(headers)?;
            is_of(media, parameters, b"application/json")?;
            if let [first, variable, ..] = &path[..]
                && first == VARIABLES
            {
                one_guess(body, variable)?;
            }
            Some(members::text(body, path)?)
        }
        UsernameSource::Header(name) => {
            let name = http::HeaderName::from_bytes(name.as_bytes());
            let name = name.map_err(|_| FieldError::new(FIELD, "is in no header"))?;
            if is_disguised(headers, &name) {
                return Err(FieldError::new(FIELD, "must be sent only once").into());
            }
            let text = header::single(headers, &name, FIELD)?;
            let missing = FieldError::new(FIELD, "is missing: a login must say who tries");
            Some(text.ok_or(missing)?.to_owned())
        }
        UsernameSource::Basic => client_id::basic_user(Authorization::read(headers)?)?,
    };
    let name = found.map(|name| counted(&name)).transpose()?;
    match name.as_ref().is_some_and(|name| is_tidied(name.as_str())) {
        true => Err(FieldError::new(FIELD, "must not hold markup or escapes").into()),
        false => Ok(name),
    }
}

/// True for a name out of which applications take something before they look for the account:
/// WordPress (`sanitize_user`) takes out tags, escaped octets, entities and a sign, `strip_tags` and
/// MediaWiki some of them. Each such spelling would be a fresh account.
fn is_tidied(name: &str) -> bool {
    let is_octet = |at: usize| {
        let digits = name.as_bytes().get(at + 1..at + 3);
        digits.is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit))
    };
    let entity = name.find('&').map(|at| &name[at..]);
    name.contains(['<', '£', '€'])
        || name.match_indices('%').any(|(at, _)| is_octet(at))
        || entity.is_some_and(|rest| rest.contains(';'))
}

/// Checks that a GraphQL request holds one login only: its document must show that.
fn one_guess(body: &[u8], variable: &str) -> Result<(), FieldError> {
    let document = members::text(body, &[DOCUMENT.to_owned()]).ok();
    match document.is_some_and(|document| graphql::is_one_guess(&document, variable)) {
        true => Ok(()),
        false => Err(FieldError::new(
            FIELD,
            "must be the only one: the body needs a `query` of one operation in which one field has \
             arguments, and the variable stands once, for the argument of its name",
        )),
    }
}

/// True if another header has this name with underscores in it: to applications behind CGI and WSGI
/// both are the same header.
fn is_disguised(headers: &HeaderMap, name: &http::HeaderName) -> bool {
    let plain = |name: &str| name.replace('_', "-");
    let (own, mut names) = (plain(name.as_str()), headers.keys());
    names.any(|other| other != name && plain(other.as_str()) == own)
}

/// Returns a name in the form in which it is counted, however it was typed.
///
/// # Errors
/// The name is empty, too long, or has control characters.
pub(crate) fn counted(name: &str) -> Result<Id, FieldError> {
    Id::new(FIELD, &spelling::of_name(name))
}

/// Returns the media type and its parameters. A body with a content coding is refused.
pub(in crate::extract) fn plain(
    headers: &HeaderMap,
) -> Result<(&[u8], impl Iterator<Item = &[u8]>), Unreadable> {
    let coded = |value: &http::HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get_all(CONTENT_ENCODING).iter().any(coded) {
        return Err(Unreadable::Media("a login must not have a content coding"));
    }
    if [CONTENT_ENCODING, CONTENT_TYPE]
        .iter()
        .any(|name| is_disguised(headers, name))
    {
        return Err(Unreadable::Media(
            "a login must say what its body is only once",
        ));
    }
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    // Two content types are read as none, which every check of the type refuses.
    let only = types.next().filter(|_| types.next().is_none());
    let mut parts = only
        .map_or(&b""[..], |value| value.as_bytes())
        .split(|byte| *byte == b';');
    Ok((parts.next().unwrap_or_default().trim_ascii(), parts))
}

/// Checks that the body is of the type that the route reads.
fn is_of<'a>(
    media: &[u8],
    mut parameters: impl Iterator<Item = &'a [u8]>,
    wanted: &[u8],
) -> Result<(), Unreadable> {
    if !media.eq_ignore_ascii_case(wanted) {
        return Err(Unreadable::Media(
            "a login must be of the type that its route reads: a form or JSON",
        ));
    }
    if !parameters.all(|parameter| is_harmless(parameter.trim_ascii())) {
        return Err(Unreadable::Media("a login must be in UTF-8"));
    }
    Ok(())
}

/// True for a parameter that does not change how the name is read. Only a charset can.
pub(in crate::extract) fn is_harmless(parameter: &[u8]) -> bool {
    let equals = parameter.iter().position(|byte| *byte == b'=');
    let (name, value) = equals.map_or((parameter, &b""[..]), |at| {
        (&parameter[..at], &parameter[at + 1..])
    });
    let value = value.trim_ascii();
    let quoted = value
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""));
    let value = quoted.unwrap_or(value);
    // `charset*` and `charset*0` are the same parameter (RFC 2231).
    let name = name.split(|byte| *byte == b'*').next().unwrap_or_default();
    !name.trim_ascii().eq_ignore_ascii_case(b"charset")
        || value.eq_ignore_ascii_case(b"utf-8")
        || value.eq_ignore_ascii_case(b"us-ascii")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
    const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: http::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    fn form(pairs: &[(&str, &str)], body: &[u8]) -> Result<String, Unreadable> {
        let source = UsernameSource::Form("email".to_owned());
        username(&source, None, &headers(pairs), body).map(|id| id.unwrap().as_str().to_owned())
    }

    fn json(body: &str) -> Result<String, Unreadable> {
        let source = UsernameSource::Json(vec!["user".to_owned(), "name".to_owned()]);
        let found = username(&source, None, &headers(&[JSON]), body.as_bytes());
        found.map(|id| id.unwrap().as_str().to_owned())
    }

    #[test]
    fn spellings_of_one_name_are_one_account() {
        for body in [
            "email=ann%40x",
            "p=1&email=ANN%40x+",
            "email=%EF%BD%81nn@x",
            "%65mail=ann@x",
            "email=%C3%80nn@x",
            "email=a%C2%ADnn@x",
        ] {
            assert_eq!(
                form(&[FORM], body.as_bytes()).as_deref(),
                Ok("ann@x"),
                "{body}"
            );
        }
    }

    /// WordPress finds `ann` in each of the first; so does `strip_tags` in some.
    #[test]
    fn s3_a_name_that_applications_tidy_is_refused() {
        for name in [
            "a%3Cb%3Enn",
            "ann%3C1",
            "%EF%BC%9Cb%EF%BC%9Eann",
            "a%2541nn",
            "a%26x;nn",
            "a%26%2365;nn",
            "a%C2%A3nn",
            "ann%E2%82%AC",
        ] {
            let body = format!("email={}", name.replace(';', "%3B"));
            let refused = form(&[FORM], body.as_bytes());
            assert!(matches!(refused, Err(Unreadable::Field(_))), "{name}");
        }
        for (name, counted) in [
            ("a%26b", "a&b"),
            ("100%25", "100%"),
            ("a%3Eb%3B", "a>b;"),
            ("ann++smith", "ann smith"),
            ("ann%C2%A0+smith", "ann smith"),
            ("a%C5%8Bn", "ann"),
            ("%C5%89", "n"),
        ] {
            let body = format!("email={name}");
            assert_eq!(
                form(&[FORM], body.as_bytes()).as_deref(),
                Ok(counted),
                "{name}"
            );
        }
    }

    #[test]
    fn a_name_that_is_sent_twice_or_not_at_all_is_refused() {
        for body in [
            "email=a&email=b",
            "email=a&email=a",
            "email=a&Email=b",
            "email=a&email%5B%5D=b",
            "email=a&email[0]=b",
            "email=a&x=1;email=b",
            "email=a;email=b",
            "email[]=a",
            "email=",
            "e=a",
            "",
            "email=%ff",
            "email=a%00b",
        ] {
            let refused = form(&[FORM], body.as_bytes());
            assert!(
                matches!(refused, Err(Unreadable::Field(_))),
                "{body}: {refused:?}"
            );
        }
    }

    #[test]
    fn a_body_that_another_reader_would_read_otherwise_is_refused() {
        let coded = [FORM, ("content-encoding", "gzip")];
        let charset = [(
            "content-type",
            "application/x-www-form-urlencoded; charset=utf-16",
        )];
        let other = [("content-type", "multipart/mixed; boundary=x")];
        let twice = [FORM, ("content-type", "application/json")];
        for pairs in [&coded[..], &charset, &other, &twice, &[]] {
            let refused = form(pairs, b"email=ann");
            assert!(matches!(refused, Err(Unreadable::Media(_))), "{pairs:?}");
        }
        let plain = [FORM, ("content-encoding", "identity")];
        assert!(form(&plain, b"email=ann").is_ok());
    }

    /// ASP.NET reads `%u0061` as the letter `a`: a name has many such spellings.
    #[test]
    fn an_escape_that_only_some_readers_know_is_refused() {
        for body in [
            "email=%u0061nn",
            "email=%U0061nn",
            "email=bob&%u0065mail=ann",
            "email=bob;%u0065mail=ann",
        ] {
            let refused = form(&[FORM], body.as_bytes());
            assert!(matches!(refused, Err(Unreadable::Field(_))), "{body}");
        }
        assert!(form(&[FORM], b"email=ann&password=100%u0061").is_ok());
        let source = UsernameSource::Form("email".to_owned());
        for (query, body) in [
            ("%u0065mail=ann", "email=bob"),
            ("email=%u0061", "email=%25u0061"),
        ] {
            let named = username(&source, Some(query), &headers(&[FORM]), body.as_bytes());
            assert!(matches!(named, Err(Unreadable::Field(_))), "{query}");
            assert!(is_in_query(&source, Some(query)), "{query}");
        }
    }

    #[test]
    fn what_describes_a_body_is_said_in_one_way() {
        let star = "application/x-www-form-urlencoded; charset*=us-ascii''utf-16";
        let pieces = "application/x-www-form-urlencoded; charset*0=utf-16";
        for pairs in [
            &[("content-type", star)][..],
            &[("content-type", pieces)],
            &[FORM, ("content_encoding", "gzip")],
            &[FORM, ("content_type", "application/json")],
        ] {
            let refused = form(pairs, b"email=ann");
            assert!(matches!(refused, Err(Unreadable::Media(_))), "{pairs:?}");
        }
    }

    #[test]
    fn a_multipart_form_names_who_tries_too() {
        let kind = [("content-type", "multipart/form-data; boundary=x")];
        let body =
            b"--x\r\nContent-Disposition: form-data; name=\"email\"\r\n\r\nAnn \r\n--x--\r\n";
        assert_eq!(form(&kind, body).as_deref(), Ok("ann"));
        assert!(matches!(
            form(&kind, b"email=ann"),
            Err(Unreadable::Field(_))
        ));
        let unnamed = [("content-type", "multipart/form-data")];
        assert!(matches!(form(&unnamed, body), Err(Unreadable::Media(_))));
        let coded = [kind[0], ("content-encoding", "gzip")];
        assert!(matches!(form(&coded, body), Err(Unreadable::Media(_))));
    }

    #[test]
    fn a_header_with_underscores_is_the_same_header() {
        let source = UsernameSource::Header("x-user".to_owned());
        let of = |pairs: &[(&str, &str)]| username(&source, None, &headers(pairs), b"");
        assert!(of(&[("x-user", "ann")]).is_ok());
        let refused = of(&[("x-user", "bob"), ("x_user", "ann")]);
        assert!(matches!(refused, Err(Unreadable::Field(_))));
        assert!(of(&[("x-user", "ann"), ("x-users", "bob")]).is_ok());
    }

    #[test]
    fn a_name_in_the_query_must_be_the_same() {
        let of = |source: &UsernameSource, query: &str, kind, body: &str| {
            let named = username(source, Some(query), &headers(&[kind]), body.as_bytes());
            named.map(|id| id.unwrap().as_str().to_owned())
        };
        let source = UsernameSource::Form("email".to_owned());
        let form = |query: &str| of(&source, query, FORM, "email=ann&x=1");
        for query in ["", "next=/home", "emails=bob", "email=ANN+", "a;email=ann"] {
            assert_eq!(form(query).as_deref(), Ok("ann"), "{query}");
        }
        for query in [
            "email=bob",
            "Email=bob",
            "email[]=bob",
            "%65mail=bob",
            "email=",
            "email=ann&email=bob",
            "a=1;email=bob",
            "email=%ff",
        ] {
            assert!(matches!(form(query), Err(Unreadable::Field(_))), "{query}");
            assert!(is_in_query(&source, Some(query)), "{query}");
        }
        let source = UsernameSource::Json(vec!["user".to_owned(), "name".to_owned()]);
        let json = |query: &str| of(&source, query, JSON, r#"{"user":{"name":"ann"}}"#);
        assert_eq!(json("name=bob").as_deref(), Ok("ann"));
        assert!(json("user[name]=bob").is_err() && json("user=bob").is_err());
        let source = UsernameSource::Header("x-user".to_owned());
        assert!(!is_in_query(&source, Some("x-user=bob")));
    }

    #[test]
    fn a_field_within_another_is_told_from_its_neighbours() {
        let source = UsernameSource::Form("user[email]".to_owned());
        let of = |body: &str| {
            let named = username(&source, None, &headers(&[FORM]), body.as_bytes());
            named.map(|id| id.unwrap().as_str().to_owned())
        };
        assert_eq!(of("user[email]=ann&user[password]=x").as_deref(), Ok("ann"));
        let escaped = "user%5Bemail%5D=ann&user%5Bpassword%5D=x&user%5Bkeep%5D%5B%5D=1";
        assert_eq!(of(escaped).as_deref(), Ok("ann"));
        for body in [
            "user[email]=ann&user[email]=bob",
            "user[email]=ann&user%5BEmail%5D=bob",
            "user[email]=ann&user[email][]=bob",
            "user[email]=ann&user.email=bob",
            "user[email]=ann&user=bob",
            "user[password]=x",
        ] {
            assert!(matches!(of(body), Err(Unreadable::Field(_))), "{body}");
        }
    }

    #[test]
    fn a_member_is_found_at_its_place_only_and_once() {
        assert_eq!(
            json(r#"{"user":{"name":"Ann","x":[1]},"name":"b"}"#).as_deref(),
            Ok("ann")
        );
        assert_eq!(json(r#"{"user":{"name":7}}"#).as_deref(), Ok("7"));
        for body in [
            r#"{"user":{"name":"a","name":"b"}}"#,
            r#"{"user":{"name":"a","NAME":"b"}}"#,
            r#"{"user":{"name":"a"},"user":{"name":"b"}}"#,
            r#"{"user":{"name":{"$ne":""}}}"#,
            r#"{"user":{"name":["a"]}}"#,
            r#"{"user":{"name":null}}"#,
            r#"{"user":"a"}"#,
            r#"{"user.name":"a"}"#,
            r#"{"user":{"name":"a"}} {}"#,
            r#"{"user":{"name":"a"}"#,
            r#"["user"]"#,
            "",
        ] {
            assert!(matches!(json(body), Err(Unreadable::Field(_))), "{body}");
        }
    }

    #[test]
    fn s12_a_graphql_login_carries_one_guess() {
        let source = UsernameSource::Json(vec!["variables".to_owned(), "email".to_owned()]);
        let of = |query: Option<&str>, body: &str| {
            let named = username(&source, query, &headers(&[JSON]), body.as_bytes());
            named.map(|id| id.unwrap().as_str().to_owned())
        };
        let one = r#"{"query":"mutation($email:String!,$p:String!){login(email:$email,password:$p){token}}","variables":{"email":"Ann","p":"x"}}"#;
        assert_eq!(of(None, one).as_deref(), Ok("ann"));
        let batch = format!("[{one},{one}]");
        let aliases = one.replace("{token}", "{token} b:login(email:$o,password:$p){token}");
        let stored =
            r#"{"extensions":{"persistedQuery":{"sha256Hash":"00"}},"variables":{"email":"ann"}}"#;
        let twice = one.replace("{\"query\"", "{\"Query\":\"x\",\"query\"");
        for body in [&*batch, &*aliases, stored, &*twice] {
            assert!(
                matches!(of(None, body), Err(Unreadable::Field(_))),
                "{body}"
            );
        }
        let elsewhere = of(Some("query=mutation{login(email:1)}"), one);
        assert!(matches!(elsewhere, Err(Unreadable::Field(_))));
    }

    #[test]
    fn a_header_names_somebody_and_basic_may_name_nobody_yet() {
        let source = UsernameSource::Header("x-user".to_owned());
        let of = |pairs: &[(&str, &str)]| username(&source, None, &headers(pairs), b"");
        assert_eq!(of(&[("x-user", "Ann")]).unwrap().unwrap().as_str(), "ann");
        assert!(of(&[]).is_err());
        assert!(of(&[("x-user", "a"), ("x-user", "b")]).is_err());
        let basic =
            |pairs: &[(&str, &str)]| username(&UsernameSource::Basic, None, &headers(pairs), b"");
        let ann = basic(&[("authorization", "Basic QW5uOnh5eg==")]);
        assert_eq!(ann.unwrap().unwrap().as_str(), "ann");
        assert_eq!(basic(&[]), Ok(None));
        assert!(basic(&[("authorization", "Basic !")]).is_err());
        assert!(
            basic(&[("authorization", "Basic OnB3")]).is_err(),
            "an empty name"
        );
    }
}
