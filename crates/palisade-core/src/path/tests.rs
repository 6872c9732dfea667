use super::*;
use crate::policy::{Route, Routes};
use proptest::prelude::*;

fn judged(path: &str, slash: EncodedSlash) -> String {
    let normal = normalise(path.as_bytes(), slash);
    normal.unwrap().judged().to_owned()
}

fn normal(path: &str) -> String {
    judged(path, EncodedSlash::Refused)
}

fn forwarded(path: &str) -> String {
    let normal = normalise(path.as_bytes(), EncodedSlash::Refused);
    normal.unwrap().forwarded().to_owned()
}

#[test]
fn i_path_every_spelling_of_a_path_is_one_path() {
    let spellings = [
        "/auth/token",
        "/auth/token/",
        "/auth/./token",
        "/auth/%2e/token",
        "/x/../auth/token",
        "/x/%2E%2e/auth/token",
        "/../auth/token",
        "/auth/%74oken",
        "/%61uth/%74oken",
        "/auth/token;v=1",
        "/auth;a=b;c/token;",
        "/auth/token?client_id=x",
        "/auth/token/x/..",
        "auth/token",
    ];
    for spelling in spellings {
        assert_eq!(normal(spelling), "/auth/token", "{spelling}");
    }
}

#[test]
fn i_path_different_paths_stay_different() {
    let same = [
        "/",
        "/AUTH/token",
        "/auth/token2",
        "/a.b/..c/...",
        "/v1/users:login",
        "/caf%C3%A9",
        "/a%2574",
        "/%3Bx",
    ];
    for path in same {
        assert_eq!(normal(path), path);
    }
    assert_eq!(normal(""), "/");
    assert_eq!(normal("*"), "/*");
    assert_eq!(normal("/caf\u{e9}"), "/caf%C3%A9");
    assert_eq!(normal("/v1/users%3alogin"), "/v1/users:login");
}

#[test]
fn i_path_what_readers_read_differently_is_refused() {
    let paths = [
        "//x/auth/token",
        "/auth/x//../../token",
        "//health/auth/token",
        "/auth//token",
        "/auth/token//",
        "//",
        "/auth\\token",
        "/auth%2Ftoken",
        "/auth%5ctoken",
        "/a%00",
        "/a\n",
        "/a%7f",
        "/a\tb",
        "/100%",
        "/%zz",
        "/%u0041",
        "/mfa/..%2Fread",
        "/mfa/%2e%2e%5cread",
        "/mfa/..;/read",
        "/mfa/.;x",
        "/mfa/;x/read",
        "/a#b",
        "/a%C0%AF",
        "/a%E0%80%AE",
        "/a%F0%80%80%AE",
    ];
    for path in paths {
        let found = normalise(path.as_bytes(), EncodedSlash::Refused);
        assert!(found.is_err(), "{path}: {found:?}");
    }
    let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
    assert!(normalise(long.as_bytes(), EncodedSlash::Refused).is_err());
    let grows = format!("/{}", "\u{e9}".repeat(PATH_BYTES_MAX / 4));
    assert!(normalise(grows.as_bytes(), EncodedSlash::Refused).is_err());
}

#[test]
fn i_path_an_escaped_slash_is_what_the_policy_says() {
    use EncodedSlash::{Literal, Separator};
    assert_eq!(
        judged("/projects/a%2fb/issues", Literal),
        "/projects/a%2Fb/issues"
    );
    assert_eq!(judged("/a%5cb", Literal), "/a%5Cb");
    assert_eq!(judged("/auth%2Ftoken", Separator), "/auth/token");
    assert_eq!(judged("/auth%5ctoken", Separator), "/auth/token");
    for (path, slash) in [
        ("/a\\b", Literal),
        ("/a\\b", Separator),
        ("/a%2F/b", Separator),
        ("/a%2F%2fb", Separator),
        ("/a/..%2Fb", Separator),
    ] {
        assert!(normalise(path.as_bytes(), slash).is_err(), "{path}");
    }
}

#[test]
fn i_path_an_application_is_given_what_was_judged_with_slash_and_parameters() {
    for (path, given) in [
        ("/auth/token", "/auth/token"),
        ("/docs/", "/docs/"),
        ("/a/b/..", "/a/"),
        ("/a/b/.", "/a/b/"),
        ("/a/..", "/"),
        ("/%61;jsessionid=1/%62", "/a;jsessionid=1/b"),
        ("/caf\u{e9}/", "/caf%C3%A9/"),
        ("/x?y", "/x"),
    ] {
        assert_eq!(forwarded(path), given, "{path}");
        assert_eq!(forwarded(given), given, "{path}: once more");
    }
}

