//! Errors of requests that cannot be turned into facts.

use palisade_core::FieldError;

/// A request that cannot be turned into facts.
///
/// Names the field and what is wrong; never carries a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtractError {
    /// A field is malformed: 400.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The forwarding chain is too long or malformed (I-XFF): 400, and audited, because it only
    /// happens behind a trusted proxy and hides the client.
    #[error(transparent)]
    Chain(FieldError),
    /// The form body is longer than the bound: 413.
    #[error("`body` is too long: at most {max} bytes are read on OAuth routes", max = super::client_id::FORM_BYTES_MAX)]
    BodyTooLong,
    /// The body is in a form that applications read differently: 415.
    #[error("`body` {0}")]
    Media(&'static str),
    /// Forwarded facts came from a peer that may not state them: 403.
    #[error("`peer` is not a trusted proxy: add its network to `trusted_proxies`")]
    UntrustedForwarder,
}

impl ExtractError {
    /// The status that an enforcing surface answers with.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Field(_) | Self::Chain(_) => 400,
            Self::BodyTooLong => 413,
            Self::Media(_) => 415,
            Self::UntrustedForwarder => 403,
        }
    }

    /// The field at fault, as the interface spells it.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match self {
            Self::Field(error) | Self::Chain(error) => error.field,
            Self::BodyTooLong | Self::Media(_) => "body",
            Self::UntrustedForwarder => "peer",
        }
    }

    /// True if the refusal is written to the audit.
    #[must_use]
    pub const fn is_audited(&self) -> bool {
        matches!(self, Self::Chain(_) | Self::UntrustedForwarder)
    }
}
