//! Routes on which a proxy recognises the outcome of a login: the parts of the request and of the
//! application's answer that it reads.

use palisade_core::policy::{Host, Route};
use palisade_core::record::Flow;

use crate::document::decode::{Decode, Problem, Problems, text_of, wrong};
use crate::document::error::Sink;
use crate::document::tree::{Node, member_origin};
use crate::named;
use crate::policy::tables::RouteTable;
use crate::policy::values::OneOrMany;

/// Longest path of members, `json:a.b.c`, in names.
const MEMBERS_MAX: usize = 8;

/// A route on which the proxy reports the outcome of a login.
#[derive(Clone, Debug)]
pub struct OutcomeRoute {
    /// The pattern and method it applies to.
    pub route: Route,
    /// Evidence of the outcome.
    pub outcome: Outcome,
    /// The flow that the outcome is reported to.
    pub flow: Flow,
    /// Where the user name is.
    pub username: UsernameSource,
    /// Statuses that mean a wrong credential.
    pub failure_status: Vec<u16>,
    /// Statuses that mean a correct credential.
    pub success_status: Vec<u16>,
    /// Targets of a redirect after a wrong credential.
    pub failure_location: Option<LocationPatterns>,
    /// Targets of a redirect after a correct credential; if set, an answer that leads nowhere or
    /// elsewhere is no success.
    pub success_location: Option<LocationPatterns>,
    /// Cookie that the answer to a correct credential sets; if set, an answer without it is no
    /// success.
    pub success_cookie: Option<Box<str>>,
    /// True if the application recognises no user by a cookie.
    pub cookieless: bool,
    /// Header in which the application states the outcome, in lower case.
    pub header: Option<Box<str>>,
    /// Meaning of an answer that is neither a success nor a failure.
    pub neither: Neither,
    /// Cookie by which a device is recognised.
    pub device_cookie: Option<Box<str>>,
}

impl OutcomeRoute {
    /// True if a success needs more evidence than a status: a redirect's target, or a cookie.
    const fn names_success(&self) -> bool {
        self.success_location.is_some() || self.success_cookie.is_some()
    }

    /// True if an answer with this status may be a success at all. Applications redirect after
    /// right and wrong passwords alike, and show a form again with 200: such an answer is a success
    /// only with other evidence.
    #[must_use]
    pub fn may_succeed_with(&self, status: u16) -> bool {
        self.success_status.contains(&status)
            && (self.names_success() || tells_by_itself(status, &self.username))
    }
}

/// True if a status tells right from wrong without other evidence.
fn tells_by_itself(status: u16, username: &UsernameSource) -> bool {
    // Many applications answer a wrong password with the form again and status 200, and either
    // outcome with a redirect.
    let is_form_again = status == 200 && matches!(username, UsernameSource::Form(_));
    !(300..400).contains(&status) && !is_form_again
}

/// All routes on which the outcome of a login is recognised, the most specific first.
#[derive(Clone, Debug, Default)]
pub struct Outcomes(Vec<OutcomeRoute>);

impl Outcomes {
    /// Orders the routes; of two with the same pattern and method the later one counts.
    #[must_use]
    pub fn new(mut routes: Vec<OutcomeRoute>) -> Self {
        // The sort is stable: of equal routes, the one that was written last now comes first.
        routes.reverse();
        routes.sort_by_key(|route| std::cmp::Reverse(route.route.specificity()));
        Self(routes)
    }

    /// Finds the route by which a request is a login, if it is one. Letters of the path may be of
    /// either case.
    ///
    /// `host` chooses among routes but exempts from none: otherwise an application that answers to
    /// every host could be guessed at under another name. The route of a script such as
    /// `/login.php` also covers `/login.php/7`, unless another route does.
    #[must_use]
    pub fn find(&self, method: &str, host: Option<&Host>, path: &str) -> Option<&OutcomeRoute> {
        let covers = |route: &&OutcomeRoute| route.route.covers_any_case(method, host, path);
        let on_any_host = |route: &&OutcomeRoute| route.route.covers_on_any_host(method, path);
        let behind_script = |route: &&OutcomeRoute| route.route.covers_behind_script(method, path);
        let found = self.0.iter().find(covers);
        found
            .or_else(|| self.0.iter().find(on_any_host))
            .or_else(|| self.0.iter().find(behind_script))
    }

