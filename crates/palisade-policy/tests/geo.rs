//! Databases of countries and networks: read, refused, and replaced while they are asked.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking and says why"
)]

#[path = "common/mmdb.rs"]
mod mmdb;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mmdb::Mmdb;
use palisade_core::RequestFacts;
use palisade_core::geo::{Asn, Geo};
use palisade_policy::geo::{Content, DatabaseError, GeoFile, Refresh};
use palisade_policy::{
    ConfigErrors, Env, FileSource, Overrides, PolicyBundle, PolicyLoader, PolicySource, Reload,
};

const COUNTRIES: [(&str, &str); 4] = [
    ("203.0.113.0/24", "ES"),
    ("203.0.113.128/25", "FR"),
    ("198.51.100.0/24", "KP"),
    ("2001:db8::/32", "DE"),
];
const NETWORKS: [(&str, u32); 2] = [("203.0.113.0/24", 64496), ("2001:db8::/32", 64500)];
const PLACES: &str = "[places]\ncountry = \"country.mmdb\"\nnetwork = \"asn.mmdb\"\n";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new(policy: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.put("country.mmdb", &Mmdb::of_countries(&COUNTRIES));
        folder.put("asn.mmdb", &Mmdb::of_networks(&NETWORKS));
        folder.put("policy.toml", policy.as_bytes());
        folder
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// Replaces a file by renaming, as updaters do.
    fn put(&self, name: &str, bytes: &[u8]) {
        let next = self.path("next");
        std::fs::write(&next, bytes).unwrap();
        std::fs::rename(next, self.path(name)).unwrap();
    }

    fn load(&self) -> Result<PolicyBundle, ConfigErrors> {
        let path = self.path("policy.toml");
        palisade_policy::load(Some(&path), &Env::default(), &Overrides::default())
    }

    fn open(&self) -> Arc<FileSource> {
        let path = self.path("policy.toml");
        Arc::new(FileSource::open(&path, PolicyLoader::default()).unwrap())
    }
}

fn geo(bundle: &PolicyBundle, ip: &str) -> Geo {
    let ip: IpAddr = ip.parse().unwrap();
    bundle.policy.geo_of(&RequestFacts::new(ip, "GET", "/"))
}

fn country(bundle: &PolicyBundle, ip: &str) -> String {
    let country = geo(bundle, ip).country;
    country.map_or_else(|| "unknown".to_owned(), |country| country.to_string())
}

#[test]
fn p_by_addresses_of_every_form_are_found_and_others_are_unknown() {
    let bundle = Folder::new(PLACES).load().unwrap();
    for (ip, known) in [
        ("203.0.113.5", "ES"),
        ("203.0.113.200", "FR"),
        ("::ffff:203.0.113.5", "ES"),
        ("2001:db8:1::7", "DE"),
        ("192.0.2.1", "unknown"),
        ("2001:db9::1", "unknown"),
        ("::1", "unknown"),
    ] {
        assert_eq!(country(&bundle, ip), known, "{ip}");
    }
    assert_eq!(geo(&bundle, "203.0.113.200").asn, Asn::new(64496));
    assert_eq!(geo(&bundle, "2001:db8::1").asn, Asn::new(64500));
    assert_eq!(geo(&bundle, "198.51.100.1").asn, None);
}

#[test]
fn p_by_a_file_that_cannot_be_used_is_an_error_of_the_policy() {
    let folder = Folder::new(PLACES);
    let refused = |name: &str, bytes: &[u8]| {
        let before = std::fs::read(folder.path(name)).unwrap();
        folder.put(name, bytes);
        let errors = folder.load().unwrap_err().to_string();
        folder.put(name, &before);
        errors
    };
    let damaged = refused("country.mmdb", b"canary");
    let whole = "`places.country` cannot be used: the file is no whole database";
    assert!(damaged.contains(whole), "{damaged}");
    assert!(damaged.contains("policy.toml:2:"), "{damaged}");
    assert!(!damaged.contains("canary"), "{damaged}");
    let swapped = refused("asn.mmdb", &Mmdb::of_countries(&COUNTRIES));
    assert!(
        swapped.contains("has no network of any address"),
        "{swapped}"
    );
    std::fs::remove_file(folder.path("asn.mmdb")).unwrap();
    let missing = folder.load().unwrap_err().to_string();
    assert!(
        missing.contains("`places.network` cannot be used"),
        "{missing}"
    );
}

