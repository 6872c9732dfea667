//! Shares by class. A policy has few classes, but an event may name any.

use std::collections::HashMap;
use std::sync::Arc;

use super::subjects::Share;

/// Most classes that are counted apart.
const CLASSES_MAX: usize = 1000;
/// Number of classes that are found by the address of their name, which is the policy's own in all
/// of their events: no hash is needed.
const AT_HAND: usize = 8;

#[derive(Default)]
pub(super) struct Classes {
    shares: Vec<(Arc<str>, Share)>,
    places: HashMap<Arc<str>, usize>,
}

impl Classes {
    pub(super) fn count(&mut self, class: &Arc<str>, is_allowed: bool) {
        let mut at_hand = self.shares.iter_mut().take(AT_HAND);
        if let Some((_, share)) = at_hand.find(|(known, _)| Arc::ptr_eq(known, class)) {
            share.count(is_allowed);
            return;
        }
        let place = self.place(class);
        if let Some((_, share)) = self.shares.get_mut(place) {
            share.count(is_allowed);
        }
    }

    fn place(&mut self, class: &Arc<str>) -> usize {
        if let Some(known) = self.places.get(class) {
            return *known;
        }
        let name = match self.shares.len() < CLASSES_MAX {
            true => Arc::clone(class),
            false => "other".into(),
        };
        let next = self.shares.len();
        let place = *self.places.entry(Arc::clone(&name)).or_insert(next);
        if place == next {
            self.shares.push((name, Share::default()));
        }
        place
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (String, Share)> {
        let shares = self.shares.iter();
        shares.map(|(name, share)| (name.to_string(), *share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_told_apart_by_name_and_bounded() {
        let mut classes = Classes::default();
        for round in 0..2 {
            for n in 0..CLASSES_MAX + 20 {
                classes.count(&format!("c{n}").into(), round == 0);
            }
        }
        let all: HashMap<String, Share> = classes.all().collect();
        assert_eq!(all.len(), CLASSES_MAX + 1);
        let share = |name: &str| (all[name].events, all[name].refused);
        assert_eq!((share("c0"), share("c999")), ((2, 1), (2, 1)));
        assert_eq!(share("other"), (40, 20));
    }
}
