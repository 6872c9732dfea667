//! Redis Cluster: which node owns which slot, and what happens when that changes.
//!
//! A command is sent again only after an answer that proves that it was not carried out (a
//! redirection, or a cluster that is rearranging itself): a refund or a commit is never done
//! twice. The map of slots is fetched in the background, from whichever node answers first, so
//! that a node that hangs holds up only its own slots.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{ConnectionInfo, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::config::{Options, Replicas, address_of, at_address};
use super::error::{Fault, Redirect};
use super::link::Link;
use super::script::Call;
use crate::deadline;

/// Most redirections that one command follows.
const HOPS_MAX: u32 = 6;
/// Pause before the next attempt after a node has answered "later"; doubled each time.
const LATER_PAUSE: Duration = Duration::from_millis(4);
/// Shortest time between two fetches of the map.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);

/// Owner of each slot.
#[derive(Default)]
struct Map {
    /// First slot, last slot and address, by first slot.
    ranges: Vec<(u16, u16, Arc<str>)>,
}

impl Map {
    fn owner(&self, slot: u16) -> Option<Arc<str>> {
        let at = self.ranges.partition_point(|(first, ..)| *first <= slot);
        let (_, last, address) = self.ranges.get(at.checked_sub(1)?)?;
        (*last >= slot).then(|| Arc::clone(address))
    }

    /// Addresses of all masters, each once, in order.
    fn masters(&self) -> Vec<Arc<str>> {
        let mut masters: Vec<_> = self.ranges.iter().map(|(.., at)| Arc::clone(at)).collect();
        masters.sort_unstable();
        masters.dedup();
        masters
    }
}

/// Knowledge of the cluster.
enum MapState {
    /// No map yet; counts the fetches that failed.
    Nothing(u64),
    /// The map that was fetched last.
    Map(Arc<Map>),
}

/// A cluster: connections to its nodes, and the map of slots as far as it is known.
pub(super) struct Cluster {
    seeds: Vec<ConnectionInfo>,
    /// Calls without an answer yet.
    waiting: AtomicU64,
    links: Mutex<HashMap<Arc<str>, Arc<Link>>>,
    known: watch::Sender<MapState>,
    looking: AtomicBool,
    options: Options,
}

impl Cluster {
    /// A cluster without connections yet.
    pub(super) fn new(seeds: Vec<ConnectionInfo>, options: Options) -> Arc<Self> {
        Arc::new(Self {
            seeds,
            waiting: AtomicU64::new(0),
            links: Mutex::default(),
            known: watch::Sender::new(MapState::Nothing(0)),
            looking: AtomicBool::new(false),
            options,
        })
    }

    /// Calls a script on the node that has its keys.
    pub(super) async fn script(
        self: &Arc<Self>,
        call: &Call,
        replicas: Replicas,
        due: Instant,
    ) -> Result<Value, Fault> {
        let _waiting = WaitingCall::new(&self.waiting);
        let slot = slot_of(call.slot_key());
        let mut address = self.owner(slot, due).await?;
        let mut asked = false;
        for hop in 1.. {
            let link = self.link(&address)?;
            let result = if asked {
                link.script_asking(call, replicas, due).await
            } else {
                link.script(call, replicas, due).await
            };
            let Err(fault) = result else {
                return result;
            };
            let redirect = fault.redirect().filter(|_| hop < HOPS_MAX);
            if !matches!(redirect, Some(Redirect::Ask(_))) && concerns_the_map(&fault) {
                self.look_soon();
            }
            asked = matches!(redirect, Some(Redirect::Ask(_)));
            address = match redirect {
                None => return Err(fault),
                Some(Redirect::Moved(to) | Redirect::Ask(to)) => at_host_of(&address, &to),
                Some(Redirect::Later) => {
                    let pause = sleep(LATER_PAUSE * 2_u32.pow(hop));
                    if timeout_at(due, pause).await.is_err() {
                        return Err(fault);
                    }
                    self.owner(slot, due).await?
                }
            };
        }
        Err(Fault::Down)
    }