#[test]
fn i_path_patterns_are_spelt_as_requests_are() {
    for (pattern, open, spelt) in [
        ("/caf\u{e9}/", true, "/caf%C3%A9/"),
        ("/%7Euser/", true, "/~user/"),
        ("/a%3ab", false, "/a:b"),
        ("/a%2fb", false, "/a%2Fb"),
        ("/.well-known/", true, "/.well-known/"),
        ("/a/.", true, "/a/."),
        ("/", true, "/"),
    ] {
        assert_eq!(normalise_pattern(pattern, open).as_deref(), Ok(spelt));
    }
    for (pattern, open) in [
        ("//a", false),
        ("/a//b", false),
        ("/a/../b", false),
        ("/a/./", true),
        ("/a/..", false),
        ("/a\\b", false),
        ("/a;b", false),
        ("/a?b", false),
        ("/a#b", false),
        ("/100%", false),
        ("/a%00", false),
    ] {
        assert!(normalise_pattern(pattern, open).is_err(), "{pattern}");
    }
}

#[test]
fn i_path_bytes_that_go_on_as_they_came_must_lead_every_reader_to_one_route() {
    let routes = ["/auth/token", "/health", "/files/*", "/admin/*"];
    let routes = Routes::new(routes.map(|text| Route::new(text).unwrap()).into());
    let agree = |path: &str| {
        let normal = normalise(path.as_bytes(), EncodedSlash::Refused).unwrap();
        routes.agree("GET", None, normal.judged(), normal.readings())
    };
    for path in [
        "/auth/token",
        "/auth/token/",
        "/files/a%20b",
        "/files/%7Ea",
        "/files/a;v=1",
        "/files/x/../y",
        "/x/./y",
        "/caf%c3%a9",
    ] {
        assert!(agree(path), "{path}");
    }
    for path in [
        "/%68ealth",
        "/auth/%74oken",
        "/x/../auth/token",
        "/admin/../files/x",
        "/health;x",
        "/files/%2e%2E/x",
    ] {
        assert!(!agree(path), "{path}");
    }
}

fn pathlike() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: [&[u8]; 22] = [
        b"/",
        b"/",
        b".",
        b"..",
        b"%2e",
        b"%2F",
        b"%5c",
        b"\\",
        b"%",
        b"%25",
        b"%74",
        b"4",
        b"a",
        b";",
        b"%3b",
        b"?",
        b"#",
        b"\xc3\xa9",
        b"\xff",
        b" ",
        b"%00",
        b"Z",
    ];
    let piece = proptest::sample::select(&PIECES[..]);
    prop_oneof![
        proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat()),
        proptest::collection::vec(any::<u8>(), 0..64),
    ]
}

const SLASHES: [EncodedSlash; 3] = [
    EncodedSlash::Refused,
    EncodedSlash::Separator,
    EncodedSlash::Literal,
];

proptest! {
    #[test]
    fn i_path_normalising_is_total_idempotent_and_plain(
        path in pathlike(),
        slash in proptest::sample::select(&SLASHES[..]),
    ) {
        if let Ok(once) = normalise(&path, slash) {
            for text in [once.judged(), once.forwarded()] {
                let twice = normalise(text.as_bytes(), slash).unwrap();
                prop_assert_eq!(once.judged(), twice.judged());
                prop_assert!(text.starts_with('/') && !text.contains("//"));
                prop_assert!(text.split('/').all(|segment| segment != "." && segment != ".."));
                prop_assert!(text.bytes().all(|byte| is_plain(byte) || matches!(byte, b'/' | b'%' | b';')));
            }
            let again = normalise(once.forwarded().as_bytes(), slash).unwrap();
            prop_assert_eq!(once.forwarded(), again.forwarded());
            let judged = once.judged();
            prop_assert!(judged.len() == 1 || !judged.ends_with('/'));
            prop_assert!(!judged.contains(';'));
        }
    }

    #[test]
    fn i_path_the_short_cut_agrees_with_the_long_way(path in pathlike()) {
        if is_normal(&path) {
            let text = std::str::from_utf8(&path).unwrap();
            let segments = segments(&path, EncodedSlash::Refused).unwrap();
            prop_assert_eq!(resolved(&segments), (text.to_owned(), text.to_owned()));
        }
    }

    #[test]
    fn i_path_escaping_any_letter_changes_nothing(at in 1_usize..11) {
        let plain = "/auth/token";
        let byte = plain.as_bytes()[at];
        let spelt = format!("{}%{byte:02x}{}", &plain[..at], &plain[at + 1..]);
        if byte == b'/' {
            prop_assert!(normalise(spelt.as_bytes(), EncodedSlash::Refused).is_err());
        } else {
            prop_assert_eq!(normal(&spelt), plain);
        }
    }
}
