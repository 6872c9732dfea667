//! Attacks as nodes share them, and what operators set: a registry that every node copies.
//!
//! A node declares an attack by its own counts, and renews its entry for as long as the attack is
//! on. The entries of nodes that are gone expire.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use palisade_core::time::{MINUTE, Micros, SECOND};
use palisade_store::{Entry, Registry, StoreError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::super::operators::{Admin, AdminError};
use super::super::{Change, Engine};
use super::attacks::{AttackView, LOGINS};

/// Most classes for which operators can set the state.
pub const ATTACK_CLASSES_MAX: usize = 1_000;
/// Start of the entries' ids: attacks that nodes declared, and what operators set.
const DECLARED: &str = "auto:";
const SET: &str = "set:";
/// Name that stands for every class.
const EVERY_CLASS: &str = "*";
/// Longest name of a class, so that an id stays below the store's bound.
const CLASS_BYTES_MAX: usize = 100;
/// Time after which a declared attack is forgotten if its node does not renew it.
const FORGOTTEN_AFTER: u64 = MINUTE;
const RENEWED_AFTER: u64 = 20 * SECOND;
/// Time for which this node goes on with another's attack while the store does not answer.
const HEARD_FOR: u64 = FORGOTTEN_AFTER;

/// State that an operator has set for a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttackMode {
    /// An attack is on until an operator ends it.
    On,
    /// No attack is on, whatever is counted.
    Off,
    /// Attacks are declared and ended by what is counted.
    #[default]
    Auto,
}

impl AttackMode {
    /// Name in answers, on the command line and in audit events.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Auto => "auto",
        }
    }
}

/// The state that an operator has set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttackSetting {
    /// The class, `logins`, or `*` for all.
    pub class: String,
    /// `on` or `off`.
    pub mode: AttackMode,
    /// The operator's reason, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// State of attacks on all classes, as this node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttackReport {
    /// Whether some limit of the policy is tightened by attacks.
    pub watched: bool,
    /// Classes whose limits are tightened now, by counts or by an operator.
    pub tightened: Vec<String>,
    /// Attacks that nodes have declared.
    pub attacks: Vec<AttackView>,
    /// States that operators have set.
    pub set: Vec<AttackSetting>,
}

/// This node's copy of the registry.
#[derive(Default)]
pub(in crate::engine) struct SharedAttacks {
    settings: ArcSwap<Vec<AttackSetting>>,
    declared: ArcSwap<Vec<AttackView>>,
    /// Attacks of this node that are in the registry, and when they were last renewed.
    published: Mutex<HashMap<Arc<str>, Micros>>,
}

impl SharedAttacks {
    /// Whether an operator has set that an attack on a class is on or off: for the class itself,
    /// else for logins if it is one of authentication, else for all.
    pub(super) fn setting(&self, class: &str, is_auth: bool) -> Option<bool> {
        let settings = self.settings.load();
        if settings.is_empty() {
            return None;
        }
        let of = |name: &str| settings.iter().find(|one| one.class == name);
        let of_logins = || is_auth.then(|| of(LOGINS))?;
        let found = of(class).or_else(of_logins).or_else(|| of(EVERY_CLASS))?;
        match found.mode {
            AttackMode::On => Some(true),
            AttackMode::Off => Some(false),
            AttackMode::Auto => None,
        }
    }
}

impl Engine {
    /// Shares the attacks that this node has declared. To be called twice a second.
    ///
    /// # Errors
    /// An error of the store; what was not shared is tried again.
    pub async fn share_attacks(&self) -> Result<(), StoreError> {
        let policy = self.policy();
        if !policy.has_under_attack() {
            return Ok(());
        }
        let now = self.now();
        for (class, watch) in self.attacks.all() {
            self.roll_attack(&policy.settings.adaptive.attack, &class, &watch, now);
            let ongoing = watch.detector.lock().ongoing();
            match ongoing {
                Some((since, figures)) if self.store().is_shared() => {
                    let view = AttackView::of(&class, since, &figures);
                    self.publish_attack(&class, &view, now).await?;
                }
                _ => self.withdraw_attack(&class).await?,
            }
        }
        Ok(())
    }

    async fn publish_attack(
        &self,
        class: &Arc<str>,
        view: &AttackView,
        now: Micros,
    ) -> Result<(), StoreError> {
        let published = self.attacks.shared.published.lock().get(class).copied();
        if published.is_some_and(|at| now.since(at) < RENEWED_AFTER) {
            return Ok(());
        }
        // By the store's clock: a node's own may be wrong.
        let at = self.link.attend(|store| store.probe()).await?;
        let entry = Entry {
            id: format!("{DECLARED}{class}"),
            bytes: serde_json::to_vec(view).unwrap_or_default(),
            expires_at: Some(at.plus(FORGOTTEN_AFTER)),
        };
        self.link
            .attend(|store| store.put_entry(Registry::Attacks, entry))
            .await?;
        let mut published = self.attacks.shared.published.lock();
        published.insert(Arc::clone(class), now);
        Ok(())
    }

