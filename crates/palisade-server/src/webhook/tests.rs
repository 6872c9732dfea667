//! Signatures and secrets of webhooks.

use super::send::SendError;
use super::*;
use crate::outbound::OutboundError;

/// The example of the Standard Webhooks specification.
#[test]
fn b_warn_a_signature_is_that_of_standard_webhooks() {
    let secret = SigningSecret::parse(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    let body = br#"{"test": 2432232314}"#;
    let signature = secret.sign(id, 1_614_265_330, body);
    assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    assert_ne!(secret.sign(id, 1_614_265_331, body), signature);
    assert_ne!(secret.sign("msg_other", 1_614_265_330, body), signature);
}

#[test]
fn b_warn_a_secret_that_can_be_guessed_or_is_cut_off_is_refused() {
    assert!(SigningSecret::parse(b"too short").is_err());
    assert!(SigningSecret::parse(b"whsec_no base64 at all, is it?").is_err());
    assert!(SigningSecret::parse(b"whsec_c2hvcnQ=").is_err());
    assert!(SigningSecret::parse(&[b'a'; 24]).is_ok());
}

#[tokio::test]
async fn b_warn_a_webhook_at_a_private_address_is_not_asked() {
    let message = Message {
        id: "msg_1".to_owned(),
        unix_seconds: 0,
        body: Vec::new(),
        signature: String::new(),
    };
    for host in ["127.0.0.1", "localhost", "[::1]", "169.254.169.254"] {
        let receiver = Receiver::new(&format!("https://{host}:1/"), None, false).unwrap();
        assert_eq!(
            receiver.send(&message).await,
            Err(SendError::Private),
            "{host}"
        );
    }
    let allowed = Receiver::new("https://127.0.0.1:1/", None, true).unwrap();
    assert_eq!(
        allowed.send(&message).await,
        Err(SendError::Unanswered(OutboundError::Unreachable))
    );
}
