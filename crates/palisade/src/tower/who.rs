//! Who a request is from, as the application's own authentication found it.

use palisade_core::facts::{ClientFacts, ClientType};
use palisade_core::{FieldError, Id, RequestFacts};

/// Who was authenticated. Put it among a request's extensions before
/// [`IdentityLayer`](super::IdentityLayer): what it says counts, over everything that the
/// request says itself.
///
/// ```
/// use palisade::tower::Who;
///
/// let who = Who::default().org("acme")?.user("ann")?;
/// assert_ne!(who, Who::default());
/// assert!(Who::default().user("").is_err());
/// # Ok::<(), palisade::core::FieldError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    org: Option<Id>,
    user: Option<Id>,
    token: Option<Id>,
    scopes: Option<Vec<Id>>,
    client: Option<ClientFacts>,
}

impl Who {
    /// Its organisation.
    ///
    /// # Errors
    /// Empty, too long, or with control characters; so for all.
    pub fn org(mut self, org: &str) -> Result<Self, FieldError> {
        self.org = Some(Id::new("org", org)?);
        Ok(self)
    }

    /// The user.
    ///
    /// # Errors
    /// As [`Who::org`].
    pub fn user(mut self, user: &str) -> Result<Self, FieldError> {
        self.user = Some(Id::new("user", user)?);
        Ok(self)
    }

    /// The id of its token.
    ///
    /// # Errors
    /// As [`Who::org`].
    pub fn token(mut self, token: &str) -> Result<Self, FieldError> {
        self.token = Some(Id::new("token", token)?);
        Ok(self)
    }

    /// What the token may do (T-SCOPE).
    ///
    /// # Errors
    /// As [`Who::org`].
    pub fn scopes<'s>(
        mut self,
        scopes: impl IntoIterator<Item = &'s str>,
    ) -> Result<Self, FieldError> {
        let scopes = scopes.into_iter().map(|scope| Id::new("scopes", scope));
        self.scopes = Some(scopes.collect::<Result<_, _>>()?);
        Ok(self)
    }

    /// The OAuth client.
    ///
    /// # Errors
    /// As [`Who::org`].
    pub fn client(mut self, id: &str, kind: Option<ClientType>) -> Result<Self, FieldError> {
        let id = Id::new("client", id)?;
        self.client = Some(ClientFacts { id, kind });
        Ok(self)
    }

    pub(super) fn tell(self, facts: &mut RequestFacts) {
        facts.org = self.org.or(facts.org.take());
        facts.user = self.user.or(facts.user.take());
        facts.token = self.token.or(facts.token.take());
        facts.scopes = self.scopes.or(facts.scopes.take());
        facts.client = self.client.or(facts.client.take());
    }
}
