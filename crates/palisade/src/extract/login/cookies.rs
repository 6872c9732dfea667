//! Cookies that some applications take for the name of a login.
//!
//! PHP merges cookies into `$_REQUEST`, and where no `php.ini` says otherwise (the official container
//! image has none) a cookie wins over the field of its name in the form.

use http::HeaderMap;
use palisade_core::Id;
use palisade_policy::UsernameSource;

use super::username::counted;
use crate::extract::{cookies, field_name};

/// Takes the cookies out of a login's request that have the name of its field and say another name
/// than the one that is counted. A login is not refused for them: applications remember in such a
/// cookie who was there last.
pub fn drop_other_names(source: &UsernameSource, name: &Id, headers: &mut HeaderMap) {
    let UsernameSource::Form(field) = source else {
        return;
    };
    cookies::retain(headers, |key, value| {
        !says_otherwise(key, value, field, name)
    });
}

/// True if a cookie has the name of the field, and its value is not plainly the name.
fn says_otherwise(key: &[u8], value: &[u8], field: &str, name: &Id) -> bool {
    let (key, value) = (String::from_utf8_lossy(key), String::from_utf8_lossy(value));
    // What readers decode differently is not compared.
    let is_plain = !value.contains(['%', '+', '"', '\\']);
    let is_same = is_plain && counted(&value).as_ref() == Ok(name);
    field_name::is_same(&key, field) && !is_same
}

#[cfg(test)]
mod tests {
    use http::header::COOKIE;

    use super::*;

    fn passed(field: &str, cookies: &[&str]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for line in cookies {
            headers.append(COOKIE, line.parse().unwrap());
        }
        let source = UsernameSource::Form(field.to_owned());
        drop_other_names(&source, &Id::new("username", "ann").unwrap(), &mut headers);
        let lines = headers.get_all(COOKIE).iter();
        lines
            .map(|line| line.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn s2_a_cookie_that_says_another_name_is_not_passed_on() {
        for cookie in [
            "email=bob",
            " email =bob",
            "EMAIL=bob",
            "e%6dail=bob",
            "email.=bob",
            "email[]=bob",
            "email",
            "email=ann%00",
            "email=ann+",
            "email=\"ann\"",
        ] {
            assert!(passed("email", &[cookie]).is_empty(), "{cookie}");
            let among = format!("sid=1; {cookie}; theme=dark");
            assert_eq!(
                passed("email", &[&among]),
                ["sid=1; theme=dark"],
                "{cookie}"
            );
        }
        assert_eq!(passed("email", &["email=bob; sid=1"]), ["sid=1"]);
        assert_eq!(
            passed("email", &["sid=1", "email=bob", "a=b"]),
            ["sid=1;a=b"]
        );
        assert!(passed("user_email", &["user.email=bob"]).is_empty());
        assert!(passed("user[email]", &["user[email]=bob"]).is_empty());
    }

    #[test]
    fn other_cookies_and_the_same_name_are_passed_on_as_they_came() {
        for cookie in [
            "sid=1; email=ann",
            "email=ANN;x=1",
            "user=bob",
            "emails=bob",
            "a=email=bob",
            "",
        ] {
            assert_eq!(passed("email", &[cookie]), [cookie], "{cookie}");
        }
        assert_eq!(passed("user[email]", &["user=sid"]), ["user=sid"]);
    }
}
