//! SipHash-1-3 with 128-bit output over one slice, from a state that has already absorbed the
//! common beginning of all messages.
//!
//! The function is the published one, held to the `siphasher` crate by a test. It is
//! written out here because a streaming hasher buffers bytes that are in one piece
//! anyway, which costs more than the hashing.

/// The hash's state at a block boundary.
#[derive(Clone, Copy)]
pub(super) struct Sip {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
    absorbed_bytes: u64,
}

impl Sip {
    pub(super) const fn new(key: [u8; 16]) -> Self {
        let key = u128::from_le_bytes(key);
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let (k0, k1) = (key as u64, (key >> 64) as u64);
        Self {
            v0: k0 ^ 0x736f_6d65_7073_6575,
            v1: k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            v2: k0 ^ 0x6c79_6765_6e65_7261,
            v3: k1 ^ 0x7465_6462_7974_6573,
            absorbed_bytes: 0,
        }
    }

    #[inline]
    const fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.rotate_left(32);
    }

    #[inline]
    const fn compress(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.v0 ^= word;
    }

    /// The state after one more block.
    #[inline]
    pub(super) const fn after(mut self, block: [u8; 8]) -> Self {
        self.compress(u64::from_le_bytes(block));
        self.absorbed_bytes += 8;
        self
    }

    /// The hash of everything absorbed followed by `rest`.
    #[inline]
    pub(super) fn finish(mut self, rest: &[u8]) -> u128 {
        let (blocks, tail) = rest.as_chunks::<8>();
        for block in blocks {
            self.compress(u64::from_le_bytes(*block));
        }
        let len = self.absorbed_bytes.wrapping_add(rest.len() as u64);
        self.compress(len << 56 | tail_word(tail));
        self.v2 ^= 0xee;
        let low = self.squeeze();
        self.v1 ^= 0xdd;
        let high = self.squeeze();
        u128::from(high) << 64 | u128::from(low)
    }

    #[inline]
    const fn squeeze(&mut self) -> u64 {
        self.round();
        self.round();
        self.round();
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }
}

/// Up to seven bytes as the lower bytes of a word. Two reads that may overlap
/// replace a loop; overlapping bytes are the same.
#[inline]
pub(super) fn tail_word(tail: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (tail.first_chunk::<4>(), tail.last_chunk::<4>()) {
        let [low, high] = [first, last].map(|four| u64::from(u32::from_le_bytes(*four)));
        return low | high << (8 * (tail.len() - 4));
    }
    match *tail {
        [] => 0,
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, ..] => u64::from(u32::from_le_bytes([a, b, c, 0])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use siphasher::sip128::SipHasher13;

    proptest! {
        #[test]
        fn it_is_the_published_function(
            key in any::<[u8; 16]>(),
            head in proptest::collection::vec(any::<[u8; 8]>(), 0..3),
            rest in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let seeded = head.iter().fold(Sip::new(key), |sip, block| sip.after(*block));
            let whole = [head.as_flattened(), &rest].concat();
            let expected = SipHasher13::new_with_key(&key).hash(&whole).as_u128();
            prop_assert_eq!(seeded.finish(&rest), expected);
        }
    }

    #[test]
    fn every_length_of_tail_is_read_whole() {
        let bytes = [1, 2, 3, 4, 5, 6, 7];
        for len in 0..=7 {
            let mut padded = [0; 8];
            padded[..len].copy_from_slice(&bytes[..len]);
            assert_eq!(tail_word(&bytes[..len]), u64::from_le_bytes(padded));
        }
    }
}
