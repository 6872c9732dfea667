//! Two nodes, a small bucket, and a limit of one or two in progress: everything that can happen in
//! a few steps. Nodes are real engines on the reference store; each step makes a call, cuts it
//! short between two calls of the store, loses its answer, or lets another call or the clock in
//! between. States that were seen before are not explored again.

use std::collections::{BTreeSet, HashSet};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use palisade::core::time::Micros;
use palisade::store::model::ModelSnapshot;
use palisade::store::{Answer, Call, Interceptor};
use tokio::task::coop::unconstrained;

use super::*;

/// Tokens that all callers share in an hour.
const BOUND: u64 = 10;
/// Tokens that a caller reserves.
const RESERVED: u64 = 4;
/// Tokens that an extension adds.
const MORE: u64 = 1;
/// Lifetime of a reservation; the clock moves in halves of it.
const HOLD_US: u64 = 2 * SECOND;
/// After this a settle comes too late.
const LONG_US: u64 = 700 * SECOND;

struct Time(AtomicU64);

impl Clock for Time {
    fn now(&self) -> Micros {
        Micros(self.0.load(Ordering::SeqCst))
    }
}

/// The way from one node to the store, which may be closed after a number of calls.
struct Gate {
    store: Arc<Model>,
    open_for: AtomicUsize,
    calls: AtomicUsize,
}

impl Gate {
    fn reset(&self, open_for: usize) {
        self.calls.store(0, Ordering::SeqCst);
        self.open_for.store(open_for, Ordering::SeqCst);
    }
}

impl Interceptor for Gate {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn before<'a>(&'a self, _call: Call<'a>) -> Answer<'a, ()> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        Answer::later(poll_fn(move |_| {
            match number <= self.open_for.load(Ordering::SeqCst) {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            }
        }))
    }

    fn is_shared(&self) -> bool {
        // Nothing is remembered of the store, so that its state is all that there is.
        false
    }
}

/// One caller, and the tokens that count for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Caller {
    token: Option<Box<str>>,
    /// End of its hold as it was told; `None` if it does not work.
    until: Option<Micros>,
    /// Whether a request for its reservation was cut short, and may have been granted.
    was_cut: bool,
    /// Tokens that it was granted.
    granted: u64,
    /// Tokens that may have been charged by calls that were cut short.
    unknown: u64,
    /// Amounts of settles that were cut short.
    tried: BTreeSet<u64>,
    /// The amount of the first settle.
    settled: Option<u64>,
}

impl Caller {
    fn least(&self) -> u64 {
        let tried = self.tried.iter().copied().min().unwrap_or(u64::MAX);
        self.settled.unwrap_or(tried.min(self.granted))
    }

    fn most(&self) -> u64 {
        let tried = self.tried.iter().copied().max().unwrap_or(0);
        self.unknown + self.settled.unwrap_or(tried.max(self.granted))
    }

    /// What it uses of the bound: a surplus is charged beyond it.
    fn bounded(&self) -> u64 {
        self.least().min(self.granted)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    store: ModelSnapshot,
    now: Micros,
    callers: Vec<Caller>,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Reserve(usize),
    /// By its hold, and a token more.
    Extend(usize),
    Settle(usize, u64),
    Wait(u64),
}

/// Disturbance of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The node dies before this call of the store.
    Dies(usize),
    /// The answer is lost.
    Unheard,
    /// Before this call of the store, something else happens.
    Between(usize, Event),
}

/// The answer to a call.
enum Said {
    Reserved(Box<ReserveAnswer>),
    Extended(Box<ExtendAnswer>),
    Settled(Settlement),
}

type Called<'a> = Pin<Box<dyn Future<Output = Said> + 'a>>;

/// Extent of an exploration.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Narrow,
    /// With surpluses, and waits after which fates are forgotten.
    Wide,
}

struct Explorer {
    nodes: [(Engine, Arc<Gate>); 2],
    store: Arc<Model>,
    time: Arc<Time>,
    slots: usize,
    scope: Scope,
}

