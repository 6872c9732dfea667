//! Writes answers as bytes, in either version of the protocol.

/// The version that a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// RESP2.
    #[default]
    Two,
    /// RESP3.
    Three,
}

impl Version {
    /// Returns the number that `HELLO` has for it.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::Two => 2,
            Self::Three => 3,
        }
    }
}

/// Answers that wait to be sent, in order.
#[derive(Clone, Debug, Default)]
pub struct Replies {
    bytes: Vec<u8>,
    /// Version of the protocol in which answers are written.
    pub version: Version,
}

impl Replies {
    /// Returns the bytes to be sent.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets the bytes, after they were sent.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Adds a word, such as `OK`.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Adds an error: a code in capitals, then what is wrong.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text.as_bytes());
    }

    /// Adds a number.
    pub fn integer(&mut self, number: i64) {
        self.line(b':', itoa::Buffer::new().format(number).as_bytes());
    }

    /// Adds a list of numbers.
    pub fn integers(&mut self, numbers: &[i64]) {
        self.array(numbers.len());
        for number in numbers {
            self.integer(*number);
        }
    }

    /// Adds a text.
    pub fn bulk(&mut self, text: &[u8]) {
        self.line(b'$', itoa::Buffer::new().format(text.len()).as_bytes());
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Adds a null.
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            Version::Two => b"$-1\r\n",
            Version::Three => b"_\r\n",
        });
    }

    /// Adds the head of a list of `count` answers, which follow.
    pub fn array(&mut self, count: usize) {
        self.line(b'*', itoa::Buffer::new().format(count).as_bytes());
    }

    /// Adds the head of `pairs` pairs of answers, which follow.
    pub fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Two => self.array(2 * pairs),
            Version::Three => self.line(b'%', itoa::Buffer::new().format(pairs).as_bytes()),
        }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_a_list_of_both_sides_in_the_older_version() {
        let mut replies = Replies::default();
        replies.map(1);
        replies.bulk(b"proto");
        replies.null();
        assert_eq!(replies.bytes(), b"*2\r\n$5\r\nproto\r\n$-1\r\n");
        replies.clear();
        replies.version = Version::Three;
        replies.map(1);
        replies.bulk(b"proto");
        replies.null();
        assert_eq!(replies.bytes(), b"%1\r\n$5\r\nproto\r\n_\r\n");
    }
}
