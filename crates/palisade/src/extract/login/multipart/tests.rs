//! Forms that are accepted, forms that are refused, and a lenient reader that must never find
//! another name than the strict one.

use proptest::prelude::*;

use super::*;

fn named(content_type: &str) -> Option<String> {
    let mut parts = content_type.as_bytes().split(|byte| *byte == b';');
    parts.next();
    boundary(parts).map(|found| String::from_utf8(found.to_vec()).unwrap())
}

fn read(body: &str) -> Result<String, FieldError> {
    only(body.as_bytes(), b"x", "email")
}

/// A form with parts of these heads and values.
fn form_of(parts: &[(&str, &str)]) -> String {
    let part = |(head, value): &(&str, &str)| format!("--x\r\n{head}\r\n\r\n{value}\r\n");
    parts.iter().map(part).collect::<String>() + "--x--\r\n"
}

const EMAIL: &str = "Content-Disposition: form-data; name=\"email\"";
const OTHER: &str = "Content-Disposition: form-data; name=\"password\"";

#[test]
fn boundaries_of_browsers_and_libraries_are_read() {
    for (said, found) in [
        (
            "multipart/form-data; boundary=----WebKitFormBoundaryABC123",
            "----WebKitFormBoundaryABC123",
        ),
        ("multipart/form-data;boundary=\"a-b\"", "a-b"),
        ("multipart/form-data; Boundary=x; charset=UTF-8", "x"),
    ] {
        assert_eq!(named(said).as_deref(), Some(found), "{said}");
    }
    let long = format!("multipart/form-data; boundary={}", "x".repeat(71));
    for said in [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=a; boundary=b",
        "multipart/form-data; boundary=a; Boundary=a",
        "multipart/form-data; boundary=\"a;b\"",
        "multipart/form-data; boundary=\"a\\\"b\"",
        "multipart/form-data; boundary =a",
        "multipart/form-data; boundary= a",
        "multipart/form-data; boundary=a b",
        "multipart/form-data; boundary=a,b",
        "multipart/form-data; boundary*=utf-8''a",
        "multipart/form-data; boundary=a; charset=utf-16",
        "multipart/form-data; boundary=a; x=\"y",
        "multipart/form-data; boundary=a;",
        &long,
    ] {
        assert_eq!(named(said), None, "{said}");
    }
}

#[test]
fn forms_as_clients_send_them_are_read() {
    let okhttp = format!("{EMAIL}\r\nContent-Length: 3");
    let apache = format!(
        "{EMAIL}\r\nContent-Type: text/plain; charset=UTF-8\r\nContent-Transfer-Encoding: 8bit"
    );
    let file = "Content-Disposition: form-data; name=\"photo\"; filename=\"a b.png\"\r\nContent-Type: image/png";
    for body in [
        form_of(&[(EMAIL, "ann"), (OTHER, "a\r\nb--c")]),
        form_of(&[(OTHER, ""), (EMAIL, "ann")]),
        form_of(&[(okhttp.as_str(), "ann")]),
        form_of(&[(apache.as_str(), "ann")]),
        form_of(&[(file, "\0\x01"), (EMAIL, "ann")]),
        form_of(&[("content-disposition:form-data;name=email", "ann")]),
        form_of(&[
            (EMAIL, "ann"),
            (
                "Content-Disposition: form-data; name=\"_charset_\"",
                "UTF-8",
            ),
        ]),
        form_of(&[(EMAIL, "ann")]).trim_end().to_owned(),
    ] {
        assert_eq!(read(&body).as_deref(), Ok("ann"), "{body}");
    }
}

#[test]
fn a_field_that_is_sent_twice_or_not_as_text_is_refused() {
    for (head, value) in [
        ("Content-Disposition: form-data; name=\"Email\"", "bob"),
        ("Content-Disposition: form-data; name=\"email[]\"", "bob"),
        ("Content-Disposition: form-data; name=\"%65mail\"", "bob"),
        (
            "Content-Disposition: form-data; name=\"email\"; filename=\"f\"",
            "bob",
        ),
        (OTHER, "x&email=bob&y"),
        (OTHER, "x&E%4Dail=bob"),
    ] {
        let body = form_of(&[(EMAIL, "ann"), (head, value)]);
        assert!(read(&body).is_err(), "{body}");
    }
    let utf_16 = format!("{EMAIL}\r\nContent-Type: text/plain; charset=utf-16");
    let json = format!("{EMAIL}\r\nContent-Type: application/json");
    let file = format!("{EMAIL}; filename=\"f\"");
    for head in [
        utf_16.as_str(),
        &json,
        &file,
        "Content-Disposition: form-data; name=\"email[]\"",
        OTHER,
    ] {
        assert!(read(&form_of(&[(head, "ann")])).is_err(), "{head}");
    }
    assert!(read(&form_of(&[(EMAIL, "")])).is_err());
    assert!(
        only(
            b"--x\r\nContent-Disposition: form-data; name=\"email\"\r\n\r\n\xff\r\n--x--",
            b"x",
            "email"
        )
        .is_err()
    );
}

