//! The place of a request in progress, while the application is asked (AD-LOAD).

use http::{Request, Response};
use palisade::engine::LoadPermit;

use super::body::Outgoing;
use super::kept::Arriving;
use super::upstream::Link;
use crate::surfaces::exchange::ids::RequestId;
use crate::surfaces::exchange::problem::Problem;

/// Asks the application, and gives the place back at the head of its answer. A body or a tunnel that
/// follows holds none: how long it lasts is no sign of load.
pub(super) async fn ask(
    link: &Link,
    request: Request<Outgoing>,
    upgrades: bool,
    place: Option<LoadPermit>,
    id: &RequestId,
) -> Result<Response<Arriving>, Problem> {
    let Some(mut place) = place else {
        return link.ask(request, upgrades, id).await;
    };
    place.begin();
    if request.body().upload().is_some() {
        place.unmeasured();
    }
    let response = link.ask(request, upgrades, id).await?;
    place.answered(response.status().is_server_error());
    Ok(response)
}