impl Explorer {
    fn new(slots: usize, scope: Scope) -> Self {
        let time = Arc::new(Time(AtomicU64::new(START.0)));
        let clock: Arc<dyn Clock> = Arc::<Time>::clone(&time);
        let store = Arc::new(Model::new(Arc::clone(&clock)));
        let text = format!(
            "[policy]\ndefaults = false\n[reservations]\nmax_hold = '1h'\n\
             [[limit]]\nname = 'slots'\nby = ['org']\nconcurrency = {slots}\nhold = '2s'\n\
             [[limit]]\nname = 'tokens'\nby = ['org']\nrate = '{BOUND}/h'\nunit = 'tokens'\n"
        );
        let nodes = [0, 1].map(|_| {
            let gate = Arc::new(Gate {
                store: Arc::clone(&store),
                open_for: AtomicUsize::new(usize::MAX),
                calls: AtomicUsize::new(0),
            });
            let config = EngineConfig {
                policy: policy(&text, &Env::default()),
                ..EngineConfig::new(
                    Arc::<Gate>::clone(&gate),
                    PolicySet::empty(),
                    keyring(),
                    Arc::clone(&clock),
                )
            };
            (Engine::new(config), gate)
        });
        Self {
            nodes,
            store,
            time,
            slots,
            scope,
        }
    }

    /// Explores everything that can happen in `depth` steps; returns the number of states.
    async fn explore(&self, callers: usize, depth: usize) -> usize {
        let start = World {
            store: self.store.snapshot(),
            now: START,
            callers: vec![Caller::default(); callers],
        };
        let mut seen = HashSet::from([start.clone()]);
        let mut edge = vec![start];
        for _ in 0..depth {
            let mut next = Vec::new();
            for world in &edge {
                for event in self.events(world) {
                    self.step(world, event, &mut |new| {
                        if !seen.contains(&new) {
                            seen.insert(new.clone());
                            next.push(new);
                        }
                    })
                    .await;
                }
            }
            for world in &next {
                self.check_recovery(world).await;
            }
            edge = next;
        }
        seen.len()
    }

    /// Everything that may become of a world by this event, whatever disturbs it.
    async fn step(&self, world: &World, event: Event, found: &mut impl FnMut(World)) {
        let (next, calls) = self.happen(world, event, Fault::None).await;
        found(next);
        if calls == 0 {
            return;
        }
        found(self.happen(world, event, Fault::Unheard).await.0);
        for call in 2..=calls {
            found(self.happen(world, event, Fault::Dies(call)).await.0);
            for other in self.events(world) {
                let between = Fault::Between(call, other);
                found(self.happen(world, event, between).await.0);
            }
        }
    }

    /// The world after an event, and the number of the store's calls that it made.
    async fn happen(&self, world: &World, event: Event, fault: Fault) -> (World, usize) {
        self.store.restore(&world.store);
        self.time.0.store(world.now.0, Ordering::SeqCst);
        let mut world = world.clone();
        let calls = self.call(&mut world, 0, event, fault).await;
        world.now = self.time.now();
        world.store = self.store.snapshot();
        self.check(&world, (event, fault)).await;
        (world, calls)
    }

    async fn call(&self, world: &mut World, node: usize, event: Event, fault: Fault) -> usize {
        let (engine, gate) = &self.nodes[node];
        let Some(mut call) = begin(engine, world, event) else {
            if let Event::Wait(us) = event {
                self.time.0.fetch_add(us, Ordering::SeqCst);
            }
            return 0;
        };
        note_attempt(world, event);
        gate.reset(match fault {
            Fault::Dies(call) | Fault::Between(call, _) => call - 1,
            Fault::None | Fault::Unheard => usize::MAX,
        });
        let mut said = poll_once(&mut call).await;
        if let (None, Fault::Between(_, other)) = (&said, fault) {
            Box::pin(self.call(world, 1, other, Fault::None)).await;
        }
        if !matches!(fault, Fault::Dies(_)) && said.is_none() {
            gate.open_for.store(usize::MAX, Ordering::SeqCst);
            said = poll_once(&mut call).await;
            assert!(said.is_some(), "{event:?} {fault:?} does not end");
        }
        drop(call);
        match said.filter(|_| fault != Fault::Unheard) {
            Some(said) => note_answer(world, event, said, (event, fault)),
            None => note_silence(world, event),
        }
        gate.calls.load(Ordering::SeqCst)
    }

