//! The state of attacks as an operator sets it.

use super::*;

const ATTACK: &str = "/admin/attack";

#[tokio::test]
async fn ad_attack_is_set_for_a_class_or_for_all_and_shown() {
    let desk = open_desk();
    let (status, shown) = desk.send("GET", ATTACK, &Value::Null).await;
    assert_eq!(status, 200);
    let nothing = json!({"watched": false, "tightened": [], "attacks": [], "set": []});
    assert_eq!(shown, nothing);
    let on = json!({"mode": "on", "class": "auth", "reason": "drill"});
    let (status, shown) = desk.send("PUT", ATTACK, &on).await;
    assert_eq!(
        (status, &shown["set"]),
        (
            200,
            &json!([{"class": "auth", "mode": "on", "reason": "drill"}])
        )
    );
    let (_, shown) = desk.send("PUT", ATTACK, &json!({"mode": "off"})).await;
    assert_eq!(shown["set"][0], json!({"class": "*", "mode": "off"}));
    let auto = json!({"mode": "auto", "class": "auth"});
    let (_, shown) = desk.send("PUT", ATTACK, &auto).await;
    assert_eq!(shown["set"], json!([{"class": "*", "mode": "off"}]));
}

#[tokio::test]
async fn ad_attack_a_mode_that_is_none_is_named_and_not_repeated() {
    let desk = open_desk();
    for body in [json!({}), json!({"mode": "canary"}), json!({"mode": 1})] {
        let (status, refused) = desk.send("PUT", ATTACK, &body).await;
        assert_eq!(status, 400);
        assert!(refused["details"]["mode"].is_string(), "{refused}");
        assert!(!refused.to_string().contains("canary"), "{refused}");
    }
    let long = json!({"mode": "on", "class": "c".repeat(101)});
    assert_eq!(desk.send("PUT", ATTACK, &long).await.0, 400);
}