    /// All routes, the most specific first.
    #[must_use]
    pub fn all(&self) -> &[OutcomeRoute] {
        &self.0
    }
}

/// The evidence by which the proxy recognises the outcome of a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// From the application's answer: its status, or what the other keys name.
    Status,
}

named!(Outcome { "status" => Self::Status });

/// Meaning of an answer that is neither a success nor a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neither {
    /// A failure: an attacker then gains nothing from an answer that the policy's author did not
    /// foresee.
    Failure,
    /// Not known: the attempt stays open until it ends by itself.
    Unknown,
}

named!(Neither {
    "failure" => Self::Failure,
    "unknown" => Self::Unknown,
});

/// A flow of the guard that ends in a failure or a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoginFlow(pub(crate) Flow);

named!(LoginFlow {
    "login" => Self(Flow::Login),
    "otp" => Self(Flow::Otp),
});

/// Where a login request carries the user name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsernameSource {
    /// A field of a form.
    Form(String),
    /// A member of a JSON object, or of objects in it, outermost first.
    Json(Vec<String>),
    /// A header, in lower case.
    Header(String),
    /// The user of HTTP Basic authentication.
    Basic,
}

impl UsernameSource {
    /// True if the user name is in the body.
    #[must_use]
    pub const fn is_in_body(&self) -> bool {
        matches!(self, Self::Form(_) | Self::Json(_))
    }
}

impl Decode for UsernameSource {
    fn kind() -> String {
        "`form:FIELD`, `json:FIELD`, `header:NAME`, `basic`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        match text.split_once(':') {
            None if text == "basic" => Ok(Self::Basic),
            Some(("form", field)) if !field.is_empty() => Ok(Self::Form(field.to_owned())),
            Some(("json", path)) => members(path),
            Some(("header", name)) if is_token(name) => Ok(Self::Header(name.to_ascii_lowercase())),
            _ => wrong(format!("must be one of {}", Self::kind())),
        }
    }
}

fn members(path: &str) -> Result<UsernameSource, Problems> {
    let names: Vec<String> = path.split('.').map(str::to_owned).collect();
    if names.len() > MEMBERS_MAX || names.iter().any(String::is_empty) {
        return wrong(format!(
            "must name a member after `json:`, at most {MEMBERS_MAX} deep: `json:user.name`"
        ));
    }
    Ok(UsernameSource::Json(names))
}

/// Paths that a redirect may lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocationPatterns(Vec<Box<str>>);

impl LocationPatterns {
    /// True if a target (path and, behind `?`, query) is one of them. Only a pattern that
    /// has a `?` itself is about the query.
    #[must_use]
    pub fn cover(&self, target: &str) -> bool {
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        self.0
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => target.starts_with(start),
                None if pattern.contains('?') => **pattern == *target,
                None => **pattern == *path,
            })
    }
}

impl Decode for LocationPatterns {
    fn kind() -> String {
        "path or list of paths".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let patterns = OneOrMany::decode(node)?;
        let is_fit = |pattern: &String| {
            let literal = pattern.strip_suffix('*').unwrap_or(pattern);
            literal.starts_with('/') && !literal.contains('*')
        };
        if !patterns.all().iter().all(is_fit) {
            return Err(vec![
                Problem::new("must be paths that start with `/`")
                    .hint("only the end may be open: \"/login?error*\"; the host is not looked at"),
            ]);
        }
        let patterns = patterns.all().iter();
        Ok(Self(patterns.map(|text| text.as_str().into()).collect()))
    }
}

