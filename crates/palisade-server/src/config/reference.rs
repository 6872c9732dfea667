//! The introduction of the configuration's reference page.

pub(crate) const INTRODUCTION: &str = "\
# Configuration

<!-- Generated from the declarations (`section!`) in crates/palisade-policy/src/policy and
     crates/palisade-server/src/config. Do not edit:
     UPDATE=1 cargo test -p palisade-server --lib reference -->

One TOML file, every key of which can also be set by the environment. Flags win over the
environment, the environment over the file, the file over the embedded default policy.

- `PALISADE_SERVER__LISTEN` is `listen` in `[server]`: two underscores between the parts.
- `PALISADE_LIMIT__IP_AUTH__RATE` is `rate` of the `[[limit]]` named `ip-auth`: everything but
  letters and digits becomes an underscore. A route is named by method and path:
  `PALISADE_ROUTE__POST_VC_ISSUE__CLASS`. Lists are separated by commas.
- `RATE_LIMIT_ENABLED=false` switches all enforcement off.
- `POLICY_CACHE_TTL` is `cache_ttl` in `[policy]`, in milliseconds.

A duration is a number and a unit: `ms`, `s`, `min`, `h`, `day`, `week`. A rate is `N/window`, where the
window is a unit, a number and a unit (`5/15min`), or `month` or `year` of the calendar, in UTC.
Underscores may group digits: `1_000_000/day`.

An unknown key, a duplicate name or a limit that can never match is an error; `palisade check`
shows all of them at once. The constants of the guard's own breaker and of its degraded mode are
fixed and have no key.

With `defaults = true` a `[[limit]]`, `[[class]]`, `[[tier]]` or `[[route]]` (same path, method and host)
of the file replaces the one of the embedded policy as a whole.
";
