//! Receipts: the charges of a check, sealed with the secret, so that they can be given back once
//! and no more than they were (L-GIVE-BACK).
//!
//! A receipt names buckets by digests, the specs they were charged with, the cost and the instant.
//! Its holder can give these charges back and nothing else: a changed byte is refused.

use std::hash::Hasher;
use std::num::{NonZeroU32, NonZeroU64};

use arrayvec::ArrayVec;
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::key::{Digest, Domain, Keyring, SEGMENTS_MAX, Seal, Segment, SegmentKind};
use crate::limit::{Algorithm, BucketSpec, COUNT_MAX, CountsFrom, Window};
use crate::plan::{Charge, OnExceed};
use crate::policy::{Dimension, Family, Limit, LimitDef};
use crate::time::Micros;

/// Longest sealed receipt, in bytes.
pub const RECEIPT_BYTES_MAX: usize = 4096;

/// Most buckets of a receipt; a request with more gets none.
pub(crate) const LINES_MAX: usize = 48;

/// Longest name of a class that a receipt contains, in bytes.
const CLASS_BYTES_MAX: usize = 64;

/// First byte of a receipt: the version of its encoding.
const VERSION: u8 = 1;

/// Shortest time for which a refund is remembered (18 minutes): a store may start short windows
/// empty after a crash.
const REMEMBERED_US_MIN: u64 = 1 << 30;

/// The reason why a receipt was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a receipt that was issued here, or was changed")]
pub struct ReceiptError;

/// The place where a bucket was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the store.
    Store,
    /// In the process that issued the receipt.
    Process,
}

/// One bucket that was charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Digest of the limit's name and window.
    pub limit: Digest,
    /// The bucket's name in the embedded store.
    pub id: Digest,
    /// Identifiers that the bucket counts by.
    pub segments: ArrayVec<Segment, SEGMENTS_MAX>,
    /// Definition of the bucket when it was charged.
    pub spec: BucketSpec,
    /// The cost.
    pub cost: u64,
    /// When it was taken, by the clock of `place`.
    pub at: Micros,
    /// Place where it was taken.
    pub place: Place,
}

/// The charges of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The process that issued the receipt: no other process has its local buckets.
    pub process: u64,
    /// Number of the receipt within its process, so that no two receipts are alike.
    pub number: u64,
    /// The request's class.
    pub class: String,
    /// The buckets.
    pub lines: Vec<Line>,
}

impl Line {
    /// A charge as it is written in a receipt.
    #[must_use]
    pub fn new(charge: &Charge<'_>, spec: BucketSpec, at: Micros, place: Place) -> Self {
        Self {
            limit: charge.limit.digest,
            id: charge.id,
            segments: charge.segments.clone(),
            spec,
            cost: charge.cost,
            at,
            place,
        }
    }

    /// This line with another cost and instant.
    #[must_use]
    pub fn charged(&self, cost: u64, at: Micros) -> Self {
        let mut line = self.clone();
        (line.cost, line.at) = (cost, at);
        line
    }

    /// The charge to give back. `limit` must be the one that the line names.
    #[must_use]
    pub fn charge<'l>(&'l self, limit: &'l Limit) -> Charge<'l> {
        Charge {
            limit,
            spec: &self.spec,
            id: self.id,
            segments: self.segments.clone(),
            previous: None,
            cost: self.cost,
            on_exceed: OnExceed::Count,
            from: CountsFrom::Now,
        }
    }

    /// Time in which a bucket that holds nothing else drains this cost, in microseconds.
    fn drains_in_us(&self) -> u64 {
        let window = u128::from(self.spec.window_us());
        let drains = window * u128::from(self.cost) / u128::from(self.spec.limit());
        u64::try_from(drains).unwrap_or(u64::MAX)
    }

    /// Whether the bucket still counts some of this charge.
    #[must_use]
    pub fn counts_at(&self, now: Micros) -> bool {
        let until = match self.spec.algorithm() {
            Algorithm::TokenBucket => self.at.plus(self.drains_in_us()),
            Algorithm::FixedWindow => self.spec.window_end(self.spec.window_start(self.at)),
            Algorithm::SlidingLog | Algorithm::SlidingWheel => {
                self.spec.slot_instant(self.at).plus(self.spec.window_us())
            }
        };
        until > now
    }

    /// Time after which the bucket certainly counts nothing of this charge any more, in
    /// microseconds.
    fn counts_for_us(&self) -> u64 {
        let longest = self.spec.window_us().max(self.drains_in_us());
        longest.saturating_add(self.spec.slot_us() + 1)
    }
}