/// A header's name, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeaderName(pub(crate) Box<str>);

impl Decode for HeaderName {
    fn kind() -> String {
        "header name".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        if !is_token(text) {
            return wrong("must be a header name");
        }
        Ok(Self(text.to_ascii_lowercase().into()))
    }
}

/// A cookie's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CookieName(Box<str>);

impl Decode for CookieName {
    fn kind() -> String {
        "cookie name".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        if !is_token(text) || text.len() > 64 {
            return wrong("must be a cookie name: letters, digits, `-` and `_`, at most 64");
        }
        Ok(Self(text.into()))
    }
}

/// True for a token as RFC 9110 §5.6.2 defines it.
fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

/// Reads a route's keys about outcomes; keys that do not fit together are reported to the sink.
pub(crate) fn read(
    table: &RouteTable,
    route: &Route,
    item: &Node,
    sink: &mut Sink,
) -> Option<OutcomeRoute> {
    let Some(outcome) = table.outcome else {
        report_idle_keys(table, item, sink);
        return None;
    };
    let Some(username) = table.username.clone() else {
        sink.report_with(
            &member_origin(item, "outcome"),
            "`route.outcome` needs `username`",
            "say where the user name is, for example `username = \"form:username\"`",
        );
        return None;
    };
    report_ambiguity(table, item, sink);
    report_unnamed_success(table, &username, item, sink);
    warn_of_any_method(table, &username, item, sink);
    Some(OutcomeRoute {
        route: route.clone(),
        outcome,
        flow: table.flow.0,
        username,
        failure_status: table.failure_status.clone(),
        success_status: table.success_status.clone(),
        failure_location: table.failure_location.clone(),
        success_location: table.success_location.clone(),
        success_cookie: table.success_cookie.as_ref().map(|name| name.0.clone()),
        cookieless: table.cookieless,
        header: table.outcome_header.as_ref().map(|name| name.0.clone()),
        neither: table.neither,
        device_cookie: table.device_cookie.as_ref().map(|name| name.0.clone()),
    })
}

/// Reports keys without `outcome`: the login looks guarded and is not.
fn report_idle_keys(table: &RouteTable, item: &Node, sink: &mut Sink) {
    let keys = [
        ("username", table.username.is_some()),
        ("failure_location", table.failure_location.is_some()),
        ("success_location", table.success_location.is_some()),
        ("success_cookie", table.success_cookie.is_some()),
        ("cookieless", table.cookieless),
        ("outcome_header", table.outcome_header.is_some()),
        ("device_cookie", table.device_cookie.is_some()),
    ];
    for (key, _) in keys.into_iter().filter(|(_, is_set)| *is_set) {
        sink.report_with(
            &member_origin(item, key),
            format!("`route.{key}` needs `outcome`"),
            "add `outcome = \"status\"`: without it the login is not guarded",
        );
    }
}

fn report_ambiguity(table: &RouteTable, item: &Node, sink: &mut Sink) {
    let both = |status: &u16| table.success_status.contains(status);
    let is_told_apart = table.failure_location.is_some() || table.success_location.is_some();
    if table.failure_status.iter().any(both) && !is_told_apart {
        sink.report_with(
            &member_origin(item, "failure_status"),
            "`route.failure_status` and `route.success_status` share a status",
            "a status must mean one of them, or `success_location` must tell them apart",
        );
    }
}

