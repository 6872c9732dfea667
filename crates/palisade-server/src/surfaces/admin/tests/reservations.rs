//! Reservations as an operator meets them.

use palisade::engine::Hold;
use palisade_core::budget::Costs;

use super::*;

const RESERVATIONS: &str = "/admin/reservations";

impl Desk {
    /// Reserves one request of an organisation and returns the token that its holder got.
    async fn reserve(&self, org: &str) -> Option<String> {
        let mut facts = request();
        facts.org = Id::new("org", org).ok();
        let hold = Hold::default();
        let reserved = self.operations.engine.reserve(&facts, hold).await.unwrap();
        reserved.held.map(|held| held.token.into())
    }

    async fn reservations(&self) -> Value {
        let (status, listing) = self.send("GET", RESERVATIONS, &Value::Null).await;
        assert_eq!(status, 200, "{listing}");
        listing
    }
}

fn release_of(listed: &Value) -> String {
    format!("{RESERVATIONS}/{}/release", listed["id"].as_str().unwrap())
}

#[tokio::test]
async fn b_fail_reservations_are_listed_by_digest_the_oldest_first() {
    let desk = open_desk();
    assert_eq!(
        desk.reservations().await,
        json!({"reservations": [], "total": 0})
    );
    let first = desk.reserve("canary-1").await.unwrap();
    desk.clock.advance(10 * SECOND);
    desk.reserve("canary-2").await.unwrap();

    let listing = desk.reservations().await;
    assert_eq!(listing["total"], 2);
    let listed = listing["reservations"].as_array().unwrap();
    assert_eq!(listed[0]["since"], "2026-01-01T00:00:00.000Z");
    assert_eq!(listed[0]["expires_at"], "2026-01-01T00:01:00.000Z");
    assert_eq!(listed[0]["expires_in"], 50);
    assert_eq!(listed[1]["since"], "2026-01-01T00:00:10.000Z");
    assert_eq!(listed[0]["reserved"], json!({"requests": 1}));
    assert_eq!(listed[0]["limits"][1]["name"], "org");
    assert_eq!(listed[0]["limits"][1]["amount"], 1);
    let subject = listed[0]["limits"][1]["subject"].as_str().unwrap();
    assert!(
        subject.starts_with("org:") && subject.len() == 36,
        "{subject}"
    );
    assert!(!listing.to_string().contains("canary"), "{listing}");
    let (_, one) = desk
        .send("GET", "/admin/reservations?limit=1", &Value::Null)
        .await;
    assert_eq!(one["reservations"].as_array().unwrap().len(), 1);
    assert_eq!(one["total"], 2);

    // What was settled or has ended is not held.
    let used = Costs::new([("requests", 1)]).unwrap();
    desk.operations.engine.settle(&first, &used).await.unwrap();
    let listing = desk.reservations().await;
    assert_eq!(
        (&listing["total"], &listing["reservations"][0]["expires_in"]),
        (&json!(1), &json!(60))
    );
    desk.clock.advance(60 * SECOND);
    assert_eq!(desk.reservations().await["total"], 0);
}

#[tokio::test]
async fn b_fail_a_reservation_is_released_by_its_id_and_that_is_audited() {
    let desk = open_desk();
    desk.reserve("canary").await.unwrap();
    desk.clock.advance(SECOND);
    let token = desk.reserve("canary").await.unwrap();
    assert_eq!(desk.reserve("canary").await, None, "two a minute");

    let held = desk.reservations().await["reservations"][1].clone();
    let release = release_of(&held);
    let (status, body) = desk.send("POST", &release, &json!({})).await;
    assert_eq!(
        (status, &body["details"]["reason"]),
        (400, &json!("is required"))
    );
    let reason = json!({"reason": "the job was cancelled"});
    let (status, body) = desk.send("POST", &release, &reason).await;
    assert_eq!(
        (status, body),
        (200, json!({"recorded": true, "released": {"requests": 1}}))
    );
    assert!(desk.reserve("canary").await.is_some(), "its place is free");

    // Its holder finds it settled, and nobody releases it twice.
    let engine = &desk.operations.engine;
    let used = Costs::new([("requests", 1)]).unwrap();
    let settled = engine.settle(&token, &used).await.unwrap();
    assert_eq!(settled.units[0].used, 0);
    let (status, _) = desk.send("POST", &release, &reason).await;
    assert_eq!(status, 404);

    let event = desk.events().pop().unwrap();
    assert_eq!(event["event"], "reservation_released");
    assert_eq!(event["subject"], held["id"]);
    assert_eq!(event["reason"], "the job was cancelled");
}

#[tokio::test]
async fn b_fail_wrong_requests_about_reservations_name_the_field_and_repeat_nothing() {
    let desk = open_desk();
    for path in ["?limit=0", "?limit=1001", "?limit=canary"] {
        let (status, body) = desk
            .send("GET", &format!("{RESERVATIONS}{path}"), &Value::Null)
            .await;
        assert_eq!(
            (status, &body["details"]["limit"]),
            (400, &json!("must be 1 to 1000"))
        );
    }
    let reason = json!({"reason": "why"});
    let path = format!("{RESERVATIONS}/canary/release");
    let (status, body) = desk.send("POST", &path, &reason).await;
    assert_eq!(
        (status, &body["details"]["id"]),
        (400, &json!("must be 32 hexadecimal digits"))
    );
    let path = format!("{RESERVATIONS}/{}/release", "0".repeat(32));
    let (status, _) = desk.send("POST", &path, &reason).await;
    assert_eq!(status, 404);
}
