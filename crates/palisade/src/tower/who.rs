//! The identity of a request's caller, as the application's own authentication found it.

use palisade_core::facts::{ClientFacts, ClientType};
use palisade_core::{FieldError, Id, RequestFacts};

/// The authenticated caller. Put it into a request's extensions before
/// [`IdentityLayer`](super::IdentityLayer): it overrides every identity that the request itself
/// states.
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
    /// Sets the organisation.
    ///
    /// # Errors
    /// Empty, too long, or with control characters. The same holds for all other setters.
    pub fn org(mut self, org: &str) -> Result<Self, FieldError> {
        self.org = Some(Id::new("org", org)?);
        Ok(self)
    }

    /// Sets the user.
    ///
    /// # Errors
    /// As [`Who::org`].
    pub fn user(mut self, user: &str) -> Result<Self, FieldError> {
        self.user = Some(Id::new("user", user)?);
        Ok(self)
    }

    /// Sets the id of the caller's token.
    ///
    /// # Errors
    /// As [`Who::org`].
    pub fn token(mut self, token: &str) -> Result<Self, FieldError> {
        self.token = Some(Id::new("token", token)?);
        Ok(self)
    }

    /// Sets the scopes of the token (T-SCOPE).
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

    /// Sets the OAuth client.
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