/// Reports a login whose successes look like its failures: it would not be guarded, as every wrong
/// password would be counted as a right one.
fn report_unnamed_success(
    table: &RouteTable,
    username: &UsernameSource,
    item: &Node,
    sink: &mut Sink,
) {
    let is_named = table.success_location.is_some() || table.success_cookie.is_some();
    let is_form = matches!(username, UsernameSource::Form(_));
    let is_written = item.member_is_set("success_status");
    let tells = |status: &u16| tells_by_itself(*status, username);
    let all_tell = table.success_status.iter().all(tells);
    let says_itself = table.outcome_header.is_some() && !is_written;
    if is_named || all_tell || says_itself || !(is_form || is_written) {
        return;
    }
    let key = if is_written {
        "success_status"
    } else {
        "outcome"
    };
    sink.report_with(
        &member_origin(item, key),
        "`route.success_status` cannot tell a right password from a wrong one: most applications \
         answer both with a redirect, or with 200 and the form",
        "add `success_cookie` (the cookie of the session that a login starts), \
         `success_location` (where it leads) or `outcome_header`",
    );
}

/// Warns of a login by any method: a request for the form, or for its options, is answered like a
/// login that succeeded.
fn warn_of_any_method(table: &RouteTable, username: &UsernameSource, item: &Node, sink: &mut Sink) {
    if table.method.is_none() && *username != UsernameSource::Basic {
        sink.warn_with(
            &member_origin(item, "outcome"),
            "`route.outcome` without `method`: a request of any method is a login",
            "add `method = \"POST\"`, or have a route for each method that logs in",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> LocationPatterns {
        LocationPatterns(texts.iter().map(|text| (*text).into()).collect())
    }

    #[test]
    fn a_location_is_a_path_or_the_start_of_one() {
        for (pattern, target, covered) in [
            ("/home", "/home", true),
            ("/home", "/home?welcome=1", true),
            ("/home", "/home/x", false),
            ("/login*", "/login?error=1", true),
            ("/login?error=1", "/login?error=1", true),
            ("/login?error=1", "/login", false),
            ("/login?error*", "/login?next=/", false),
        ] {
            assert_eq!(
                patterns(&[pattern]).cover(target),
                covered,
                "{pattern} {target}"
            );
        }
    }

    fn at(pattern: &str, cookie: &str) -> OutcomeRoute {
        OutcomeRoute {
            route: Route::new(pattern).unwrap(),
            outcome: Outcome::Status,
            flow: Flow::Login,
            username: UsernameSource::Basic,
            failure_status: vec![401],
            success_status: vec![200],
            failure_location: None,
            success_location: None,
            success_cookie: None,
            cookieless: false,
            header: None,
            neither: Neither::Failure,
            device_cookie: Some(cookie.into()),
        }
    }

    #[test]
    fn the_most_specific_login_route_counts_and_of_equals_the_later() {
        let outcomes = Outcomes::new(vec![
            at("/a/*", "open"),
            at("/a/b", "old"),
            at("/a/b", "new"),
        ]);
        let found = |path: &str| outcomes.find("POST", None, path)?.device_cookie.clone();
        assert_eq!(found("/a/b").as_deref(), Some("new"));
        assert_eq!(found("/A/B").as_deref(), Some("new"));
        assert_eq!(found("/a/c").as_deref(), Some("open"));
        assert_eq!(found("/b"), None);
    }

    #[test]
    fn s7_a_route_of_a_script_guards_what_follows_it_too() {
        let outcomes = Outcomes::new(vec![
            at("/cgi-bin/login.py", "py"),
            at("/Login.PHP", "php"),
            at("/session", "none"),
            at("/login.php/code", "code"),
        ]);
        let found = |path: &str| outcomes.find("POST", None, path)?.device_cookie.clone();
        for (path, cookie) in [
            ("/cgi-bin/login.py", Some("py")),
            ("/cgi-bin/login.py/7", Some("py")),
            ("/CGI-bin/LOGIN.py/7/8", Some("py")),
            ("/login.php/x", Some("php")),
            ("/login.php/code", Some("code")),
            ("/login.phpx", None),
            ("/cgi-bin/login.pyc/7", None),
            ("/session/7", None),
        ] {
            assert_eq!(found(path).as_deref(), cookie, "{path}");
        }
    }
}