impl Receipt {
    /// Seals the receipt into bytes that only the holder of this secret can make; `None` without
    /// lines, or if the receipt exceeds its bounds.
    #[must_use]
    pub fn seal(&self, keyring: &Keyring) -> Option<Vec<u8>> {
        if self.lines.is_empty() || self.lines.len() > LINES_MAX {
            return None;
        }
        let mut out = vec![VERSION];
        number(&mut out, self.process);
        number(&mut out, self.number);
        let class = if self.class.len() > CLASS_BYTES_MAX {
            ""
        } else {
            &self.class
        };
        number(&mut out, class.len() as u64);
        out.extend_from_slice(class.as_bytes());
        let mut known: ArrayVec<Segment, 16> = ArrayVec::new();
        for line in &self.lines {
            write_line(&mut out, line, &mut known);
        }
        let seal = seal_of(keyring, &out);
        out.extend_from_slice(&seal.to_bytes());
        (out.len() <= RECEIPT_BYTES_MAX).then_some(out)
    }

    /// Opens a sealed receipt.
    ///
    /// # Errors
    /// It was not sealed with one of the keyring's secrets, or was changed.
    pub fn open(keyring: &Keyring, bytes: &[u8]) -> Result<Self, ReceiptError> {
        let (said, seal) = bytes
            .split_last_chunk()
            .filter(|_| bytes.len() <= RECEIPT_BYTES_MAX)
            .ok_or(ReceiptError)?;
        if !seal_of(keyring, said).is(seal) {
            return Err(ReceiptError);
        }
        let mut reader = Reader(said);
        reader.receipt().ok_or(ReceiptError)
    }

    /// The limit of a bucket that holds one unit, which marks the receipt as used. The bucket is
    /// remembered for as long as one of the charged buckets counts its charge: later there is
    /// nothing to give back.
    #[must_use]
    pub fn once(&self) -> Option<Limit> {
        let lasts = self.lines.iter().map(Line::counts_for_us).max()?;
        let lasts = lasts.max(REMEMBERED_US_MIN).checked_next_power_of_two()?;
        let window = Window::Span(lasts);
        let spec = BucketSpec::new(Algorithm::TokenBucket, NonZeroU32::MIN, window, None);
        let by = vec![Dimension::Descriptor("receipt".into())];
        let mut def = LimitDef::new("receipt", by, spec.ok()?);
        def.family = Family::Quota;
        Some(Limit::bind(def))
    }

    /// Returns the segment of this receipt in the bucket of [`Receipt::once`]. It is made without a
    /// secret, so that a receipt stays the same when secrets rotate; it identifies nobody.
    #[must_use]
    pub fn segment(&self) -> Segment {
        let mut hasher = SipHasher24::new_with_key(b"palisade receipt");
        hasher.write_u64(self.process);
        hasher.write_u64(self.number);
        Segment {
            kind: SegmentKind::Descriptor,
            digest: Digest(hasher.finish128().as_u128()),
        }
    }
}

pub(crate) fn seal_of(keyring: &Keyring, said: &[u8]) -> Seal {
    keyring.seal(Domain::Receipt, &[said])
}

/// Appends a number, seven bits per byte, the lowest first.
pub(crate) fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or(0));
}

const fn algorithm_code(algorithm: Algorithm) -> u64 {
    match algorithm {
        Algorithm::SlidingLog => 0,
        Algorithm::SlidingWheel => 1,
        Algorithm::TokenBucket => 2,
        Algorithm::FixedWindow => 3,
    }
}

/// Appends a line. Each segment is written once; later lines refer to it by its position.
pub(crate) fn write_line(out: &mut Vec<u8>, line: &Line, known: &mut ArrayVec<Segment, 16>) {
    out.extend_from_slice(&line.limit.0.to_be_bytes());
    out.extend_from_slice(&line.id.0.to_be_bytes());
    number(
        out,
        algorithm_code(line.spec.algorithm()) << 1 | u64::from(line.place == Place::Process),
    );
    number(out, line.spec.limit());
    number(out, line.spec.capacity());
    number(
        out,
        match line.spec.window() {
            Window::Month => 0,
            Window::Span(span) => span,
            // Unambiguous: no span is as long.
            Window::Year => u64::MAX,
        },
    );
    number(out, line.cost);
    number(out, line.at.0);
    number(out, line.segments.len() as u64);
    for segment in &line.segments {
        let place = known.iter().position(|one| one == segment);
        number(out, place.map_or(0, |place| place as u64 + 1));
        if place.is_none() {
            out.push(segment.kind as u8);
            out.extend_from_slice(&segment.digest.0.to_be_bytes());
            let _ = known.try_push(*segment);
        }
    }
}

pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn digest(&mut self) -> Option<Digest> {
        let (first, rest) = self.0.split_first_chunk::<16>()?;
        self.0 = rest;
        Some(Digest(u128::from_be_bytes(*first)))
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn cost(&mut self) -> Option<u64> {
        self.number().filter(|cost| *cost <= COUNT_MAX)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(first.to_vec()).ok()
    }

    fn receipt(&mut self) -> Option<Receipt> {
        if self.byte()? != VERSION {
            return None;
        }
        let (process, number) = (self.number()?, self.number()?);
        let class = self.text()?;
        let (mut lines, mut known) = (Vec::new(), ArrayVec::new());
        while !self.0.is_empty() && lines.len() < LINES_MAX {
            lines.push(self.line(&mut known)?);
        }
        self.0.is_empty().then_some(Receipt {
            process,
            number,
            class,
            lines,
        })
    }

    pub(crate) fn line(&mut self, known: &mut ArrayVec<Segment, 16>) -> Option<Line> {
        let (limit, id) = (self.digest()?, self.digest()?);
        let (kind, place) = self.kind()?;
        let amount = NonZeroU64::new(self.number()?)?;
        let burst = NonZeroU64::new(self.number()?)?;
        let window = match self.number()? {
            0 => Window::Month,
            u64::MAX => Window::Year,
            span => Window::Span(span),
        };
        let (cost, at) = (self.cost()?, Micros(self.number()?));
        let mut segments = ArrayVec::new();
        for _ in 0..self.number()? {
            segments.try_push(self.segment(known)?).ok()?;
        }
        Some(Line {
            limit,
            id,
            segments,
            spec: BucketSpec::new(kind, amount, window, Some(burst)).ok()?,
            cost,
            at,
            place,
        })
    }

    fn kind(&mut self) -> Option<(Algorithm, Place)> {
        let code = self.number()?;
        let algorithm = match code >> 1 {
            0 => Algorithm::SlidingLog,
            1 => Algorithm::SlidingWheel,
            2 => Algorithm::TokenBucket,
            3 => Algorithm::FixedWindow,
            _ => return None,
        };
        let is_here = code & 1 == 1;
        let place = if is_here {
            Place::Process
        } else {
            Place::Store
        };
        Some((algorithm, place))
    }

    fn segment(&mut self, known: &mut ArrayVec<Segment, 16>) -> Option<Segment> {
        if let Some(place) = self.number()?.checked_sub(1) {
            return known.get(usize::try_from(place).ok()?).copied();
        }
        let kind = SegmentKind::from_code(self.byte()?)?;
        let digest = self.digest()?;
        let segment = Segment { kind, digest };
        let _ = known.try_push(segment);
        Some(segment)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limit::FIGURE_MAX;
    use crate::time::{MINUTE, SECOND};

    /// A spec that every window allows.
    fn spec(algorithm: Algorithm, window: Window) -> BucketSpec {
        BucketSpec::new(algorithm, NonZeroU32::MIN, window, None).unwrap()
    }

    fn ring(secret: u8) -> Keyring {
        Keyring::new(&[secret; 32], None).unwrap()
    }

    prop_compose! {
        fn line()(
            limit in any::<u128>(),
            id in any::<u128>(),
            kinds in proptest::collection::vec((1_u8..=9, 0_u128..4), 0..SEGMENTS_MAX),
            kind in 0_usize..4,
            amount in prop_oneof![1..=u64::from(u32::MAX), 1..=FIGURE_MAX, Just(FIGURE_MAX)],
            window in 1_u64..100 * MINUTE,
            is_month in any::<bool>(),
            cost in prop_oneof![1..=u64::from(u32::MAX), 1..=COUNT_MAX, Just(COUNT_MAX)],
            at in any::<u64>(),
            is_here in any::<bool>(),
        ) -> Line {
            let algorithm = [
                Algorithm::SlidingLog, Algorithm::SlidingWheel,
                Algorithm::TokenBucket, Algorithm::FixedWindow,
            ][kind];
            let is_month = is_month && algorithm == Algorithm::FixedWindow;
            let window = if is_month { Window::Month } else { Window::Span(window) };
            let amount = NonZeroU64::new(amount).unwrap();
            Line {
                limit: Digest(limit),
                id: Digest(id),
                segments: kinds.into_iter().map(|(kind, digest)| Segment {
                    kind: SegmentKind::from_code(kind).unwrap(),
                    digest: Digest(digest),
                }).collect(),
                // Not every window and limit make a token bucket.
                spec: BucketSpec::new(algorithm, amount, window, None)
                    .unwrap_or_else(|_| spec(algorithm, window)),
                cost,
                at: Micros(at),
                place: if is_here { Place::Process } else { Place::Store },
            }
        }
    }

    prop_compose! {
        fn receipt()(
            process in any::<u64>(),
            number in any::<u64>(),
            class in "[a-z]{0,64}",
            lines in proptest::collection::vec(line(), 1..12),
        ) -> Receipt {
            Receipt { process, number, class, lines }
        }
    }

    proptest! {
        #[test]
        fn l_give_back_a_receipt_says_what_was_sealed(receipt in receipt()) {
            let sealed = receipt.seal(&ring(1)).unwrap();
            prop_assert!(sealed.len() <= RECEIPT_BYTES_MAX);
            prop_assert_eq!(Receipt::open(&ring(1), &sealed), Ok(receipt));
        }

        #[test]
        fn l_give_back_a_changed_or_foreign_receipt_is_refused(
            receipt in receipt(),
            at in any::<prop::sample::Index>(),
            bit in 0_u8..8,
        ) {
            let mut sealed = receipt.seal(&ring(1)).unwrap();
            prop_assert_eq!(Receipt::open(&ring(2), &sealed), Err(ReceiptError));
            let at = at.index(sealed.len());
            prop_assert_eq!(Receipt::open(&ring(1), &sealed[..at]), Err(ReceiptError));
            sealed[at] ^= 1 << bit;
            prop_assert_eq!(Receipt::open(&ring(1), &sealed), Err(ReceiptError));
        }

        /// Only a holder of the secret can make the seal, but sealed bytes must still be read
        /// without a panic.
        #[test]
        fn l_give_back_no_sealed_bytes_panic(said in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = said;
            let seal = seal_of(&ring(1), &bytes);
            bytes.extend_from_slice(&seal.to_bytes());
            let _ = Receipt::open(&ring(1), &bytes);
        }
    }

    /// B-UNIT: bytes as they were written when figures had 32 bits.
    #[test]
    fn b_unit_a_receipt_of_32_bits_is_still_good() {
        let mut said = vec![VERSION, 7, 9, 4];
        said.extend(b"read");
        said.extend(1_u128.to_be_bytes());
        said.extend(2_u128.to_be_bytes());
        // A token bucket in the store: 300 a minute, a burst of 4,294,967,295.
        said.extend([4, 0xac, 0x02, 0xff, 0xff, 0xff, 0xff, 0x0f]);
        said.extend([0x80, 0x8e, 0xce, 0x1c]);
        // A cost of 5 at 7 µs, without segments.
        said.extend([5, 7, 0]);
        let seal = seal_of(&ring(1), &said).to_bytes();
        said.extend(seal);
        let [limit, burst] = [300, u32::MAX].map(|n| NonZeroU32::new(n).unwrap());
        let window = Window::Span(MINUTE);
        let spec = BucketSpec::new(Algorithm::TokenBucket, limit, window, Some(burst));
        let receipt = Receipt::open(&ring(1), &said).unwrap();
        let [line] = &*receipt.lines else {
            panic!("{receipt:?}");
        };
        assert_eq!(
            (line.spec, line.cost, line.at),
            (spec.unwrap(), 5, Micros(7))
        );
        assert_eq!(receipt.seal(&ring(1)), Some(said), "written as before, too");
    }

    #[test]
    fn l_give_back_a_receipt_of_the_secret_before_is_still_good() {
        let spec = BucketSpec::new(
            Algorithm::SlidingLog,
            NonZeroU32::new(5).unwrap(),
            Window::Span(SECOND),
            None,
        );
        let line = Line {
            limit: Digest(1),
            id: Digest(2),
            segments: ArrayVec::new(),
            spec: spec.unwrap(),
            cost: 1,
            at: Micros(7),
            place: Place::Store,
        };
        let receipt = Receipt {
            process: 1,
            number: 2,
            class: "read".to_owned(),
            lines: vec![line],
        };
        let sealed = receipt.seal(&ring(1)).unwrap();
        let rotated = Keyring::new(&[2; 32], Some(&[1; 32])).unwrap();
        assert_eq!(Receipt::open(&rotated, &sealed), Ok(receipt));
    }

    #[test]
    fn l_give_back_a_request_of_too_many_buckets_has_no_receipt() {
        let receipt = Receipt {
            process: 1,
            number: 2,
            class: String::new(),
            lines: Vec::new(),
        };
        assert_eq!(receipt.seal(&ring(1)), None);
    }
}
