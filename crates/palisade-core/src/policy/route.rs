//! Routes, which give a request its class and operation. The most specific pattern wins.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::host::{Host, HostPattern};
use crate::geo::{Geo, GeoFilter};
use crate::path::{has_escaped_slash, normalise_pattern};

/// The reason why a pattern is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The pattern does not start at the root.
    #[error("a path must start with `/`")]
    NotAbsolute,
    /// A `*` that is not the last character.
    #[error("`*` may only stand at the end of a path")]
    InnerWildcard,
    /// Longer than a path may be.
    #[error("the path is too long")]
    TooLong,
    /// No request has such a path when routes are found (I-PATH).
    #[error("the path can never match: {0}")]
    NeverMatches(&'static str),
}

/// Suffixes of files that servers execute, and to which they pass the rest of the path.
const SCRIPT_SUFFIXES: [&str; 28] = [
    "php", "php3", "php4", "php5", "php7", "php8", "phtml", "phar", "py", "cgi", "fcgi", "pl",
    "rb", "sh", "lua", "asp", "aspx", "ashx", "asmx", "jsp", "jspx", "jsf", "faces", "do",
    "action", "cfm", "cfc", "dll",
];

/// A route of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Literal part of the pattern, spelt as requests' paths are.
    literal: Box<str>,
    /// Whether anything may follow the literal part.
    open: bool,
    /// Upper-case method; `None` is any.
    pub method: Option<Box<str>>,
    /// The hosts that the route is about; `None` is any host, and requests that name none.
    pub host: Option<HostPattern>,
    /// The countries and networks that the route is about; `None` is any.
    pub geo: Option<Arc<GeoFilter>>,
    /// The class that the route assigns; `None` leaves it to a less specific route.
    pub class: Option<Arc<str>>,
    /// The operation that the route assigns; `None` leaves it to a less specific route.
    pub operation: Option<Arc<str>>,
    /// The scope a token needs (T-SCOPE).
    pub scope: Option<Box<str>>,
    /// Whether an API key is required (I-APIKEY).
    pub api_key_required: bool,
    /// Weight of a request in every bucket (I-ROUTE); `None` leaves it to a less specific route.
    pub cost: Option<NonZeroU32>,
    /// Whether no limit counts the route's requests (I-ROUTE).
    pub exempt: bool,
    pattern: Arc<str>,
}

impl Route {
    /// A route for `pattern`: a path, or a prefix that ends in `*`. `/x/*` covers
    /// `/x` and what is under it; `/x*` covers `/xy` too. A trailing slash of a path
    /// is dropped, as it is of requests.
    ///
    /// # Errors
    /// See [`PatternError`].
    pub fn new(pattern: &str) -> Result<Self, PatternError> {
        if !pattern.starts_with('/') {
            return Err(PatternError::NotAbsolute);
        }
        if pattern.len() > crate::facts::PATH_BYTES_MAX {
            return Err(PatternError::TooLong);
        }
        let (literal, open) = match pattern.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            // In `/` alone the slash is the root, and not a trailing one.
            None if pattern.len() > 1 => (pattern.strip_suffix('/').unwrap_or(pattern), false),
            None => (pattern, false),
        };
        if literal.contains('*') {
            return Err(PatternError::InnerWildcard);
        }
        let literal = normalise_pattern(literal, open).map_err(PatternError::NeverMatches)?;
        Ok(Self {
            literal: literal.into(),
            open,
            method: None,
            host: None,
            geo: None,
            class: None,
            operation: None,
            scope: None,
            api_key_required: false,
            cost: None,
            exempt: false,
            pattern: pattern.into(),
        })
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// True if the pattern has an escaped slash, which only
    /// [`EncodedSlash::Literal`](crate::path::EncodedSlash) lets through.
    #[must_use]
    pub fn needs_literal_slash(&self) -> bool {
        has_escaped_slash(&self.literal)
    }