#[test]
fn a_body_that_two_readers_could_cut_differently_is_refused() {
    let good = form_of(&[(EMAIL, "ann"), (OTHER, "y")]);
    assert!(read(&good).is_ok());
    let nested = format!("{OTHER}\r\nContent-Type: multipart/mixed; boundary=y");
    let coded = format!("{EMAIL}\r\nContent-Transfer-Encoding: base64");
    let length = format!("{EMAIL}\r\nContent-Length: 2");
    let charset = "Content-Disposition: form-data; name=\"_charset_\"";
    for body in [
        String::new(),
        "--x--".to_owned(),
        format!("preamble\r\n{good}"),
        format!("{good}epilogue"),
        good.replace("\r\n", "\n"),
        good.replacen("--x\r\n", "--x \r\n", 1),
        good.replace("--x--", "--x"),
        good.replace("--x--", "--x-- "),
        good.replace("\r\n--x--", "--x--"),
        form_of(&[(EMAIL, "ann\n--x\nb")]),
        form_of(&[(EMAIL, "ann\r\n--xy")]),
        form_of(&[(EMAIL, "ann--x")]),
        form_of(&[(&nested, "z"), (EMAIL, "ann")]),
        form_of(&[(&coded, "YW5u")]),
        form_of(&[(&length, "ann")]),
        form_of(&[(charset, "utf-7"), (EMAIL, "ann")]),
        form_of(&[("X-Other: 1", "z"), (EMAIL, "ann")]),
        form_of(&[("", "z"), (EMAIL, "ann")]),
        form_of(&[(&format!("{EMAIL}\r\n{OTHER}"), "ann")]),
        form_of(&[(&format!("{EMAIL}\r\n folded"), "ann")]),
        form_of(&[(&format!("{EMAIL}; name=\"b\""), "ann")]),
        form_of(&[(&format!("{EMAIL}; filename*=utf-8''f"), "ann")]),
        form_of(&[(&format!("{EMAIL} ; filename=f"), "ann")]),
        form_of(&[
            ("Content-Disposition: form-data; name=\"e\\mail\"", "b"),
            (EMAIL, "ann"),
        ]),
        form_of(&[
            (
                "Content-Disposition: form-data; name=\"a\"; filename=\"\\\"; name=\"email\"",
                "b",
            ),
            (EMAIL, "ann"),
        ]),
        form_of(&[("Content-Disposition: attachment; name=\"email\"", "ann")]),
        form_of(&[(EMAIL, "ann")]) + &form_of(&[(OTHER, "y")]),
        form_of(&vec![(OTHER, "y"); PARTS_MAX + 1]),
    ] {
        let refused = read(&body).unwrap_err().to_string();
        assert!(!refused.contains("ann"), "{refused}");
    }
}

/// Every value that the most lenient reader could find for `email`: any line may begin a part, any
/// line end counts, headers of any kind are skipped, and quotes are ignored.
fn loosely_found(body: &str) -> Vec<String> {
    let body = body.replace("\r\n", "\n").replace('\r', "\n");
    let mut found = Vec::new();
    for part in body.split("--x").skip(1) {
        let part = part.strip_prefix('\n').unwrap_or(part);
        let Some((head, value)) = part.split_once("\n\n") else {
            continue;
        };
        let head = head.to_lowercase().replace(['"', '\''], "");
        let names = head.split("name=").skip(1);
        let is_email = |name: &str| name.starts_with("email") || name.starts_with("%65mail");
        if names.into_iter().any(is_email) {
            found.push(value.strip_suffix('\n').unwrap_or(value).to_owned());
        }
    }
    found
}

/// Generates fragments of the bodies in these tests.
fn fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => Just("--x\r\n".to_owned()),
        3 => Just("--x--\r\n".to_owned()),
        1 => Just("--x--".to_owned()),
        8 => Just(format!("{EMAIL}\r\n\r\n")),
        6 => Just(format!("{OTHER}\r\n\r\n")),
        4 => Just("\r\n".to_owned()),
        2 => Just("\n".to_owned()),
        1 => Just("\r".to_owned()),
        2 => Just("--x\n".to_owned()),
        2 => Just(format!("{}\r\n\r\n", EMAIL.to_uppercase())),
        2 => Just("Content-Disposition: form-data; name=email; filename=f\r\n\r\n".to_owned()),
        2 => Just("Content-Type: multipart/mixed; boundary=y\r\n".to_owned()),
        1 => Just("; name=\"email\"".to_owned()),
        1 => Just("&email=bob&".to_owned()),
        6 => "[a-c]{1,3}".prop_map(|word| format!("{word}\r\n")),
        2 => "[ -~]{0,6}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn whatever_is_read_no_loose_reader_finds_another_name(
        start in prop::collection::vec(fragment(), 0..10),
        is_begun in any::<bool>(),
    ) {
        let body = if is_begun {
            format!("--x\r\n{EMAIL}\r\n\r\nann\r\n{}--x--", start.concat())
        } else {
            start.concat()
        };
        if let Ok(name) = read(&body) {
            let name = name.replace("\r\n", "\n").replace('\r', "\n");
            prop_assert_eq!(loosely_found(&body), [name], "{:?}", body);
        }
    }

    #[test]
    fn bytes_of_any_kind_are_read_or_refused(
        body in prop::collection::vec(any::<u8>(), 0..200),
        kind in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let found = boundary(kind.split(|byte| *byte == b';'));
        let _ = only(&body, found.unwrap_or(b"x"), "email");
        let framed = [b"--x\r\n", &body[..], b"\r\n--x--"].concat();
        let _ = only(&framed, b"x", "email");
    }

    #[test]
    fn a_form_is_read_whatever_its_other_fields_hold(
        email in "[a-z@. ]{1,20}",
        others in prop::collection::vec(("[a-d]{1,5}", "[ !-%'-~\r\n]{0,30}"), 0..8),
        place in 0_usize..8,
    ) {
        let heads: Vec<(String, String)> = others
            .into_iter()
            .map(|(name, value)| (format!("Content-Disposition: form-data; name=\"{name}\""), value.replace("--x", "")))
            .filter(|(_, value)| !value.contains("--x"))
            .collect();
        let mut parts: Vec<(&str, &str)> = heads.iter().map(|(head, value)| (&**head, &**value)).collect();
        parts.insert(place.min(parts.len()), (EMAIL, &email));
        prop_assert_eq!(read(&form_of(&parts)), Ok(email.clone()));
    }
}
