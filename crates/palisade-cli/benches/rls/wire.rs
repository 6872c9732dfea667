//! As much of HTTP/2 and of the messages as the generator speaks: requests that are all alike
//! but for a message, and answers of which only the frames are looked at.

/// What a client begins with: the preface, its settings (nothing is pushed, a stream may send
/// far more than an answer) and a window for the whole connection that no round uses up.
pub(crate) fn preface() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    head(&mut bytes, 12, SETTINGS, 0, 0);
    bytes.extend([0, 2, 0, 0, 0, 0]);
    bytes.extend([0, 4, 0x0F, 0xFF, 0xFF, 0xFF]);
    head(&mut bytes, 4, WINDOW_UPDATE, 0, 0);
    bytes.extend((i32::MAX.unsigned_abs() - u32::from(u16::MAX)).to_be_bytes());
    bytes
}

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
/// On data and headers: nothing follows.
pub(crate) const END_STREAM: u8 = 1;
/// On settings and pings: it is an answer.
pub(crate) const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// What the windows are before a peer says otherwise.
pub(crate) const WINDOW: i64 = 65_535;

const HEAD_BYTES: usize = 9;
/// A flag and a length before a message.
const PREFIX_BYTES: usize = 5;

/// The head of a frame.
pub(crate) fn head(bytes: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let length = u32::try_from(length).expect("a short frame").to_be_bytes();
    bytes.extend(&length[1..]);
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
}

/// A frame of an answer.
pub(crate) struct Frame<'b> {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: &'b [u8],
}

impl<'b> Frame<'b> {
    /// The first frame of `bytes` and what follows it; `None` while it is not there whole.
    pub(crate) fn first(bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let [l0, l1, l2, kind, flags, stream @ ..] = *head;
        let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        let (payload, rest) = rest.split_at_checked(length)?;
        let frame = Self {
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
            payload,
        };
        Some((frame, rest))
    }

    pub(crate) const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The message of a data frame that holds one whole.
    pub(crate) fn message(&self) -> &'b [u8] {
        let (prefix, message) = self.payload.split_at(PREFIX_BYTES);
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
        assert_eq!(
            (prefix[0], length as usize),
            (0, message.len()),
            "one frame"
        );
        message
    }
}

/// The headers of a proxy's call, as they are written on a new connection and from then on:
/// the peer keeps them, so that a number stands for each.
pub(crate) struct Heads {
    new: Vec<u8>,
    known: Vec<u8>,
}

impl Heads {
    pub(crate) fn new() -> Self {
        // `:method POST` and `:scheme http` are known to everybody.
        let (mut new, mut known) = (vec![0x83, 0x86], vec![0x83, 0x86]);
        // Names that everybody knows go by number.
        let numbered: [(u8, &str); 3] = [
            (
                4,
                "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            ),
            (1, "ratelimit"),
            (31, "application/grpc"),
        ];
        let named = [
            ("te", "trailers"),
            ("grpc-timeout", "2000m"),
            ("x-envoy-internal", "true"),
            ("x-forwarded-for", "192.0.2.1"),
        ];
        for (number, value) in numbered {
            new.push(0x40 | number);
            text(&mut new, value);
        }
        for (name, value) in named {
            new.push(0x40);
            text(&mut new, name);
            text(&mut new, value);
        }
        // What was told last has the first number after those that everybody knows.
        let count = u8::try_from(numbered.len() + named.len()).expect("a few");
        known.extend((0..count).rev().map(|age| 0x80 | (62 + age)));
        Self { new, known }
    }

    /// A call on a stream; `write` writes its message. Returns the bytes that count for the
    /// peer's window.
    pub(crate) fn call(
        &self,
        bytes: &mut Vec<u8>,
        stream: u32,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> usize {
        let block = if stream == 1 { &self.new } else { &self.known };
        head(bytes, block.len(), HEADERS, END_HEADERS, stream);
        bytes.extend(block);
        let at = bytes.len();
        head(bytes, 0, DATA, END_STREAM, stream);
        bytes.extend([0; PREFIX_BYTES]);
        let begin = bytes.len();
        write(bytes);
        let length = u32::try_from(bytes.len() - begin).expect("a short message");
        let of_frame = length + u32::try_from(PREFIX_BYTES).expect("five");
        bytes[at..at + 3].copy_from_slice(&of_frame.to_be_bytes()[1..]);
        bytes[begin - 4..begin].copy_from_slice(&length.to_be_bytes());
        of_frame as usize
    }
}

/// A short text of a header, or of a message.
fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.push(short(text.len()));
    bytes.extend(text.as_bytes());
}

/// A length or number below 128 is one byte in both.
fn short(length: usize) -> u8 {
    u8::try_from(length)
        .ok()
        .filter(|l| *l < 127)
        .expect("short")
}

/// A request for these descriptors of one entry each.
pub(crate) fn request(bytes: &mut Vec<u8>, domain: &str, descriptors: &[(&str, &str)]) {
    bytes.push(0x0A);
    text(bytes, domain);
    for (key, value) in descriptors {
        let entry = 4 + key.len() + value.len();
        bytes.extend([0x12, short(entry + 2), 0x0A, short(entry), 0x0A]);
        text(bytes, key);
        bytes.push(0x12);
        text(bytes, value);
    }
    bytes.extend([0x18, 1]);
}