    /// True if the route is about this request, whatever the case of the path's letters. Some
    /// applications do not tell `/Login` from `/login`, so a guard of the route must not either.
    #[must_use]
    pub fn covers_any_case(&self, method: &str, host: Option<&Host>, path: &str) -> bool {
        self.covers_on_any_host(method, path) && self.covers_host(host)
    }

    /// [`Route::covers_any_case`], whatever host the request names.
    #[must_use]
    pub fn covers_on_any_host(&self, method: &str, path: &str) -> bool {
        let start = path.get(..self.literal.len());
        let is_under = start.is_some_and(|start| start.eq_ignore_ascii_case(&self.literal));
        let covers = match self.open {
            true => {
                let bare = self.literal.strip_suffix('/');
                is_under || bare.is_some_and(|bare| bare.eq_ignore_ascii_case(path))
            }
            false => is_under && path.len() == self.literal.len(),
        };
        covers && self.covers_method(method)
    }

    /// True if the route is about one script and the path goes on behind it: such servers run
    /// `/login.php` for `/login.php/7` too, and pass it the rest (`PATH_INFO`).
    #[must_use]
    pub fn covers_behind_script(&self, method: &str, path: &str) -> bool {
        let start = path.get(..self.literal.len());
        self.names_script()
            && start.is_some_and(|start| start.eq_ignore_ascii_case(&self.literal))
            && path[self.literal.len()..].starts_with('/')
            && self.covers_method(method)
    }

    /// True if the path of a closed route ends in the name of a script.
    #[must_use]
    pub fn names_script(&self) -> bool {
        let name = self.literal.rsplit('/').next().unwrap_or_default();
        let suffix = name.rsplit_once('.').map(|(_, suffix)| suffix);
        let is_script = |suffix: &str| {
            let mut known = SCRIPT_SUFFIXES.iter();
            known.any(|script| script.eq_ignore_ascii_case(suffix))
        };
        !self.open && suffix.is_some_and(is_script)
    }

    /// Sort key of routes about the same request: the highest decides.
    #[must_use]
    pub fn specificity(&self) -> impl Ord + use<> {
        self.rank()
    }

    /// True for a path under an open pattern. `/x/*` covers `/x` itself, because normalisation
    /// turns `/x/` into it and the path must not escape its class.
    fn covers(&self, path: &str) -> bool {
        match path.strip_prefix(&*self.literal) {
            Some(_) => true,
            None => self.literal.strip_suffix('/') == Some(path),
        }
    }

    /// True for a path in the pattern's own letters.
    fn covers_as_written(&self, path: &str) -> bool {
        match self.open {
            true => self.covers(path),
            false => *self.literal == *path,
        }
    }

    /// True if `later` is about the same requests, so that a file can override a default.
    fn is_replaced_by(&self, later: &Self) -> bool {
        let same = self.literal == later.literal && self.open == later.open;
        same && self.method == later.method && self.host == later.host && self.geo == later.geo
    }

    fn covers_method(&self, method: &str) -> bool {
        self.method.as_deref().is_none_or(|own| own == method)
    }

    /// A route of one host does not cover requests whose host is unknown.
    fn covers_host(&self, host: Option<&Host>) -> bool {
        let own = self.host.as_ref();
        own.is_none_or(|own| host.is_some_and(|host| own.covers(host)))
    }

    fn covers_geo(&self, geo: Geo) -> bool {
        self.geo.as_ref().is_none_or(|filter| filter.matches(geo))
    }

    /// Ranks by path first, then host, method and country, so that a host's `/*` does not take a
    /// login away from the routes that guard it on every host.
    fn rank(&self) -> Rank {
        let host = self.host.as_ref().map(HostPattern::rank);
        let of_some = (self.method.is_some(), self.geo.is_some());
        (!self.open, self.literal.len(), host, of_some)
    }
}

/// Sort key of a route; see [`Route::rank`].
type Rank = (bool, usize, Option<(bool, usize)>, (bool, bool));