    async fn check(&self, world: &World, what: (Event, Fault)) {
        // B-EXACT: by the store's clock, whatever the holders have done.
        let holds = |one: &&Caller| one.until.is_some_and(|until| until > world.now);
        let holders = world.callers.iter().filter(holds).count();
        assert!(
            holders <= self.slots,
            "{holders} holders after {what:?}: {world:#?}"
        );
        // B-BOUND
        let granted: u64 = world.callers.iter().map(Caller::bounded).sum();
        assert!(granted <= BOUND, "{granted} after {what:?}: {world:#?}");
        // B-ONCE: what came back, and what was charged, was so once.
        let (least, most) = world.callers.iter().fold((0, 0), |(least, most), one| {
            (least + one.least(), most + one.most())
        });
        let found = self.nodes[1].0.peek(&asking(&[("tokens", 1)])).await;
        let mut limits = found.decision.limits.iter();
        let left = limits.find(|one| &*one.name == "tokens").unwrap().remaining;
        let used = BOUND - left;
        assert!(
            (least.min(BOUND)..=most).contains(&used),
            "{used} used, {least} to {most} expected after {what:?}: {world:#?}"
        );
    }

    /// What can happen next. Callers are all alike, so each begins after the one before it.
    fn events(&self, world: &World) -> Vec<Event> {
        let has_begun = |caller: &&Caller| **caller != Caller::default();
        let begun = world.callers.iter().filter(has_begun).count();
        let mut events = vec![Event::Wait(HOLD_US / 2)];
        for caller in 0..world.callers.len().min(begun + 1) {
            events.extend([
                Event::Reserve(caller),
                Event::Extend(caller),
                Event::Settle(caller, 1),
            ]);
            if self.scope == Scope::Wide {
                events.push(Event::Settle(caller, 6));
            }
        }
        if self.scope == Scope::Wide {
            events.push(Event::Wait(LONG_US));
        }
        events
    }

    /// B-CRASH: once every hold has passed, all slots are free, whatever has happened.
    async fn check_recovery(&self, world: &World) {
        self.store.restore(&world.store);
        self.nodes[0].1.reset(usize::MAX);
        let later = world.now.plus(HOLD_US);
        self.time.0.store(later.0, Ordering::SeqCst);
        for _ in 0..self.slots {
            let facts = asking(&[("requests", 1)]);
            let answer = self.nodes[0].0.reserve(&facts, hold()).await.unwrap();
            assert!(answer.held.is_some(), "a slot has leaked: {world:#?}");
        }
    }
}

fn hold() -> Hold {
    Hold {
        hold: Duration::from_micros(HOLD_US),
        ..Hold::default()
    }
}

/// Begins the call of an event; `None` for one that makes no call.
fn begin<'a>(engine: &'a Engine, world: &World, event: Event) -> Option<Called<'a>> {
    match event {
        Event::Reserve(caller) => {
            let mut facts = asking(&[("requests", 1), ("tokens", RESERVED)]);
            // Both nodes and every repetition mean one reservation (B-ID).
            let id = palisade::core::Id::new("request_id", &format!("caller-{caller}"));
            facts.request_id = Some(id.unwrap());
            Some(Box::pin(async move {
                let answer = engine.reserve(&facts, hold()).await.unwrap();
                Said::Reserved(Box::new(answer))
            }))
        }
        Event::Extend(caller) => {
            let token = world.callers[caller].token.clone()?;
            let more = costs(&[("tokens", MORE)]);
            let hold = Duration::from_micros(HOLD_US);
            Some(Box::pin(async move {
                let answer = engine.extend(&token, Some(&more), Some(hold)).await;
                Said::Extended(Box::new(answer.unwrap()))
            }))
        }
        Event::Settle(caller, used) => {
            let token = world.callers[caller].token.clone()?;
            let used = costs(&[("tokens", used)]);
            Some(Box::pin(async move {
                Said::Settled(engine.settle(&token, &used).await.unwrap())
            }))
        }
        Event::Wait(_) => None,
    }
}

/// Notes what a call may do, should nobody hear of it.
fn note_attempt(world: &mut World, event: Event) {
    match event {
        Event::Reserve(caller) => {
            let caller = &mut world.callers[caller];
            if caller.granted == 0 && caller.unknown < RESERVED {
                caller.unknown += RESERVED;
            }
        }
        Event::Extend(caller) => world.callers[caller].unknown += MORE,
        Event::Settle(caller, used) => {
            let caller = &mut world.callers[caller];
            // It has ended its work.
            caller.until = None;
            if caller.settled.is_none() {
                caller.tried.insert(used);
            }
        }
        Event::Wait(_) => {}
    }
}