    async fn withdraw_attack(&self, class: &Arc<str>) -> Result<(), StoreError> {
        if !self.attacks.shared.published.lock().contains_key(class) {
            return Ok(());
        }
        let id = format!("{DECLARED}{class}");
        self.link
            .attend(|store| store.remove_entry(Registry::Attacks, &id))
            .await?;
        self.attacks.shared.published.lock().remove(class);
        Ok(())
    }

    /// Copies the attacks of other nodes, and what operators have set.
    ///
    /// # Errors
    /// An error of the store; the copy stays as it was.
    pub async fn refresh_attacks(&self) -> Result<(), StoreError> {
        match self.with_policy(|policy| policy.has_under_attack()) {
            true => self.read_attacks().await,
            false => Ok(()),
        }
    }

    async fn read_attacks(&self) -> Result<(), StoreError> {
        let found = self
            .link
            .attend(|store| store.entries(Registry::Attacks, None))
            .await?;
        if let Some(all) = found {
            self.take_attacks(&all.entries);
        }
        Ok(())
    }

    fn take_attacks(&self, entries: &[Entry]) {
        let shared = &self.attacks.shared;
        let declared: Vec<AttackView> = read_all(entries, DECLARED);
        let is_declared = |class: &str| declared.iter().any(|one| one.class == class);
        // An attack of this node that another one has withdrawn is published again.
        shared
            .published
            .lock()
            .retain(|class, _| is_declared(class));
        let heard_until = self.now().plus(HEARD_FOR);
        for before in shared.declared.load().iter() {
            if !is_declared(&before.class) {
                self.hear_attack(&before.class, Micros(0));
            }
        }
        for attack in &declared {
            self.hear_attack(&attack.class, heard_until);
        }
        shared.settings.store(Arc::new(read_all(entries, SET)));
        shared.declared.store(Arc::new(declared));
    }

    /// Watched classes, and whether an attack tightens their limits.
    pub(in crate::engine) fn attack_gauges(&self) -> Vec<(String, bool)> {
        let policy = self.policy();
        let watched = policy.watched_classes();
        watched
            .map(|class| {
                let is_on = self.attack_since(&policy, class).is_some();
                (class.to_string(), is_on)
            })
            .collect()
    }

    /// State of attacks on all classes.
    pub fn attack_report(&self) -> AttackReport {
        let policy = self.policy();
        let shared = &self.attacks.shared;
        let all = self.attacks.all();
        let mut attacks = (**shared.declared.load()).clone();
        for (class, watch) in &all {
            let is_known = attacks.iter().any(|known| known.class == **class);
            let own = watch.detector.lock().ongoing();
            if let (false, Some((since, figures))) = (is_known, own) {
                attacks.push(AttackView::of(class, since, &figures));
            }
        }
        let gauges = self.attack_gauges().into_iter();
        AttackReport {
            watched: policy.has_under_attack(),
            tightened: gauges
                .filter(|(_, is_on)| *is_on)
                .map(|(class, _)| class)
                .collect(),
            attacks,
            set: (**shared.settings.load()).clone(),
        }
    }
}

impl Admin<'_> {
    /// Sets whether an attack on a class is on, or on every class if none is named.
    ///
    /// # Errors
    /// A class that is too long, too many classes, or an error of the store.
    pub async fn set_attack(
        &self,
        class: Option<&str>,
        mode: AttackMode,
        reason: Option<&str>,
    ) -> Result<AttackReport, AdminError> {
        let class = class.unwrap_or(EVERY_CLASS);
        let engine = self.engine;
        if class.is_empty() || class.len() > CLASS_BYTES_MAX {
            return Err(AdminError::Invalid {
                field: "class",
                problem: "must be 1 to 100 bytes",
            });
        }
        engine.read_attacks().await?;
        let set = engine.attacks.shared.settings.load();
        if set.len() >= ATTACK_CLASSES_MAX && set.iter().all(|one| one.class != class) {
            return Err(AdminError::Invalid {
                field: "class",
                problem: "is one too many: the state is set for 1000 classes already",
            });
        }
        let id = format!("{SET}{class}");
        match mode {
            AttackMode::Auto => {
                let remove = engine
                    .link
                    .operate(|store| store.remove_entry(Registry::Attacks, &id));
                remove.await?;
            }
            AttackMode::On | AttackMode::Off => {
                let setting = AttackSetting {
                    class: class.to_owned(),
                    mode,
                    reason: reason.map(str::to_owned),
                };
                let entry = Entry {
                    id,
                    bytes: serde_json::to_vec(&setting).unwrap_or_default(),
                    expires_at: None,
                };
                let put = engine
                    .link
                    .operate(|store| store.put_entry(Registry::Attacks, entry));
                put.await?;
            }
        }
        engine.read_attacks().await?;
        self.record(Change::AttackSet {
            class,
            mode,
            reason,
        });
        Ok(engine.attack_report())
    }
}

/// The entries of one kind. Those that cannot be read, of a newer version perhaps, are left out.
fn read_all<T: for<'de> Deserialize<'de>>(entries: &[Entry], prefix: &str) -> Vec<T> {
    let of_kind = entries.iter().filter(|entry| entry.id.starts_with(prefix));
    of_kind
        .filter_map(|entry| serde_json::from_slice(&entry.bytes).ok())
        .collect()
}