/// Every prefix of a database, and a changed bit in every byte of it.
#[test]
fn p_by_no_damage_of_a_file_panics_and_the_old_one_stays() {
    let folder = Folder::new(PLACES);
    let (path, whole) = (folder.path("country.mmdb"), Mmdb::of_countries(&COUNTRIES));
    let cut = (0..whole.len()).map(|length| whole[..length].to_vec());
    let flipped = (0..whole.len()).flat_map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        [bytes]
    });
    let (mut refused, mut taken) = (0, 0);
    for bytes in cut.chain(flipped) {
        std::fs::write(&path, &bytes).unwrap();
        match GeoFile::open(&path, Content::Country) {
            Err(_) => refused += 1,
            // A changed letter makes another database, and not a damaged one.
            Ok(_) => {
                let bundle = folder.load().unwrap();
                for ip in ["203.0.113.5", "203.0.113.200", "2001:db8::1", "::1"] {
                    let _ = country(&bundle, ip);
                }
                taken += 1;
            }
        }
    }
    assert!(refused > whole.len(), "{refused} refused, {taken} taken");

    folder.put("country.mmdb", &whole);
    let file = GeoFile::open(&path, Content::Country).unwrap();
    for length in [0, 1, whole.len() / 2, whole.len() - 1] {
        folder.put("country.mmdb", &whole[..length]);
        assert_eq!(file.refresh(), Refresh::Refused(DatabaseError::Damaged));
        assert_eq!(file.refresh(), Refresh::Unchanged, "refused once");
    }
    let state = file.state();
    assert_eq!((state.refused, state.error), (4, Some("damaged")));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(
        file.refresh(),
        Refresh::Refused(DatabaseError::Unreadable(_))
    ));
    folder.put("country.mmdb", &whole);
    assert_eq!(file.refresh(), Refresh::Replaced);
    let state = file.state();
    assert_eq!((state.replaced, state.refused, state.error), (1, 5, None));
}

#[test]
fn p_by_a_new_policy_beside_a_damaged_database_is_taken_over_with_the_old_one() {
    let folder = Folder::new(PLACES);
    let source = folder.open();
    folder.put("country.mmdb", b"half a");
    let limit = "[[limit]]\nname = \"kp\"\nby = [\"ip\"]\ncountry = [\"KP\"]\nrate = \"5/min\"\n";
    folder.put("policy.toml", format!("{PLACES}{limit}").as_bytes());
    let replaced = source.reload().unwrap();
    assert!(matches!(replaced, Reload::Replaced { revision: 2, .. }));
    let bundle = source.current();
    assert!(bundle.policy.limit("kp").is_some());
    assert_eq!(country(&bundle, "203.0.113.5"), "ES");
    assert_eq!(bundle.policy.geo_databases()[0].error, Some("damaged"));
}

#[tokio::test]
async fn p_by_a_database_is_replaced_while_requests_ask_it() {
    let folder = Folder::new(PLACES);
    let source = folder.open();
    let _watch = source.watch(Duration::from_millis(50)).unwrap();
    let (bundle, stop) = (source.current(), Arc::new(AtomicBool::new(false)));
    let asking = {
        let (bundle, stop) = (Arc::clone(&bundle), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut seen = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let country = country(&bundle, "203.0.113.5");
                if seen.last() != Some(&country) {
                    seen.push(country);
                }
            }
            seen
        })
    };
    let mut expected = vec!["ES".to_owned()];
    for code in ["PT", "IT", "GR"] {
        folder.put("country.mmdb", b"being written");
        folder.put(
            "country.mmdb",
            &Mmdb::of_countries(&[("203.0.113.0/24", code)]),
        );
        expected.push(code.to_owned());
        let new = || country(&bundle, "203.0.113.5") == code;
        for _ in 0..200 {
            if new() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        assert!(new(), "{code} was not taken over");
    }
    stop.store(true, Ordering::Relaxed);
    assert_eq!(asking.join().unwrap(), expected, "never unknown meanwhile");
}

