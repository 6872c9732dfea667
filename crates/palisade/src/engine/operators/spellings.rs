//! Spellings under which a person's records may be stored.
//!
//! The proxy and the tower layer fold a name before they use it as the account, and the lockout
//! folds every name (A-SHARED). A host that calls the API has account ids of its own, which are
//! kept as they are. A typed name may be either, so both spellings are looked up.

use palisade_core::key::Domain;
use palisade_core::record::{Flow, RecordKey, RecordKind};
use palisade_core::{Id, Keyring};
use serde::Serialize;

use crate::extract::login::counted;

/// One spelling of an account that was looked up, as a digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = LookedUp))]
pub struct LookedUp {
    /// `typed` for the name as given, `folded` for the normalised name that the proxy and the
    /// lockout count.
    pub spelling: &'static str,
    /// Digest of the account, which is the `id` of its blocks.
    pub id: String,
}

/// The account as typed and, if that differs, as the proxy counts it.
pub(super) fn of_account(account: &Id) -> impl Iterator<Item = (&'static str, Id)> + use<> {
    let folded = counted(account.as_str()).ok();
    let folded = folded.filter(|folded| folded != account);
    let typed = ("typed", account.clone());
    std::iter::once(typed).chain(folded.map(|folded| ("folded", folded)))
}

/// The records of an account in login and OTP under each spelling.
pub(super) fn account_records(keyring: &Keyring, account: &Id) -> Vec<RecordKey> {
    let flows = [Flow::Login, Flow::Otp].map(RecordKind::Account);
    let mut records = Vec::new();
    for (_, spelt) in of_account(account) {
        let digest = keyring.hmac(Domain::Account, &[spelt.as_bytes()]);
        for kind in flows {
            let digests = std::iter::once(digest.current).chain(digest.previous);
            records.extend(digests.map(|digest| RecordKey { kind, digest }));
        }
    }
    records
}

/// The spellings that were looked up, in the form of an answer.
pub(super) fn looked_up(keyring: &Keyring, account: Option<&Id>) -> Vec<LookedUp> {
    let spelt = account.into_iter().flat_map(of_account);
    spelt
        .map(|(spelling, id)| {
            let digest = keyring.hmac(Domain::Account, &[id.as_bytes()]).current;
            LookedUp {
                spelling,
                id: digest.hex(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n2_an_account_is_sought_as_typed_and_as_counted_and_once_where_both_are_one() {
        let of = |text: &str| -> Vec<String> {
            let spelt = of_account(&Id::new("account", text).unwrap());
            spelt.map(|(_, id)| id.as_str().to_owned()).collect()
        };
        assert_eq!(of("Ànn@X.example "), ["Ànn@X.example ", "ann@x.example"]);
        assert_eq!(of("ann@x.example"), ["ann@x.example"]);
        assert_eq!(of("\u{ad}"), ["\u{ad}"], "nothing is left of it");
    }
}
