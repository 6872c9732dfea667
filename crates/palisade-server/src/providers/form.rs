//! URL-encoded forms.

use std::fmt::Write;

use bytes::Bytes;

/// A form to be sent.
#[derive(Default)]
pub(super) struct Form(String);

impl Form {
    pub(super) const TYPE: &str = "application/x-www-form-urlencoded";

    /// Adds a field.
    pub(super) fn add(&mut self, name: &str, value: &str) {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        self.0.push_str(name);
        self.0.push('=');
        for byte in value.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                    self.0.push(char::from(byte));
                }
                other => {
                    // Writing to text cannot fail.
                    let _ = write!(self.0, "%{other:02X}");
                }
            }
        }
    }

    pub(super) fn into_bytes(self) -> Bytes {
        Bytes::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_kind_a_value_adds_no_field_of_its_own() {
        let mut form = Form::default();
        form.add("secret", "0x4AAA_-.");
        form.add("response", "a&remoteip=1.2.3.4+b c%41é");
        assert_eq!(
            form.into_bytes(),
            "secret=0x4AAA_-.&response=a%26remoteip%3D1.2.3.4%2Bb%20c%2541%C3%A9"
        );
    }
}