/// All routes, ordered so that the first match is the most specific.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    exact: HashMap<Box<str>, Vec<Route>>,
    open: Vec<Route>,
    /// True if some pattern has a capital letter: a path in small letters may then be another
    /// spelling of it.
    has_capitals: bool,
    /// True if some route is about certain hosts.
    has_hosts: bool,
    /// True if some route is about certain countries or networks.
    has_geo: bool,
}

/// The result of matching a request against the routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteMatch<'p> {
    /// Class of the request; `None` if no route assigns one.
    pub class: Option<&'p Arc<str>>,
    /// Operation of the request; `None` if no route assigns one.
    pub operation: Option<&'p Arc<str>>,
    /// The scope that the most specific route requires.
    pub scope: Option<&'p str>,
    /// Whether the most specific route requires an API key.
    pub api_key_required: bool,
    /// Weight of the request in every bucket.
    pub cost: Option<NonZeroU32>,
    /// Whether the most specific route is free of limits.
    pub exempt: bool,
    /// The most specific pattern; limits by `endpoint` count by it.
    pub pattern: Option<&'p str>,
}

impl Routes {
    /// Orders the routes. A later route with the same pattern and method replaces
    /// an earlier one, so that a file can override a default.
    #[must_use]
    pub fn new(routes: Vec<Route>) -> Self {
        let mut all = Self {
            has_capitals: routes.iter().any(|route| has_capitals(&route.literal)),
            has_hosts: routes.iter().any(|route| route.host.is_some()),
            has_geo: routes.iter().any(|route| route.geo.is_some()),
            ..Self::default()
        };
        for route in routes {
            let list = if route.open {
                &mut all.open
            } else {
                all.exact.entry(route.literal.clone()).or_default()
            };
            list.retain(|old| !old.is_replaced_by(&route));
            list.push(route);
        }
        all.open.sort_by_key(|route| Reverse(route.rank()));
        for list in all.exact.values_mut() {
            list.sort_by_key(|route| Reverse(route.rank()));
        }
        all
    }

    /// Every route, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.exact.values().flatten().chain(&self.open)
    }

    /// True if some route is about certain hosts; otherwise the host of a request need not be
    /// read.
    #[must_use]
    pub const fn has_hosts(&self) -> bool {
        self.has_hosts
    }

    /// True if some route is about certain countries or networks.
    #[must_use]
    pub const fn has_geo(&self) -> bool {
        self.has_geo
    }

    /// True if each of `readings` leads to the same route as `path`, so that the request is the
    /// one that was judged, however an application reads the path.
    #[must_use]
    pub fn agree(
        &self,
        method: &str,
        host: Option<&Host>,
        path: &str,
        readings: &[String],
    ) -> bool {
        let judged = self.find(method, host, path);
        let all_judged = self.covering(method, host, path);
        readings.iter().all(|reading| {
            let reading = without_trailing_slash(reading);
            self.find(method, host, reading) == judged
                && self.covering(method, host, reading) == all_judged
        })
    }

    /// True if an application that ignores the case of letters would route the request elsewhere
    /// than `path` leads. Routes that are written in both cases are told apart.
    #[must_use]
    pub fn differ_by_case(&self, method: &str, host: Option<&Host>, path: &str) -> bool {
        // Without any capitals both readings are the same, and nothing has to be compared.
        if !self.has_capitals && !has_capitals(path) {
            return false;
        }
        let is_in_any_case = |route: &&Route| route.covers_any_case(method, host, path);
        let mut found: Vec<&Route> = self.iter().filter(is_in_any_case).collect();
        found.sort_by_key(|route| Reverse((route.rank(), route.covers_as_written(path))));
        if self.has_geo && found.iter().any(|route| route.geo.is_some()) {
            return found != self.covering(method, host, path);
        }
        RouteMatch::of(found) != self.find(method, host, path)
    }

    /// The routes that cover a request of some country, the most specific first; none if no route
    /// asks for a country. Two spellings of a path with the same ones lead to the same route,
    /// wherever the request comes from.
    fn covering(&self, method: &str, host: Option<&Host>, path: &str) -> Vec<&Route> {
        let mut all = Vec::new();
        if self.has_geo {
            self.each(method, host, path, |route| all.push(route));
        }
        all
    }

    /// Finds the routes that apply to a request of unknown country and network, and combines them.
    #[must_use]
    #[inline]
    pub fn find(&self, method: &str, host: Option<&Host>, path: &str) -> RouteMatch<'_> {
        self.find_at(method, host, path, Geo::UNKNOWN)
    }

    /// Finds the routes that apply to a request and combines them.
    #[must_use]
    pub fn find_at(
        &self,
        method: &str,
        host: Option<&Host>,
        path: &str,
        geo: Geo,
    ) -> RouteMatch<'_> {
        let mut found = RouteMatch::default();
        self.each(method, host, path, |route| {
            if route.covers_geo(geo) {
                found.follow(route);
            }
        });
        found
    }

    #[inline]
    fn each<'p>(
        &'p self,
        method: &str,
        host: Option<&Host>,
        path: &str,
        mut follow: impl FnMut(&'p Route),
    ) {
        // Exact routes outrank open ones, and both lists are sorted: the most specific comes
        // first.
        for route in self.exact.get(path).map_or(&[][..], Vec::as_slice) {
            if route.covers_method(method) && route.covers_host(host) {
                follow(route);
            }
        }
        for route in &self.open {
            if route.covers(path) && route.covers_method(method) && route.covers_host(host) {
                follow(route);
            }
        }
    }
}

