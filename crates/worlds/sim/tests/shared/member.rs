//! Parts at their coordinator, by the code that the program has: what it keeps, and on what; how a
//! part is known, before it serves and as long as it does; and what must hold of names meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::rc::Rc;
use std::time::Duration;

use outboard_base::task::Work;
use outboard_base::{Errno, Result, Time};
use outboard_cluster::coordinator::{
    Claim, Coordinator, Entry, Keeper, Kept, Known, Remote, Shelf, Standing, TERM, Table, VOLUME,
};
use outboard_meta::identity;

use crate::part::{Clock, Files, Net, Planted, net_now};
use crate::world::Slot;

/// By how much the sessions of clocks that differ may be shorter.
const DRIFT: Duration = Duration::from_millis(100);

/// What a coordinator has kept: its last number, and all entries.
type Content = (u64, Vec<(String, Kept)>);

#[derive(Default)]
struct Medium {
    written: Option<Content>,
    durable: Option<Content>,
    /// Nothing is made durable.
    is_lazy: bool,
    /// Power is lost in the next change, before it is durable or behind that.
    tears: Option<bool>,
    is_dark: bool,
}

/// A coordinator's medium, which outlives it.
#[derive(Clone, Default)]
pub(crate) struct MemShelf(Rc<RefCell<Medium>>);

impl MemShelf {
    pub(crate) fn new(planted: Option<Planted>) -> MemShelf {
        let is_lazy = planted == Some(Planted::Lazy);
        MemShelf(Rc::new(RefCell::new(Medium { is_lazy, ..Medium::default() })))
    }

    /// A coordinator of what is here.
    pub(crate) fn open(&self, now: Time) -> Keeper<MemShelf> {
        let table = match self.0.borrow().written.clone() {
            Some((last, all)) => Table::kept(TERM, last, all, now),
            None => Table::new(TERM),
        };
        Keeper::new(table, self.clone())
    }

    /// Power is lost.
    pub(crate) fn crash(&self) {
        let mut medium = self.0.borrow_mut();
        (medium.written, medium.is_dark, medium.tears) = (medium.durable.clone(), false, None);
    }

    /// Power is lost in the next change, once that is durable or before.
    pub(crate) fn tears(&self, is_kept: bool) {
        self.0.borrow_mut().tears = Some(is_kept);
    }

    /// Power has been lost in a change.
    pub(crate) fn is_dark(&self) -> bool {
        self.0.borrow().is_dark
    }
}

impl Shelf for MemShelf {
    fn keep(&self, table: &Table) -> Result<()> {
        let (last, all) = table.to_keep();
        let content = (last, all.map(|(name, kept)| (name.clone(), kept.clone())).collect());
        let mut medium = self.0.borrow_mut();
        medium.written = Some(content);
        let tears = medium.tears.take();
        if tears.is_none_or(|is_kept| is_kept) && !medium.is_lazy {
            medium.durable = medium.written.clone();
        }
        medium.is_dark |= tears.is_some();
        if tears.is_some() { Err(Errno::EIO) } else { Ok(()) }
    }
}

/// Who has had which name, by what parts heard: from when an answer said so, for a session's term
/// after the beat before it. Nobody else may have it then, but at the same place.
#[derive(Clone, Default)]
pub(crate) struct Names(Rc<RefCell<Held>>);

/// By name and place: the beat, and when its answer was heard.
type Held = BTreeMap<(String, String), (Time, Time)>;

impl Names {
    fn has(&self, claim: &Claim, beat: Time, heard: Time) {
        let mut all = self.0.borrow_mut();
        let sure = |(beat, heard): (Time, Time)| (heard, beat.after(TERM));
        let (from, until) = sure((beat, heard));
        for ((name, place), had) in all.iter() {
            let (since, end) = sure(*had);
            let both = from.max(since).after(DRIFT) < until.min(end);
            assert!(
                *name != claim.name || *place == claim.place || !both,
                "{name} is at {place} and at {} at once",
                claim.place
            );
        }
        all.insert((claim.name.clone(), claim.place.clone()), (beat, heard));
    }

    /// A part has left in order.
    fn leaves(&self, claim: &Claim) {
        self.0.borrow_mut().remove(&(claim.name.clone(), claim.place.clone()));
    }
}

