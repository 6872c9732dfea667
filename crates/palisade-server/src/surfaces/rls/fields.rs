//! Writes fields of a message straight into the buffer to be sent. Building a message first takes
//! an allocation for each part, and the message is measured before it is written. For the answer to
//! a call that would be as much work as the decision.

use prost::Message;

/// A message being written. Fields with their default value are left out, as always in protobuf.
/// Tags must be below 16.
pub(super) struct Fields<'a>(&'a mut Vec<u8>);

const VARINT: u8 = 0;
const WITH_LENGTH: u8 = 2;

impl<'a> Fields<'a> {
    pub(super) const fn new(bytes: &'a mut Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Writes a number or an enumeration.
    pub(super) fn number(&mut self, tag: u8, number: u64) {
        if number != 0 {
            self.0.push(tag << 3 | VARINT);
            self.varint(number);
        }
    }

    /// Writes text or bytes.
    pub(super) fn bytes(&mut self, tag: u8, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.0.push(tag << 3 | WITH_LENGTH);
            self.varint(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            self.0.extend_from_slice(bytes);
        }
    }

    /// Writes a message, even if it is empty.
    pub(super) fn message(&mut self, tag: u8, write: impl FnOnce(&mut Self)) {
        self.0.push(tag << 3 | WITH_LENGTH);
        // Most messages are so short that their length takes a byte.
        let before = self.0.len();
        self.0.push(0);
        write(self);
        let length = self.0.len() - before - 1;
        match u8::try_from(length) {
            Ok(short) if short < 0x80 => self.0[before] = short,
            _ => {
                let end = self.0.len();
                self.varint(u64::try_from(length).unwrap_or(u64::MAX));
                let wide = self.0.len() - end;
                self.0[before..].rotate_right(wide);
                self.0.remove(before + wide);
            }
        }
    }

    /// Writes the fields of a finished message.
    pub(super) fn all_of(&mut self, message: &impl Message) {
        // The buffer grows: encoding into it does not fail.
        let _ = message.encode(self.0);
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.0.push(number.to_le_bytes()[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every kind of field, as prost writes it.
    #[derive(Clone, PartialEq, Message)]
    struct All {
        #[prost(uint64, tag = "1")]
        number: u64,
        #[prost(string, tag = "2")]
        text: String,
        #[prost(message, repeated, tag = "15")]
        within: Vec<All>,
    }

    impl All {
        fn write(&self, fields: &mut Fields<'_>) {
            fields.number(1, self.number);
            fields.bytes(2, self.text.as_bytes());
            for one in &self.within {
                fields.message(15, |fields| one.write(fields));
            }
        }
    }

    fn any() -> impl Strategy<Value = All> {
        let number = || (proptest::num::u64::ANY, 0..64_u32).prop_map(|(bits, by)| bits >> by);
        let leaf = (number(), "[a-z]{0,300}").prop_map(|(number, text)| All {
            number,
            text,
            within: Vec::new(),
        });
        leaf.prop_recursive(3, 24, 4, move |inner| {
            (number(), proptest::collection::vec(inner, 0..4)).prop_map(|(number, within)| All {
                number,
                text: String::new(),
                within,
            })
        })
    }

    proptest! {
        #[test]
        fn wire_fields_are_written_as_protobuf_has_them(all in any()) {
            let mut bytes = Vec::new();
            all.write(&mut Fields::new(&mut bytes));
            prop_assert_eq!(bytes, all.encode_to_vec());
        }
    }
}
