//! Hexadecimal digits from a table. Every store key and every request id consists of them, and
//! `write!` takes several times as long.

/// The two digits of every byte.
const PAIRS: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < pairs.len() {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Appends the 32 lower-case digits of `number` to `text`.
pub fn push(text: &mut String, number: u128) {
    let pairs = number.to_be_bytes().map(|byte| PAIRS[usize::from(byte)]);
    // The default is never used: hexadecimal digits are valid UTF-8.
    text.push_str(std::str::from_utf8(pairs.as_flattened()).unwrap_or_default());
}

/// Appends the two lower-case digits of `byte` to `text`.
pub fn push_byte(text: &mut String, byte: u8) {
    text.push_str(std::str::from_utf8(&PAIRS[usize::from(byte)]).unwrap_or_default());
}

/// The lower-case digits of `bytes`.
#[must_use]
pub fn of_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        push_byte(&mut text, *byte);
    }
    text
}

/// The 32 lower-case digits of `number`.
#[must_use]
pub fn text(number: u128) -> String {
    let mut text = String::with_capacity(32);
    push(&mut text, number);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_that_formatting_writes() {
        for number in [0, 1, 0x10, u128::MAX, 0x0123_4567_89ab_cdef << 60] {
            assert_eq!(text(number), format!("{number:032x}"));
        }
    }
}
