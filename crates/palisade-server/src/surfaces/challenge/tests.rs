//! Tickets, return paths and passes.

use http::header::{COOKIE, SET_COOKIE};
use palisade_core::Micros;
use palisade_core::challenge::{PassNote, ShownPass};
use palisade_core::key::Keyring;
use palisade_core::time::MINUTE;

use super::pass::set_cookie;
use super::ticket::TicketError;
use super::*;

fn ring(byte: u8) -> Keyring {
    Keyring::new(&[byte; 32], None).unwrap()
}

fn ticket() -> Ticket {
    Ticket {
        flow: ChallengeFlow::Login,
        level: Some(Level::L3),
        path: ReturnPath::new("/login?next=%2Fhome").unwrap(),
    }
}

#[test]
fn c_page_a_ticket_says_what_was_sealed_and_nothing_else_opens() {
    let now = Micros(MINUTE);
    let sealed = ticket().seal(&ring(1), now);
    assert_eq!(Ticket::open(&ring(1), &sealed, now), Ok(ticket()));
    assert_eq!(
        Ticket::open(&ring(2), &sealed, now),
        Err(TicketError::Forged)
    );
    for changed in 0..sealed.len() - 1 {
        let mut text = sealed.clone().into_bytes();
        text[changed] = if text[changed] == b'A' { b'B' } else { b'A' };
        let text = String::from_utf8(text).unwrap();
        let opened = Ticket::open(&ring(1), &text, now);
        assert_eq!(opened, Err(TicketError::Forged), "{changed}");
    }
    for text in ["", "AA", "a b", &"A".repeat(10_000)] {
        assert_eq!(Ticket::open(&ring(1), text, now), Err(TicketError::Forged));
    }
}

#[test]
fn c_page_a_ticket_is_good_for_half_an_hour() {
    let ring = ring(1);
    let sealed = ticket().seal(&ring, Micros(MINUTE));
    assert!(Ticket::open(&ring, &sealed, Micros(31 * MINUTE)).is_ok());
    let late = Ticket::open(&ring, &sealed, Micros(31 * MINUTE + 1));
    assert_eq!(late, Err(TicketError::Late));
}

#[test]
fn c_page_nobody_is_sent_to_another_site() {
    for path in ["/", "/a//b", "/a?to=//evil.example", "/a;b=c/%2e%2e"] {
        assert!(ReturnPath::new(path).is_some(), "{path}");
    }
    let long = format!("/{}", "a".repeat(2048));
    for path in [
        "",
        "evil.example",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/a\\b",
        "/\t/evil.example",
        "/a\r\nset-cookie: a=b",
        "/a b",
        "/ä",
        "https://evil.example/",
        "javascript:alert(1)",
        "?a",
        "/.palisade/challenge",
        &long,
    ] {
        assert!(ReturnPath::new(path).is_none(), "{path}");
    }
}

#[test]
fn c_page_a_form_is_returned_to_where_the_browser_says_it_was_if_that_is_here() {
    let of = |method: &str, flow, referer: &'static str| {
        let referer = HeaderValue::from_static(referer);
        let headers = HeaderMap::from_iter([(REFERER, referer)]);
        let visit = RefusedVisit {
            ip: [192, 0, 2, 1].into(),
            flow,
            method,
            target: "/login?password=secret",
            host: Some("shop.example:8443"),
            headers: &headers,
        };
        visit.return_path().as_str().to_owned()
    };
    let (login, request) = (ChallengeFlow::Login, ChallengeFlow::Request);
    let form = "https://SHOP.example:8443/account/sign-in?lang=de";
    assert_eq!(of("POST", login, form), "/account/sign-in?lang=de");
    assert_eq!(of("GET", request, form), "/login?password=secret");
    assert_eq!(of("GET", login, form), "/login");
    for elsewhere in [
        "https://evil.example/account",
        "https://shop.example:8443.evil.example/x",
        "https://shop.example/x",
        "https://shop.example:8443@evil.example/x",
        "https://shop.example:8443//evil.example",
        "about:blank",
        "",
    ] {
        assert_eq!(of("POST", login, elsewhere), "/login", "{elsewhere}");
    }
}

#[test]
fn c_page_a_pass_is_taken_out_of_the_request_and_named_after_its_flow() {
    let line = "sid=1; __Host-palisade-request=R; palisade-login=L; palisade-other=x; __Host-palisade-login=H";
    let mut headers = HeaderMap::from_iter([(COOKIE, HeaderValue::from_static(line))]);
    let plain = Passes::read(&headers, false);
    assert_eq!(
        plain.of(ChallengeFlow::Login),
        Some(Box::new(ShownPass::cookie("L")))
    );
    assert_eq!(plain.of(ChallengeFlow::Request), None);
    let secure = Passes::taken_from(&mut headers, true);
    assert_eq!(
        secure.of(ChallengeFlow::Login),
        Some(Box::new(ShownPass::cookie("H")))
    );
    assert_eq!(
        secure.of(ChallengeFlow::Request),
        Some(Box::new(ShownPass::cookie("R")))
    );
    assert_eq!(secure.of(ChallengeFlow::Otp), None);
    assert_eq!(headers[COOKIE], "sid=1; palisade-other=x");
}

#[test]
fn c_page_a_pass_stays_on_its_host_and_out_of_scripts() {
    let of = |is_secure| {
        let cookie = set_cookie(ChallengeFlow::Login, "P", 600, is_secure).unwrap();
        HeaderMap::from_iter([(SET_COOKIE, cookie)])[SET_COOKIE]
            .to_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        of(true),
        "__Host-palisade-login=P; Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure"
    );
    assert_eq!(
        of(false),
        "palisade-login=P; Path=/; Max-Age=600; HttpOnly; SameSite=Lax"
    );
    let note = PassNote::Moved("M".into());
    let cookie = moved(ChallengeFlow::Request, Some(&note), 600, true).unwrap();
    assert!(
        cookie
            .to_str()
            .unwrap()
            .starts_with("__Host-palisade-request=M; ")
    );
    assert_eq!(
        moved(ChallengeFlow::Request, Some(&PassNote::Accepted), 600, true),
        None
    );
}