impl<'p> RouteMatch<'p> {
    /// Combines routes that are given the most specific first.
    fn of(routes: impl IntoIterator<Item = &'p Route>) -> Self {
        let mut found = Self::default();
        for route in routes {
            found.follow(route);
        }
        found
    }

    /// Fills in from a less specific route what no earlier route has set.
    #[inline]
    fn follow(&mut self, route: &'p Route) {
        if self.pattern.is_none() {
            // From the most specific route alone: an exemption, for example, must not spread from
            // a wider pattern.
            self.pattern = Some(&route.pattern);
            self.scope = route.scope.as_deref();
            self.api_key_required = route.api_key_required;
            self.exempt = route.exempt;
        }
        self.class = self.class.or(route.class.as_ref());
        self.operation = self.operation.or(route.operation.as_ref());
        self.cost = self.cost.or(route.cost);
    }
}

fn has_capitals(text: &str) -> bool {
    // Without an early exit: a branch for each byte would take longer than reading them all.
    text.bytes()
        .fold(false, |found, byte| found | byte.is_ascii_uppercase())
}

fn without_trailing_slash(path: &str) -> &str {
    match path.strip_suffix('/') {
        Some(rest) if !rest.is_empty() => rest,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(text: &str) -> Route {
        let (method, rest) = text.split_once(' ').unwrap();
        let (path, class) = rest.split_once(" -> ").unwrap();
        let mut route = Route::new(path).unwrap();
        route.method = (method != "ANY").then(|| method.into());
        route.class = Some(class.into());
        route
    }

    fn class_of(routes: &[&str], method: &str, path: &str) -> Option<String> {
        let routes = Routes::new(routes.iter().map(|text| route(text)).collect());
        routes
            .find(method, None, path)
            .class
            .map(ToString::to_string)
    }

    #[test]
    fn the_most_specific_route_wins_whatever_the_order() {
        let routes = [
            "ANY /* -> write",
            "GET /* -> read",
            "ANY /auth/token -> auth",
            "ANY /auth/* -> a",
        ];
        for (method, path, class) in [
            ("GET", "/x", "read"),
            ("POST", "/x", "write"),
            ("GET", "/auth/token", "auth"),
            ("GET", "/auth/other", "a"),
            ("GET", "/auth/token/x", "a"),
            ("GET", "/auth", "a"),
            ("GET", "/authority", "read"),
        ] {
            assert_eq!(
                class_of(&routes, method, path).as_deref(),
                Some(class),
                "{method} {path}"
            );
        }
        assert_eq!(class_of(&["GET /a -> x"], "GET", "/b"), None);
    }

    #[test]
    fn a_login_is_found_whatever_the_case_of_its_path() {
        let exact = Route::new("/login").unwrap();
        let open = Route::new("/auth/*").unwrap();
        for (route, path, covered) in [
            (&exact, "/login", true),
            (&exact, "/LogIn", true),
            (&exact, "/login/x", false),
            (&exact, "/logi", false),
            (&open, "/Auth/token", true),
            (&open, "/AUTH", true),
            (&open, "/authority", false),
        ] {
            assert_eq!(route.covers_any_case("POST", None, path), covered, "{path}");
        }
    }

    #[test]
    fn i_path_a_path_that_leads_elsewhere_in_other_letters_is_known() {
        let routes = [
            "ANY /* -> write",
            "ANY /auth/token -> auth",
            "ANY /admin/* -> admin",
            "ANY /Reports/* -> reports",
            "GET /a -> lower",
            "GET /A -> upper",
        ];
        let routes = Routes::new(routes.iter().map(|text| route(text)).collect());
        for (path, differs) in [
            ("/auth/token", false),
            ("/AUTH/TOKEN", true),
            ("/auth/tokeN", true),
            ("/auth/token/X", false),
            ("/Admin", true),
            ("/admin/Users", false),
            ("/Administration", false),
            ("/reports/1", true),
            ("/Reports/1", false),
            ("/Things/1", false),
            ("/caf%C3%A9", false),
            ("/a", false),
            ("/A", false),
        ] {
            assert_eq!(routes.differ_by_case("GET", None, path), differs, "{path}");
        }
    }

    #[test]
    fn i_route_of_two_routes_with_one_path_the_one_of_the_host_counts() {
        let of = |text: &str, host: Option<&str>| Route {
            host: host.map(|host| HostPattern::parse(host).unwrap()),
            ..route(text)
        };
        let routes = Routes::new(vec![
            of("ANY /* -> any", None),
            of("ANY /* -> shop", Some("shop.example")),
            of("ANY /* -> sub", Some("*.example")),
            of("POST /login -> auth", None),
        ]);
        assert!(routes.has_hosts());
        for (method, host, path, class) in [
            ("GET", Some("shop.example"), "/x", "shop"),
            ("GET", Some("api.example"), "/x", "sub"),
            ("GET", Some("elsewhere"), "/x", "any"),
            ("GET", None, "/x", "any"),
            ("POST", Some("shop.example"), "/login", "auth"),
        ] {
            let host = host.map(|host| Host::parse(host).unwrap());
            let found = routes.find(method, host.as_ref(), path).class.unwrap();
            assert_eq!(&**found, class, "{method} {host:?} {path}");
        }
    }

    #[test]
    fn a_later_route_replaces_the_same_pattern() {
        assert_eq!(
            class_of(&["ANY /a -> x", "ANY /a -> y"], "GET", "/a").as_deref(),
            Some("y")
        );
    }

    #[test]
    fn patterns_are_checked() {
        assert_eq!(Route::new("a"), Err(PatternError::NotAbsolute));
        assert_eq!(Route::new("/a/*/b"), Err(PatternError::InnerWildcard));
        for never in ["/a//b", "/a/../b", "/a;b", "/a\\b", "/a%0"] {
            let error = Route::new(never).unwrap_err();
            assert!(matches!(error, PatternError::NeverMatches(_)), "{never}");
        }
    }

    #[test]
    fn i_path_patterns_match_every_spelling_of_a_request() {
        for (pattern, path) in [
            ("ANY /café/* -> x", "/caf%C3%A9/menu"),
            ("ANY /%7euser -> x", "/~user"),
            ("ANY /a%3Ab -> x", "/a:b"),
        ] {
            assert_eq!(class_of(&[pattern], "GET", path).as_deref(), Some("x"));
        }
        let twice = ["ANY /~a -> x", "ANY /%7Ea -> y"];
        assert_eq!(class_of(&twice, "GET", "/~a").as_deref(), Some("y"));
    }
}