    /// Number of calls that wait for an answer.
    pub(super) fn depth(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    /// A connection to every master, in a stable order.
    pub(super) async fn masters(self: &Arc<Self>, due: Instant) -> Result<Vec<Arc<Link>>, Fault> {
        let map = self.map(due).await?;
        map.masters().iter().map(|at| self.link(at)).collect()
    }

    /// Waits until `due` for the map and for a connection to every master. A fetch of the map has
    /// no more time than a call; the connections that it began are there for the next fetch.
    pub(super) async fn ready(self: &Arc<Self>, due: Instant) -> Result<(), Fault> {
        let masters = loop {
            match self.masters(due).await {
                Ok(masters) => break masters,
                Err(fault) if deadline::now() >= due => return Err(fault),
                Err(_) => sleep(LATER_PAUSE).await,
            }
        };
        for link in masters {
            link.ready(due).await?;
        }
        Ok(())
    }

    async fn owner(self: &Arc<Self>, slot: u16, due: Instant) -> Result<Arc<str>, Fault> {
        let owner = self.map(due).await?.owner(slot);
        owner.ok_or_else(|| {
            self.look_soon();
            Fault::Down
        })
    }

    async fn map(self: &Arc<Self>, due: Instant) -> Result<Arc<Map>, Fault> {
        let mut known = self.known.subscribe();
        let failed = match &*known.borrow_and_update() {
            MapState::Map(map) => return Ok(Arc::clone(map)),
            MapState::Nothing(failed) => *failed,
        };
        // The last fetch failed, and the next is in progress or in its pause: calls do not wait
        // for it.
        if failed > 0 && self.looking.load(SeqCst) {
            return Err(Fault::Down);
        }
        self.look_soon();
        match timeout_at(due, known.changed()).await {
            Ok(Ok(())) => match &*known.borrow() {
                MapState::Map(map) => Ok(Arc::clone(map)),
                MapState::Nothing(_) => Err(Fault::Down),
            },
            Ok(Err(_)) => Err(Fault::Down),
            Err(_) => Err(Fault::TimedOut),
        }
    }
    fn link(&self, address: &Arc<str>) -> Result<Arc<Link>, Fault> {
        let mut links = self.links.lock();
        if let Some(link) = links.get(address) {
            return Ok(Arc::clone(link));
        }
        let template = self.seeds.first().ok_or(Fault::Down)?;
        let info = at_address(template, address).ok_or(Fault::Misread)?;
        let link = Link::new(info, &self.options)?;
        links.insert(Arc::clone(address), Arc::clone(&link));
        Ok(link)
    }

    /// Fetches the map in the background, unless a fetch is in progress or has just ended.
    pub(super) fn look_soon(self: &Arc<Self>) {
        if self.looking.swap(true, SeqCst) {
            return;
        }
        let looking = MapFetch(Arc::clone(self));
        tokio::spawn(async move {
            looking.0.look().await;
            sleep(REFRESH_PAUSE).await;
        });
    }

    async fn look(self: &Arc<Self>) {
        let due = self.options.due();
        let mut asked = JoinSet::new();
        for address in self.addresses() {
            let cluster = Arc::clone(self);
            asked.spawn(async move { cluster.ask_for_map(&address, due).await });
        }
        while let Some(answer) = asked.join_next().await {
            if let Ok(Ok(map)) = answer {
                self.learn(map);
                return;
            }
        }
        // Wakes the calls that wait for a first map. A known map stays in use, however old.
        self.known.send_if_modified(|known| match known {
            MapState::Nothing(failed) => {
                *failed += 1;
                true
            }
            MapState::Map(_) => false,
        });
    }

    fn learn(&self, map: Map) {
        // Seeds stay: they lead back to the cluster if all of its masters change.
        let mut kept = self.seed_addresses();
        kept.extend(map.masters());
        self.links
            .lock()
            .retain(|address, _| kept.contains(address));
        self.known.send_replace(MapState::Map(Arc::new(map)));
    }

    async fn ask_for_map(&self, address: &Arc<str>, due: Instant) -> Result<Map, Fault> {
        let link = self.link(address)?;
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        let answer = link.call(&cmd, due).await?;
        read_map(answer, address).ok_or(Fault::Misread)
    }

    fn seed_addresses(&self) -> Vec<Arc<str>> {
        self.seeds
            .iter()
            .map(|seed| address_of(seed).into())
            .collect()
    }

    fn addresses(&self) -> Vec<Arc<str>> {
        let mut addresses = self.seed_addresses();
        if let MapState::Map(map) = &*self.known.borrow() {
            addresses.extend(map.masters());
        }
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
}

/// A call in progress: counted until it is dropped, answered or not.
struct WaitingCall<'c>(&'c AtomicU64);

impl<'c> WaitingCall<'c> {
    fn new(count: &'c AtomicU64) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A fetch of the map in progress: it ends when this is dropped, whatever happened.
struct MapFetch(Arc<Cluster>);

impl Drop for MapFetch {
    fn drop(&mut self) {
        self.0.looking.store(false, SeqCst);
    }
}

/// True if the fault may mean that another node has the slot by now.
fn concerns_the_map(fault: &Fault) -> bool {
    matches!(fault, Fault::TimedOut | Fault::Down)
        || fault.redirect().is_some()
        || fault.breaks_connection()
}

/// Address of a node that `answering` named. A node that does not know its own host names only a
/// port: then the host is that of `answering`.
fn at_host_of(answering: &str, to: &str) -> Arc<str> {
    match (to.rsplit_once(':'), answering.rsplit_once(':')) {
        (Some(("" | "?", port)), Some((host, _))) => format!("{host}:{port}").into(),
        _ => to.into(),
    }
}

/// Reads `CLUSTER SLOTS`: first, last, master (host, port, …), replicas.
fn read_map(answer: Value, answering: &str) -> Option<Map> {
    let Value::Array(rows) = answer else {
        return None;
    };
    let mut ranges = rows
        .into_iter()
        .map(|row| read_range(row, answering))
        .collect::<Option<Vec<_>>>()?;
    ranges.sort_unstable();
    (!ranges.is_empty()).then_some(Map { ranges })
}

fn read_range(row: Value, answering: &str) -> Option<(u16, u16, Arc<str>)> {
    let (first, last, master): (u16, u16, Vec<Value>) = match row {
        Value::Array(mut cells) => {
            cells.truncate(3);
            redis::from_redis_value(Value::Array(cells)).ok()?
        }
        _ => return None,
    };
    let mut master = master.into_iter();
    let host: Option<String> = redis::from_redis_value(master.next()?).ok()?;
    let port: u16 = redis::from_redis_value(master.next()?).ok()?;
    let address = format!("{}:{port}", host.unwrap_or_default());
    Some((first, last, at_host_of(answering, &address)))
}

/// The slot of a key: CRC-16 (XMODEM) of its hash tag.
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or(key, |(tag, _)| if tag.is_empty() { key } else { tag });
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    });
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot_of("123456789"), 12_739);
        assert_eq!(slot_of("rl:{user1000}:a"), slot_of("rec:{user1000}:b"));
        assert_eq!(slot_of("foo{}{bar}"), slot_of("foo{}{bar}"));
        assert_ne!(slot_of("foo{}{bar}"), slot_of("bar"));
    }

    #[test]
    fn a_slot_belongs_to_the_range_around_it_or_to_nobody() {
        let map = Map {
            ranges: vec![(0, 99, "a:1".into()), (200, 299, "b:2".into())],
        };
        assert_eq!(map.owner(0).as_deref(), Some("a:1"));
        assert_eq!(map.owner(99).as_deref(), Some("a:1"));
        assert_eq!(map.owner(100), None);
        assert_eq!(map.owner(250).as_deref(), Some("b:2"));
        assert_eq!(map.owner(300), None);
    }

    #[test]
    fn a_node_without_a_host_is_reached_where_the_answer_came_from() {
        assert_eq!(&*at_host_of("10.0.0.1:7000", ":7001"), "10.0.0.1:7001");
        assert_eq!(
            &*at_host_of("10.0.0.1:7000", "10.0.0.2:7001"),
            "10.0.0.2:7001"
        );
    }
}
