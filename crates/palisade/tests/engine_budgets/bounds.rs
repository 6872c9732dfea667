//! Random sequences of reservations, compared with the simplest possible model of use and slots.

use std::collections::BTreeMap;

use super::*;

const TOKENS: u64 = 6_000;
const PLACES: usize = 3;
const HOLD: u64 = 30 * SECOND;

fn limits() -> String {
    format!(
        "[[limit]]\nname = \"tokens\"\nby = [\"org\"]\nrate = \"{TOKENS}/h\"\n\
         algorithm = \"fixed-window\"\nunit = \"tokens\"\n\
         [[limit]]\nname = \"places\"\nby = [\"org\"]\nconcurrency = {PLACES}\nhold = \"30s\"\n"
    )
}

/// A reservation in the model.
struct Open {
    token: Box<str>,
    reserved: u64,
    /// The hour and the amount of each of its charges.
    charges: Vec<(u64, u64)>,
    /// End of its slot, and end of the reservation, which is never later than its longest life.
    holds_until: u64,
    ends: u64,
    latest: u64,
    is_settled: bool,
}

/// Pseudorandom numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

struct Account {
    nodes: Nodes,
    random: Random,
    used: BTreeMap<u64, u64>,
    open: Vec<Open>,
}

impl Account {
    fn now(&self) -> u64 {
        self.nodes.clock.now().0
    }

    fn hour(&self) -> u64 {
        self.now() / (60 * MINUTE)
    }

    fn used(&mut self) -> &mut u64 {
        let hour = self.hour();
        self.used.entry(hour).or_default()
    }

    fn holders(&self) -> usize {
        let now = self.now();
        let holds = |one: &&Open| !one.is_settled && one.holds_until > now;
        self.open.iter().filter(holds).count()
    }

    async fn reserve(&mut self) {
        let (node, tokens) = (self.random.below(2), 1 + self.random.below(400));
        let node = usize::try_from(node).unwrap();
        let answer = self.nodes.reserve(node, &[("tokens", tokens)]).await;
        let fits = *self.used() + tokens <= TOKENS && self.holders() < PLACES;
        assert_eq!(answer.held.is_some(), fits, "seed {}", self.random.0);
        if let Some(held) = answer.held {
            *self.used() += tokens;
            let open = Open {
                token: held.token,
                reserved: tokens,
                charges: vec![(self.hour(), tokens)],
                holds_until: self.now() + HOLD,
                ends: self.now() + HOLD,
                latest: self.now() + 10 * MINUTE,
                is_settled: false,
            };
            self.open.push(open);
        }
    }

    async fn extend(&mut self, at: usize) {
        let more = self.random.below(100);
        let now = self.now();
        let token = self.open[at].token.clone();
        let costs: &[_] = if more > 0 { &[("tokens", more)] } else { &[] };
        let answer = self.nodes.extend(1, &token, costs, Some(30)).await;
        let open = &self.open[at];
        if open.is_settled {
            // The fate is forgotten some time after it can matter (B-ONCE).
            let is_over = now > open.ends + 10 * MINUTE;
            let is_told = matches!(answer, ExtendAnswer::Settled(_));
            assert!(is_told || is_over, "{answer:?}");
        } else if open.ends <= now {
            assert!(matches!(answer, ExtendAnswer::Expired), "{answer:?}");
        } else if *self.used() + more > TOKENS {
            assert!(matches!(answer, ExtendAnswer::Denied(_)), "{answer:?}");
        } else {
            assert!(matches!(answer, ExtendAnswer::Held(_)), "{answer:?}");
            *self.used() += more;
            let hour = self.hour();
            let open = &mut self.open[at];
            open.reserved += more;
            open.charges.push((hour, more));
            open.holds_until = now + HOLD;
            open.ends = open.ends.max((now + HOLD).min(open.latest));
        }
    }

    async fn settle(&mut self, at: usize) {
        let said = self.random.below(500);
        let token = self.open[at].token.clone();
        let answer = self.nodes.settle(0, &token, &[("tokens", said)]).await;
        let hour = self.hour();
        let open = &mut self.open[at];
        if open.is_settled || answer.late {
            return;
        }
        open.is_settled = true;
        // The latest charges are returned first, and only as far as the window still counts them.
        let mut back = open.reserved.saturating_sub(said);
        let mut returned = 0;
        for (charged_in, cost) in open.charges.iter().rev() {
            let gone = back.min(*cost);
            back -= gone;
            returned += if *charged_in == hour { gone } else { 0 };
        }
        let surplus = said.saturating_sub(open.reserved);
        let used = self.used();
        *used = *used - returned + surplus;
    }

    async fn step(&mut self) {
        let count = u64::try_from(self.open.len()).unwrap();
        let any = usize::try_from(self.random.below(count.max(1))).unwrap();
        match self.random.below(10) {
            0..=3 => self.reserve().await,
            4..=5 if count > 0 => self.extend(any).await,
            6..=7 if count > 0 => self.settle(any).await,
            8 => self.nodes.sleep(self.random.below(20) * SECOND),
            // A holder dies, and no call is made for a while.
            _ => self.nodes.sleep(self.random.below(3) * 11 * SECOND),
        }
        // By then, denials remembered by another node have been forgotten (B-REMEMBER).
        self.nodes.sleep(SECOND / 10);
        assert!(self.holders() <= PLACES, "B-EXACT");
        let left = TOKENS.saturating_sub(*self.used());
        assert_eq!(
            self.nodes.left(1, "tokens", "tokens").await,
            left,
            "B-BOUND"
        );
    }
}

#[tokio::test]
async fn b_exact_random_holders_are_never_too_many_and_what_is_used_is_what_was_said() {
    for seed in 0..12 {
        let mut account = Account {
            nodes: Nodes::new(2, &limits()),
            random: Random(seed),
            used: BTreeMap::new(),
            open: Vec::new(),
        };
        for _ in 0..400 {
            account.step().await;
        }
        assert!(
            account.open.len() > 20,
            "seed {seed}: {}",
            account.open.len()
        );
    }
}
