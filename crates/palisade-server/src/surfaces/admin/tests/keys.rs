//! API keys and clients as an operator meets them.

use super::*;

const KEYS: &str = "/admin/rate-limit/keys";
const CLIENTS: &str = "/admin/rate-limit/clients";

#[tokio::test]
async fn q_keys_are_made_listed_rotated_and_revoked() {
    let desk = open_desk();
    let new = json!({"name": "billing", "tier": "starter", "reason": "new customer"});
    let (status, made) = desk.send("POST", KEYS, &new).await;
    assert_eq!(status, 201, "{made}");
    let secret = made["api_key"].as_str().unwrap().to_owned();
    let key = made["registration"]["key"].as_str().unwrap().to_owned();
    assert_eq!(key, hash_api_key(&secret));
    let mut facts = request();
    facts.api_key = Some(Id::new("api_key", &secret).unwrap());
    assert_eq!(desk.allowed(&facts, 1).await, 1);

    let path = format!("{KEYS}?search=bill");
    let (_, page) = desk.send("GET", &path, &Value::Null).await;
    assert_eq!(page["keys"][0]["name"], "billing");
    assert_eq!(page["keys"][0]["origin"], "admin");
    assert!(!page.to_string().contains(&secret));

    let path = format!("{KEYS}/{key}/rotate");
    let (status, rotated) = desk
        .send("POST", &path, &json!({"overlap_seconds": 60}))
        .await;
    assert_eq!(
        (status, &rotated["registration"]["key"]),
        (200, &json!(key)),
        "{rotated}"
    );
    assert!(rotated["registration"]["overlap_until"].is_string());
    let wrong = json!({"overlap_seconds": 2_592_001});
    let (status, body) = desk.send("POST", &path, &wrong).await;
    assert_eq!(status, 400);
    assert!(body["details"]["overlap_seconds"].is_string());

    let path = format!("{KEYS}/{key}/revoke");
    assert_eq!(desk.send("POST", &path, &json!({})).await.0, 400);
    let (status, body) = desk.send("POST", &path, &json!({"reason": "leaked"})).await;
    assert_eq!((status, &body["revoked"]), (200, &json!(true)));
    assert_eq!(desk.allowed(&facts, 1).await, 0);
    assert_eq!(
        desk.send("POST", &path, &json!({"reason": "x"})).await.0,
        404
    );

    let events = desk.events();
    let names: Vec<_> = events.iter().map(|e| e["event"].clone()).collect();
    for expected in ["api_key_created", "api_key_rotated", "api_key_revoked"] {
        assert!(names.contains(&json!(expected)), "{names:?}");
    }
    let told = format!("{events:?}");
    let replacement = rotated["api_key"].as_str().unwrap();
    assert!(!told.contains(&secret) && !told.contains(replacement));
}

#[tokio::test]
async fn q_keys_refusals_name_the_field_and_repeat_nothing() {
    let desk = open_desk();
    let cases = [
        ("name", json!({"tier": "starter"})),
        ("name", json!({"name": "canary\u{7}", "tier": "starter"})),
        ("tier", json!({"name": "a", "tier": "canary"})),
        (
            "scopes",
            json!({"name": "a", "tier": "starter", "scopes": "canary"}),
        ),
        (
            "scopes",
            json!({"name": "a", "tier": "starter", "scopes": ["can ary"]}),
        ),
        (
            "body",
            json!({"name": "a", "tier": "starter", "api_key": "canary"}),
        ),
    ];
    for (field, body) in cases {
        let (status, answer) = desk.send("POST", KEYS, &body).await;
        assert_eq!(status, 400, "{body}");
        assert!(answer["details"][field].is_string(), "{body}: {answer}");
        assert!(!answer.to_string().contains("canary"), "{answer}");
    }
    let path = format!("{KEYS}/pal_canary/revoke");
    let (status, answer) = desk.send("POST", &path, &json!({"reason": "x"})).await;
    assert_eq!(status, 400);
    assert!(!answer.to_string().contains("canary"), "{answer}");
    let path = format!("{KEYS}?search={}", "x".repeat(101));
    assert_eq!(desk.send("GET", &path, &Value::Null).await.0, 400);
}

#[tokio::test]
async fn q_keys_clients_are_added_listed_and_removed() {
    let desk = open_desk();
    let new = json!({"id": "mobile", "type": "confidential"});
    let (status, added) = desk.send("POST", CLIENTS, &new).await;
    assert_eq!(
        (status, &added["origin"]),
        (200, &json!("admin")),
        "{added}"
    );
    let (_, page) = desk.send("GET", CLIENTS, &Value::Null).await;
    let listed = page["clients"].as_array().unwrap();
    assert!(
        listed
            .iter()
            .any(|one| one["id"] == "mobile" && one["in_force"] == true)
    );
    let wrong = json!({"id": "mobile", "type": "canary"});
    let (status, body) = desk.send("POST", CLIENTS, &wrong).await;
    assert_eq!(status, 400);
    assert!(body["details"]["type"].is_string() && !body.to_string().contains("canary"));
    let old = json!({"id": "mobile"});
    assert_eq!(desk.send("DELETE", CLIENTS, &old).await.0, 200);
    assert_eq!(desk.send("DELETE", CLIENTS, &old).await.0, 404);
}
