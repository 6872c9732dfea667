//! Variables with names of their own, which operators know from other products.

use crate::document::Document;
use crate::document::error::Origin;

/// The operator's kill switch.
const KILL_SWITCH: &str = "RATE_LIMIT_ENABLED";
/// The cache's time to live, in milliseconds.
const CACHE_TTL: &str = "POLICY_CACHE_TTL";

/// False if the operator has switched enforcement off.
pub(crate) fn enabled(document: &mut Document<'_>) -> bool {
    let Some(text) = document.input.env.get(KILL_SWITCH) else {
        return true;
    };
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => true,
        "false" | "0" => false,
        _ => {
            document.sink.report_with(
                &Origin::Env(KILL_SWITCH.into()),
                format!("`{KILL_SWITCH}` must be `true` or `false`"),
                "`false` switches all enforcement off",
            );
            true
        }
    }
}

/// Sets the cache's time to live from its short variable. It comes before the other variables, so
/// that the key's own variable wins.
pub(crate) fn cache_ttl(document: &mut Document<'_>) {
    if let Some(text) = document.input.env.get(CACHE_TTL) {
        let value = format!("{}ms", text.trim());
        document.set("policy.cache_ttl", &value, Origin::Env(CACHE_TTL.into()));
    }
}