fn note_silence(world: &mut World, event: Event) {
    if let Event::Reserve(caller) = event {
        world.callers[caller].was_cut = true;
    }
}

fn note_answer(world: &mut World, event: Event, said: Said, what: (Event, Fault)) {
    match (event, said) {
        (Event::Reserve(caller), Said::Reserved(answer)) => {
            let caller = &mut world.callers[caller];
            let Some(held) = answer.held else {
                if caller.granted == 0 && !caller.was_cut {
                    caller.unknown = 0;
                }
                return;
            };
            if caller.granted == 0 {
                caller.granted = RESERVED;
                caller.unknown -= RESERVED;
            }
            let has_ended = caller.settled.is_some() || !caller.tried.is_empty();
            if !has_ended {
                caller.until = caller.until.max(Some(held.expires_at));
            }
            caller.token = Some(held.token);
        }
        (Event::Extend(caller), Said::Extended(answer)) => {
            let caller = &mut world.callers[caller];
            match *answer {
                ExtendAnswer::Held(held) => {
                    let tokens = held.reserved.iter().find(|(unit, _)| &**unit == "tokens");
                    let granted = tokens.unwrap().1;
                    // Earlier extensions that were cut short may have been made.
                    caller.unknown -= (granted - caller.granted).min(caller.unknown);
                    caller.granted = granted;
                    if caller.settled.is_none() && caller.tried.is_empty() {
                        caller.until = Some(held.expires_at);
                    }
                    caller.token = Some(held.token);
                }
                ExtendAnswer::Expired => {
                    caller.until = None;
                    caller.unknown -= MORE;
                }
                ExtendAnswer::Denied(_) => caller.unknown -= MORE,
                ExtendAnswer::Settled(first) => {
                    caller.unknown -= MORE;
                    note_settled(caller, &first, what);
                }
                ExtendAnswer::Unavailable => {}
            }
        }
        (Event::Settle(caller, _), Said::Settled(answer)) => {
            assert!(answer.recorded, "{what:?}");
            if !answer.late {
                note_settled(&mut world.callers[caller], &answer, what);
            }
        }
        _ => unreachable!("{event:?}"),
    }
}

/// B-ONCE: the first settle's answer, on whichever node and however often it is asked for.
fn note_settled(caller: &mut Caller, answer: &Settlement, what: (Event, Fault)) {
    let tokens = answer.units.iter().find(|one| &*one.unit == "tokens");
    let tokens = tokens.unwrap();
    match caller.settled {
        Some(first) => assert_eq!(tokens.used, first, "{what:?}: {caller:?}"),
        None => assert!(caller.tried.contains(&tokens.used), "{what:?}: {caller:?}"),
    }
    caller.settled = Some(tokens.used);
    // An extension that was cut short may have been made before.
    caller.unknown -= (tokens.reserved - caller.granted).min(caller.unknown);
    caller.granted = tokens.reserved;
    caller.tried.clear();
    caller.until = None;
}

/// Polls a call as far as it comes without waiting.
async fn poll_once(call: &mut Called<'_>) -> Option<Said> {
    let mut call = pin!(unconstrained(call));
    poll_fn(|cx: &mut Context<'_>| match call.as_mut().poll(cx) {
        Poll::Ready(said) => Poll::Ready(Some(said)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Explores four steps of one caller more than there are slots.
async fn explore(slots: usize, scope: Scope) {
    let explorer = Explorer::new(slots, scope);
    let states = unconstrained(explorer.explore(slots + 1, 4)).await;
    println!("{slots} slots: {states} states");
    assert!(states > 1_000, "only {states} states");
}

#[tokio::test(start_paused = true)]
async fn b_exact_two_nodes_and_one_slot_whatever_crashes_pauses_or_comes_late() {
    explore(1, Scope::Wide).await;
}

#[tokio::test(start_paused = true)]
async fn b_exact_two_nodes_and_two_slots_whatever_crashes_pauses_or_comes_late() {
    explore(2, Scope::Narrow).await;
}