/// A part's way to its coordinator, which notes when it beats.
pub(crate) struct Noting {
    remote: Remote<Net>,
    net: Net,
    clock: Clock,
    beat: Rc<Cell<Time>>,
}

impl Coordinator for Noting {
    async fn beat(&self) -> Result<()> {
        self.beat.set(self.clock.when(net_now(&self.net)));
        self.remote.beat().await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        self.remote.list(prefix).await
    }

    async fn put(&self, name: &str, value: &str, version: Option<u64>, stays: bool) -> Result<()> {
        self.remote.put(name, value, version, stays).await
    }

    async fn remove(&self, name: &str, version: u64) -> Result<()> {
        self.remote.remove(name, version).await
    }
}

/// A part that keeps itself known.
pub(crate) struct Member {
    known: Rc<Known<Noting, Net>>,
    claim: Claim,
    names: Names,
    planted: Option<Planted>,
    /// It does not serve before it is known: a server.
    waits: bool,
    /// It has been known.
    was_known: Rc<Cell<bool>>,
    /// Whether the volume that it has opened is in the store where it always was.
    bound: Option<(Files, Slot<bool>)>,
}

/// What a part is to do.
pub(crate) enum Turn {
    /// It goes on.
    Goes,
    /// It may be what it is to be.
    Enters,
    /// It has the name: its store is to be opened.
    Opens,
    /// Its volume is in the store where it always was.
    Serves(Files),
    /// It says why, and exits.
    Ends,
}

impl Member {
    /// One, and what keeps it known, which tells `hears` where the nodes are.
    pub(crate) fn new(
        net: &Net,
        (clock, names, planted): (Clock, Names, Option<Planted>),
        (claim, waits): (Claim, bool),
        hears: impl Fn(Option<Vec<(u16, SocketAddrV4)>>) + 'static,
    ) -> (Member, Work) {
        let beat = Rc::new(Cell::new(Time(0)));
        let remote = Remote::new(net.clone());
        let way = Noting { remote, net: net.clone(), clock, beat: Rc::clone(&beat) };
        let known = Known::new(way, net.clone(), claim.clone());
        let was_known = Rc::new(Cell::new(false));
        let keeps = Rc::clone(&known).keep({
            let (net, names, claim) = (net.clone(), names.clone(), claim.clone());
            let was_known = Rc::clone(&was_known);
            move |nodes: Option<Vec<_>>| {
                if nodes.is_some() {
                    was_known.set(true);
                    names.has(&claim, beat.get(), clock.when(net_now(&net)));
                }
                hears(nodes);
            }
        });
        let member = Member { known, claim, names, planted, waits, was_known, bound: None };
        (member, Box::pin(keeps))
    }

    /// What it is to do, which serves already or not.
    pub(crate) fn turn(&mut self, serves: bool) -> Turn {
        let standing = self.known.standing();
        let dies = self.planted == Some(Planted::Mortal) && self.was_known.get();
        if dies && standing == Standing::Unheard {
            return Turn::Ends;
        }
        if serves {
            return if self.known.is_refused() { Turn::Ends } else { Turn::Goes };
        }
        if let Some((_, bound)) = &self.bound {
            let Some(is_own) = bound.borrow_mut().take() else { return Turn::Goes };
            let Some((volume, _)) = self.bound.take_if(|_| is_own) else { return Turn::Ends };
            return Turn::Serves(volume);
        }
        match self.known.is_decided(self.waits) {
            false => Turn::Goes,
            true if matches!(standing, Standing::Refused(_)) => Turn::Ends,
            true if self.waits => Turn::Opens,
            true => Turn::Enters,
        }
    }

    /// It has opened a volume, which it may serve if it was never in another store; else it leaves.
    pub(crate) fn binds(&mut self, volume: Files, drawn: u64) -> Work {
        let slot = Slot::default();
        self.bound = Some((volume.clone(), Rc::clone(&slot)));
        let (known, names, claim) =
            (Rc::clone(&self.known), self.names.clone(), self.claim.clone());
        let is_unbound = self.planted == Some(Planted::Unbound);
        Box::pin(async move {
            let own = identity(&*volume, || Ok(drawn)).await.unwrap();
            let is_own = is_unbound || known.bind(VOLUME, &own).await == own;
            if !is_own {
                names.leaves(&claim);
                known.leave().await;
            }
            *slot.borrow_mut() = Some(is_own);
        })
    }
}