#[tokio::test(start_paused = true)]
async fn p_by_a_process_without_a_policy_file_to_follow_looks_every_five_seconds() {
    let folder = Folder::new(PLACES);
    let bundle = folder.load().unwrap();
    let following = tokio::spawn(palisade_policy::geo::follow(bundle.geo.files.clone()));
    folder.put(
        "country.mmdb",
        &Mmdb::of_countries(&[("203.0.113.0/24", "PT")]),
    );
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(country(&bundle, "203.0.113.5"), "ES");
    // The file is read on another thread, which virtual time does not wait for.
    while country(&bundle, "203.0.113.5") != "PT" {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    following.abort();
}

/// Errors and warnings of a policy, one a line.
fn found(text: &str) -> String {
    let folder = Folder::new(text);
    folder.put("hosting.txt", b"AS64496\n");
    let path = folder.path("policy.toml");
    let (env, flags) = (Env::default(), Overrides::default());
    let tables: Vec<_> = palisade_policy::schemas().collect();
    let input = palisade_policy::document::Input {
        path: Some(Path::new(&path)),
        text,
        env: &env,
        flags: &flags,
        geo: &[],
    };
    let mut document = palisade_policy::open(input, &tables).unwrap();
    let bundle = document.policy(1, Default::default(), Default::default());
    match document.finish_with_warnings(bundle) {
        Ok((_, warnings)) => {
            let all = warnings.iter().map(|one| one.message.clone());
            all.collect::<Vec<_>>().join("\n")
        }
        Err(errors) => errors.to_string(),
    }
}

fn limit(keys: &str) -> String {
    format!("{PLACES}[[limit]]\nname = \"x\"\nrate = \"5/min\"\n{keys}\n")
}

#[test]
fn p_by_unknown_spellings_and_conditions_without_meaning_are_refused() {
    for (keys, message) in [
        ("by = [\"county\"]", "did you mean `country`?"),
        ("by = [\"ip\"]\ncountry = [\"UK\"]", "did you mean `GB`?"),
        ("by = [\"ip\"]\ncountry = [\"kp\"]", "did you mean `KP`?"),
        (
            "by = [\"ip\"]\ncountry = [\"Korea\"]",
            "country code of ISO 3166",
        ),
        (
            "by = [\"ip\"]\ncountry = []",
            "`limit.country` must not be empty",
        ),
        (
            "by = [\"ip\"]\nasn = [0]",
            "must be the number of a network",
        ),
        (
            "by = [\"ip\"]\nnetwork_kind = \"hosted\"",
            "did you mean `hosting`?",
        ),
        (
            "by = [\"ip\"]\nnetwork_kind = \"hosting\"",
            "`limit.network_kind` needs a list of networks",
        ),
        (
            "by = [\"ip\"]\ncountry = [\"ES\"]\nnot_country = [\"FR\"]",
            "exclude each other",
        ),
        (
            "by = []\nthrottle = true\ncountry = [\"ES\"]",
            "`limit.country` never applies to the global throttle",
        ),
        (
            "domain = \"d\"\ndescriptor = [{ key = \"k\" }]\nasn = [1]",
            "`limit.asn` never applies to an Envoy domain",
        ),
    ] {
        let said = found(&limit(keys));
        assert!(said.contains(message), "{keys}: {said}");
    }
    let route = |key: &str| {
        format!("{PLACES}[[route]]\npath = \"/x\"\nclass = \"read\"\ncountry = [\"KP\"]\n{key}\n")
    };
    for key in ["scope = \"s\"", "api_key = true"] {
        let said = found(&route(key));
        assert!(said.contains("does not go with `route.country`"), "{said}");
    }
}

#[test]
fn p_by_a_bucket_of_a_whole_country_and_a_missing_source_are_warned_of() {
    for (keys, message) in [
        ("by = [\"country\"]", "one bucket for a whole country"),
        (
            "by = [\"asn\", \"endpoint\"]",
            "one bucket for a whole country",
        ),
    ] {
        let said = found(&limit(keys));
        assert!(said.contains(message), "{keys}: {said}");
    }
    for keys in [
        "by = [\"country\", \"ip\"]",
        "by = [\"ip\"]\ncountry = [\"KP\", \"unknown\"]",
        "by = [\"ip\"]\nasn = [64496, \"unknown\", \"AS1\"]",
    ] {
        assert_eq!(found(&limit(keys)), "", "{keys}");
    }
    let hosting = PLACES.to_owned() + "hosting = \"hosting.txt\"\n";
    let kind = limit("by = [\"ip\"]\nnetwork_kind = \"hosting\"").replace(PLACES, &hosting);
    assert_eq!(found(&kind), "");
    let alone = |keys: &str| found(&limit(keys).replace(PLACES, ""));
    for (keys, message) in [
        ("by = [\"asn\", \"ip\"]", "counts without a source"),
        (
            "by = [\"ip\"]\nnot_country = [\"KP\"]",
            "without a source of country facts",
        ),
    ] {
        assert!(alone(keys).contains(message), "{keys}: {}", alone(keys));
    }
    let header = limit("by = [\"ip\"]\ncountry = [\"KP\"]")
        .replace(PLACES, "[places]\ncountry_header = \"CF-IPCountry\"\n");
    assert_eq!(found(&header), "");
}

#[test]
fn p_guard_a_policy_with_new_countries_is_told_what_they_cost() {
    let on = "[guard.login]\nnew_country = \"challenge\"\n";
    let said = found(&format!("{PLACES}{on}"));
    assert!(
        said.contains("alike in distribution only (A-UNIFORM)"),
        "{said}"
    );
    assert!(!said.contains("no source"), "{said}");
    assert!(found(on).contains("has no source of countries"));
    let otp = found("[guard.otp]\nnew_country = \"challenge\"\n");
    assert!(otp.contains("new_country"), "only logins have it: {otp}");
}

#[test]
fn p_by_the_policies_of_the_page_are_valid() {
    let page = include_str!("../../../docs/places.md");
    let blocks: Vec<&str> = page.split("```toml\n").skip(1).collect();
    assert_eq!(blocks.len(), 4);
    for block in blocks {
        let policy = block.split("```").next().unwrap();
        let folder = Folder::new(policy);
        folder.put("GeoLite2-Country.mmdb", &Mmdb::of_countries(&COUNTRIES));
        folder.put("GeoLite2-ASN.mmdb", &Mmdb::of_networks(&NETWORKS));
        folder.put("hosting.txt", b"AS64496 # the only one\n");
        let bundle = folder
            .load()
            .unwrap_or_else(|errors| panic!("{policy}: {errors}"));
        let classes = bundle
            .policy
            .limits()
            .iter()
            .flat_map(|one| &one.def.classes);
        assert!(classes.count() > 0);
    }
}
