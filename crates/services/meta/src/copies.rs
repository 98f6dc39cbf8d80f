//! Files with copies: what a writer left at their members is decided and carried out (R5), and what
//! a member lacks it is given.
//!
//! Whoever decides has sealed the file at all its members, so nothing of it changes meanwhile. What
//! a member lacks is read where it is and written to all of them, as a write under the seal: it
//! goes over whatever they have, so they hold the same then, and who does this twice, or ends in
//! its midst, does no harm.
//!
//! A member that does not answer is *left out*: a file says durably which of its members *lack*
//! something, before it is written to without them. What was acknowledged before all members have,
//! so those that stay have it. Who is back is *filled*, in the file's turn, while nobody writes.
//!
//! A node that has lost power *doubts* its copies, and serves none of them before it is told to
//! trust them, but under a seal that it was shown since. It has no say in what is decided, unless
//! all members doubt; then the newest that any of them has goes forward.

use std::collections::{BTreeMap, BTreeSet};

use outboard_base::limits::FILE_SIZE_MAX;
use outboard_base::task::{join_all, try_join_abreast};
use outboard_base::{Errno, Ino, Result};
use outboard_cluster::{Answer, Entry, Role, verdict};
use outboard_dfs::DataError;
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::spread::Spread;
use outboard_medium::Medium;
use outboard_wire::shared::call::{
    CLAIMS_MAX, Call, Claim, Decided, Grant, Layout, Mode, Object, Reply, STRIP_MIN, Version,
};
use outboard_wire::shared::{Coordinate, Peer, Strategy};

use crate::Meta;
use crate::clients::Who;
use crate::delegations::Held;
use crate::grants::NOBODY;
use crate::housekeeping::LATER;
use crate::nodes::{PATIENCE, QUICK};
use crate::stripes::{self, is_coded};

/// The epoch of all groups, as long as their members do not change.
const EPOCH: u32 = 1;
/// Strips that are given to members at a time.
const ABREAST: usize = 16;
/// Strips that are given to who is filled before others have the file in between; the next time
/// twice as many, so that it comes to an end beside a writer that goes over them.
pub(crate) const SLICE: usize = 512;
pub(crate) const STRIP: u64 = STRIP_MIN as u64;
/// No file has more: who claims to is not asked for ever.
const STRIPS_MAX: u64 = FILE_SIZE_MAX.div_ceil(STRIP);

/// What its nodes say that a file takes, in units of 512 bytes.
pub(crate) fn blocks_of(layout: &Layout, found: &[Object]) -> u64 {
    let each = found.iter().map(|object| object.bytes.div_ceil(512));
    match layout.strategy {
        Strategy::Single => each.sum(),
        Strategy::Ring | Strategy::BinaryTree => each.max().unwrap_or(0),
        Strategy::Parity => each.max().unwrap_or(0).saturating_mul(layout.k.into()),
    }
}

/// A file whose members are sealed.
pub(crate) struct Sealed {
    /// With the members that lack nothing, or are filled now.
    pub(crate) spread: Spread,
    pub(crate) members: Vec<Coordinate>,
    /// Of each whether it is filled.
    fills: Vec<bool>,
    fence: u64,
}

/// Who is given what it lacks, beside the members that have all.
#[derive(Clone, Copy, Default)]
pub(crate) struct Filled<'a> {
    /// Members that lack something, by their ranks.
    pub(crate) ranks: u16,
    /// Nodes that are no members, and may have nothing.
    pub(crate) joiners: &'a [Coordinate],
    /// How many strips they are given before others have the file.
    pub(crate) slice: usize,
    /// A member that is left out although it answers, if others stay.
    pub(crate) without: Option<u16>,
}

impl Filled<'_> {
    fn is_nobody(&self) -> bool {
        self.ranks == 0 && self.joiners.is_empty()
    }
}

/// Of each member the boot in which it doubts what it has of a file, if it does.
type Doubts = Vec<Option<u64>>;

/// What members said of some strips: what they have, and what of it is damaged.
struct Said {
    pages: Vec<Vec<Claim>>,
    damaged: Vec<BTreeSet<u64>>,
}

/// What becomes of a strip.
#[derive(Clone, Copy)]
pub(crate) struct Strip {
    pub(crate) number: u64,
    pub(crate) version: Version,
    /// Members that have it whole, by their ranks: one, or, with parities, as many as suffice.
    pub(crate) sources: u32,
}

impl Sealed {
    fn object(&self) -> u64 {
        self.spread.attr.ino.0
    }

    /// As what the server reads and writes it.
    fn held(&self) -> Held {
        Held { mode: Mode::Write, fence: self.fence }
    }

    /// What of a strip has a say (R5): all but who is filled, or doubts; all, if too few do not.
    /// Ranks and what they claim, and whether it is the latter.
    fn voters<'c>(&self, claims: &'c [Claim], doubts: &Doubts) -> (Vec<(usize, &'c Claim)>, bool) {
        let ranks = claims.iter().enumerate().zip(self.fills.iter().zip(doubts));
        let active: Vec<_> = ranks.filter(|(_, (fills, _))| !**fills).collect();
        let sound = active.iter().filter(|(_, (_, doubts))| doubts.is_none()).count();
        let all_vote = sound < self.spread.layout.suffice();
        let voters = active.into_iter().filter(|(_, (_, doubts))| all_vote || doubts.is_none());
        (voters.map(|(claim, _)| claim).collect(), all_vote)
    }

    /// What is damaged at some members has a say all the same, as it was taken there: it is read
    /// where it is whole, and given to them. The strip with its sources, and the ranks that are
    /// given it: nobody, where too few have it whole; then it stays as it is.
    fn without(&self, strip: Strip, claims: &[Claim], damaged: u32) -> (Strip, u32) {
        if damaged == 0 {
            return (strip, 0);
        }
        let suffice = self.spread.layout.suffice();
        let is_whole = |(claim, fills): (&Claim, &bool)| !fills && has(claim, strip.version);
        let all = ranks_of(claims.iter().zip(&self.fills).map(is_whole));
        let sources = [strip.sources & !damaged, all & !damaged];
        let enough = sources.into_iter().find(|some| some.count_ones() as usize >= suffice);
        match enough.filter(|_| strip.version != Version::default()) {
            Some(sources) => (Strip { sources, ..strip }, damaged),
            None => (strip, 0),
        }
    }

    /// By what those say that have a say. If all doubt nobody must have a version for it to go
    /// forward: what was synced is at all of them, and the rest anywhere. Of whom nothing is told
    /// had it, and a hole took it away, or never had it, and then it was not done: in either case
    /// it may stay, or go.
    fn decide(&self, number: u64, claims: &[Claim], doubts: &Doubts) -> Result<Strip> {
        let of_model = |version: Version| outboard_cluster::Version {
            fence: version.fence,
            seq: version.sequence,
        };
        let (voters, all_doubt) = self.voters(claims, doubts);
        if is_coded(&self.spread.layout) {
            let k = self.spread.layout.suffice();
            let decided = stripes::decide(k, &voters, all_doubt);
            if decided.is_none() {
                let ino = self.spread.attr.ino;
                tracing::error!(%ino, stripe = number, "more of a stripe is lost than it bears");
            }
            let (version, sources) = decided.ok_or(Errno::EUCLEAN)?;
            return Ok(Strip { number, version, sources });
        }
        let joined = if all_doubt { u32::MAX } else { EPOCH };
        let (there, gone): (Vec<_>, Vec<_>) =
            voters.into_iter().partition(|(_, claim)| is_told(claim));
        let voters = if there.is_empty() { gone } else { there };
        let node_of = |rank: usize| self.members.get(rank).map_or(0, |member| member.node);
        let answers = voters.into_iter().map(|(rank, claim)| Answer {
            member: Entry { node: node_of(rank), life: 1, role: Role::Active, joined },
            claim: outboard_cluster::Claim {
                stable: Some(of_model(claim.stable)),
                pending: claim.pending.map(|taken| (of_model(taken.version), taken.epoch)),
            },
        });
        let decided = verdict(&answers.collect::<Vec<Answer>>()).ok_or(Errno::EIO)?;
        let source = self.members.iter().position(|member| member.node == decided.source);
        Ok(Strip {
            number,
            version: Version { fence: decided.version.fence, sequence: decided.version.seq },
            sources: 1 << source.ok_or(Errno::EIO)?,
        })
    }
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// A client has a file again, under another fence: not all members took what it asked under
    /// this one. It may be recalled meanwhile, so this waits for no turn. A member that was not
    /// reached, and was not the last time either, is left out, whatever the server reaches.
    pub(crate) async fn regrant(
        &self,
        who: Who,
        ino: Ino,
        fence: u64,
        unreached: Option<u16>,
    ) -> Result<Grant> {
        let _mending = self.mends().exclusive(ino).await;
        let held = self.has_already(ino, who.client, Mode::Read).ok_or(Errno::ESTALE)?;
        let spread = self.volume().spread(ino).await?;
        if held.fence != fence || !spread.layout.is_redundant() {
            // It was done before, and the answer was lost.
            return self.grant_again(who.client, ino, held).await;
        }
        let is_sound = async || {
            let doubts = self.who_doubts(&self.nodes_of(&spread), ino.0).await;
            doubts.is_ok_and(|doubts| doubts.iter().all(Option::is_none))
        };
        if held.mode == Mode::Write || !is_sound().await {
            // Whoever is granted it after this is beyond this seal. How long it is its writer
            // knows.
            let seal = self.delegations().raise_for(ino, who.client, fence)?;
            let spread = self.volume().spread(ino).await?;
            let without = self.chores().is_unreached(ino, unreached, self.net().now());
            let fills = Filled { without, ..Filled::default() };
            self.make_equal(spread, seal, fills).await?;
        }
        let _change = self.changes().exclusive(ino).await;
        let now = self.has_already(ino, who.client, held.mode);
        if now.is_none_or(|now| now.fence != fence) {
            return Err(Errno::ESTALE);
        }
        self.needs_lease(who)?;
        let held = self.delegations().go_on(ino, who.client)?;
        if held.mode == Mode::Write {
            self.delegations().resolved(ino);
        }
        let spread = self.volume().spread(ino).await?;
        self.grant_of(who.client, &spread, held).await
    }

    /// Some members of a file may have what its writer was not told to be done.
    pub(crate) async fn undone(&self, client: u64, ino: Ino, fence: u64) -> Result<()> {
        let _change = self.changes().exclusive(ino).await;
        if !self.delegations().writes(ino, client, fence) {
            return Err(Errno::ESTALE);
        }
        self.delegations().must_resolve(ino);
        Ok(())
    }

    /// The nodes that a file lies on now: all that have nothing to be filled with.
    pub(crate) fn nodes_of(&self, spread: &Spread) -> Vec<Coordinate> {
        let all = self.placement().of(&spread.laid_out());
        let has_all = |(rank, _): &(usize, Coordinate)| !is_in(spread.lacking, *rank);
        all.into_iter().enumerate().filter(has_all).map(|(_, node)| node).collect()
    }

    /// The first strip of a file that not all of these have the same version of.
    pub(crate) async fn differs(
        &self,
        spread: &Spread,
        members: &[Coordinate],
    ) -> Result<Option<u64>> {
        let mut next = Some(0);
        while let Some(first) = next {
            let pages = self.claims_of(members, spread.attr.ino.0, first).await?;
            let known = known_to(&pages);
            let newest = |page: &Vec<Claim>| -> Vec<(u64, Version)> {
                let known =
                    page.iter().filter(|claim| known.is_none_or(|last| claim.strip <= last));
                let newest = known.map(|claim| {
                    (claim.strip, claim.pending.map_or(claim.stable, |taken| taken.version))
                });
                newest.collect()
            };
            let each: Vec<_> = pages.iter().map(newest).collect();
            let Some((first, rest)) = each.split_first() else { return Ok(None) };
            for other in rest {
                let mut pairs = first.iter().zip(other);
                if let Some((one, other)) = pairs.find(|(one, other)| one != other) {
                    return Ok(Some(one.0.min(other.0)));
                }
                if first.len() != other.len() {
                    let longer = if first.len() > other.len() { first } else { other };
                    let at = first.len().min(other.len());
                    return Ok(longer.get(at).map(|(strip, _)| *strip));
                }
            }
            next = known.and_then(|known| known.checked_add(1));
        }
        Ok(None)
    }

    /// Seals a file, as it is since the fence was raised, at its members; then all hold the same of
    /// it, also those that are filled, and what that is. Those that doubted it trust it. Who does
    /// not answer is left out, if one that does not doubt stays; so is who could not take what it
    /// lacks the last two times.
    ///
    /// # Errors
    /// `EAGAIN` if somebody else seals it meanwhile, `EIO` if too few answer, or one that is to
    /// join; `EINPROGRESS` if those that are filled were given a slice and lack more.
    pub(crate) async fn make_equal(
        &self,
        spread: Spread,
        fence: u64,
        fills: Filled<'_>,
    ) -> Result<(Vec<Object>, Spread)> {
        let ino = spread.attr.ino;
        let unreached = self.data().take_unreached(ino.0);
        let again = self.chores().is_unreached(ino, unreached, self.net().now());
        let fills = Filled { without: fills.without.or(again), ..fills };
        let equal = self.try_to_make_equal(spread, fence, fills).await;
        equal.map_err(|errno| if errno == Errno::ESTALE { Errno::EAGAIN } else { errno })
    }

    async fn try_to_make_equal(
        &self,
        spread: Spread,
        fence: u64,
        fills: Filled<'_>,
    ) -> Result<(Vec<Object>, Spread)> {
        let sealed = self.seal_or_leave_out(spread, fence, fills).await?;
        let mut room = if fills.is_nobody() { usize::MAX } else { fills.slice };
        let (object, members) = (sealed.object(), &sealed.members);
        let is_coded = is_coded(&sealed.spread.layout);
        if is_coded {
            // What goes forward goes over what is not there at enough of them.
            self.flush_members(object, members).await?;
        }
        let (mut next, mut lacked) = (Some(0), BTreeSet::new());
        let mut doubting: Doubts = vec![None; members.len()];
        while let Some(first) = next {
            let pages = self.claims_of(members, object, first).await?;
            // After what they said: who does not doubt now did not then.
            let doubts = self.who_doubts(members, object).await?;
            if first > 0 && doubts != doubting {
                return Err(Errno::EIO);
            }
            doubting = doubts;
            let known = known_to(&pages);
            let said = Said {
                damaged: self.damaged_strips(members, object, first, &doubting).await?,
                pages,
            };
            let given = self.decide_some(&sealed, (&said, &doubting), known, &mut room).await?;
            lacked.extend(given);
            next = known.and_then(|known| known.checked_add(1));
        }
        let mut found = self.seal_at(members, object, fence).await?;
        // Who is filled may have been before, in part.
        let is_filled = |rank: usize| sealed.fills.get(rank).copied().unwrap_or(false);
        let is_sound = |(rank, _): &(usize, &Object)| !lacked.contains(rank) && !is_filled(*rank);
        let end = found.iter().enumerate().filter(is_sound).map(|(_, object)| object.end).max();
        if let Some(end) = end.filter(|_| !is_coded)
            && found.iter().any(|object| object.end > end)
        {
            let grant = self.grant_to_all(&sealed).await?;
            self.in_time(self.data().hole(&grant, end..u64::MAX)).await?;
            found = self.seal_at(members, object, fence).await?;
        }
        if is_coded {
            found = self.cut_behind(&sealed, found, end).await?;
        }
        if !fills.is_nobody() || is_coded || doubting.iter().any(Option::is_some) {
            self.flush_members(object, members).await?;
            self.trust(&sealed, &doubting).await?;
        }
        Ok((found, sealed.spread))
    }

    /// A file that nobody has is about to be written to: it goes on without members that are away.
    /// All that was acknowledged the others have.
    pub(crate) async fn leave_out_away(&self, ino: Ino) -> Result<()> {
        let spread = self.volume().spread(ino).await?;
        if !spread.layout.is_redundant() {
            return Ok(());
        }
        let all = self.placement().of(&spread.laid_out());
        let now = self.net().now();
        let is_away = |node: &Coordinate| self.chores().is_away(node.node, now);
        let ranks = all.iter().enumerate().filter(|(rank, _)| !is_in(spread.lacking, *rank));
        let (away, rest): (Vec<_>, Vec<_>) = ranks.partition(|(_, node)| is_away(node));
        let suffice = spread.layout.suffice();
        if away.is_empty() || rest.len() < suffice {
            return Ok(());
        }
        let rest: Vec<Coordinate> = rest.into_iter().map(|(_, node)| *node).collect();
        match self.who_doubts(&rest, ino.0).await {
            Ok(doubts) if doubts.iter().filter(|doubts| doubts.is_none()).count() >= suffice => {}
            // It is for who decides.
            _ => return Ok(()),
        }
        let away = away.iter().fold(0, |ranks, (rank, _)| ranks | 1 << rank);
        self.leave_out(ino, (&rest, away), None).await
    }

    /// A file goes on without some ranks, of whom nobody knows what they lose from now on. So what
    /// the others have is durable first. Of who decides the seal must be the last: else others have
    /// been left out since, or somebody writes.
    async fn leave_out(
        &self,
        ino: Ino,
        (stay, ranks): (&[Coordinate], u16),
        seal: Option<u64>,
    ) -> Result<()> {
        self.flush_members(ino.0, stay).await?;
        let _change = self.changes().exclusive(ino).await;
        let fence = match seal {
            Some(fence) => fence,
            None => self.delegations().raise(ino)?,
        };
        if !self.delegations().is_last(ino, fence) {
            return Err(Errno::EAGAIN);
        }
        let lacking = self.volume().spread(ino).await?.lacking | ranks;
        tracing::warn!(%ino, lacking, "a file goes on without some of its copies");
        self.volume().set_lacking(ino, lacking).await
    }

    /// The members of a file take nothing below a fence any more. It goes on without those that do
    /// not answer, and says so, durably.
    async fn seal_or_leave_out(
        &self,
        mut spread: Spread,
        fence: u64,
        fills: Filled<'_>,
    ) -> Result<Sealed> {
        let (ino, suffice) = (spread.attr.ino, spread.layout.suffice());
        let mut all = self.placement().of(&spread.laid_out());
        let count = all.len();
        all.extend(fills.joiners);
        let ranks = (0..all.len()).filter(|rank| *rank >= count || !is_in(spread.lacking, *rank));
        let call = Call::Seal { object: ino.0, fence };
        let asked = ranks.filter_map(|rank| Some((rank, *all.get(rank)?)));
        let asked = asked.map(async |(rank, member)| {
            (rank, member, self.ask_for(peer(&member), &call, QUICK).await)
        });
        let (mut members, mut filled, mut away) = (Vec::new(), Vec::new(), 0);
        let answers = join_all(asked.collect()).await;
        let answering = answers.iter().filter(|(_, _, answer)| answer.is_ok()).count();
        for (rank, member, answer) in answers {
            match answer {
                // One that joins is no member: it is given what it lacks, or does not join.
                Ok(_)
                    if rank < count
                        && fills.without == Some(member.node)
                        && answering > suffice =>
                {
                    self.chores().try_later(ino, self.net().now(), LATER);
                    away |= 1 << rank;
                }
                // Somebody else decides.
                Ok(Reply::Object(object)) if object.fence > fence => return Err(Errno::EAGAIN),
                Ok(Reply::Object(_)) => {
                    members.push(member);
                    filled.push(rank >= count || is_in(fills.ranks, rank));
                }
                // It lacks nothing yet that anybody counts on.
                Err(Errno::EIO) if rank >= count => return Err(Errno::EIO),
                Err(Errno::EIO) => {
                    self.chores().answered(member.node, false, self.net().now());
                    away |= 1 << rank;
                }
                Err(errno) => return Err(errno),
                Ok(_) => return Err(Errno::EPROTO),
            }
        }
        if away != 0 {
            let doubts = self.who_doubts(&members, ino.0).await?;
            let stays = filled.iter().zip(&doubts);
            if stays.filter(|(fills, doubts)| !**fills && doubts.is_none()).count() < suffice {
                return Err(Errno::EIO);
            }
            spread.lacking |= away;
            // Who is being filled lacks until it has all.
            self.leave_out(ino, (&members, away | fills.ranks), Some(fence)).await?;
        }
        self.tell_keys(&members).await;
        self.data().begins_anew(ino.0, fence);
        Ok(Sealed { spread, members, fills: filled, fence })
    }

    /// Whoever decides writes to all that are sealed.
    pub(crate) async fn grant_to_all(&self, sealed: &Sealed) -> Result<Grant> {
        self.grant_at(NOBODY, &sealed.spread, sealed.held(), sealed.members.clone()).await
    }

    /// Work at nodes, in the time that one is given for an answer.
    pub(crate) async fn in_time<T>(
        &self,
        work: impl Future<Output = std::result::Result<T, DataError>>,
    ) -> Result<T> {
        let done = self.within(PATIENCE, work).await;
        done.ok_or(Errno::EIO)?.map_err(|_| Errno::EIO)
    }

    async fn flush_members(&self, object: u64, members: &[Coordinate]) -> Result<()> {
        self.in_time(self.data().flush_members(object, members.iter().map(peer))).await
    }

    async fn who_doubts(&self, members: &[Coordinate], object: u64) -> Result<Doubts> {
        let call = Call::Doubts { object };
        let asked = members.iter().map(|member| self.ask_node(member.node, &call)).collect();
        let answers = join_all(asked).await.into_iter().map(|answer| match answer? {
            Reply::Number(boot) => Ok(Some(boot)),
            Reply::Done => Ok(None),
            _ => Err(Errno::EPROTO),
        });
        answers.collect()
    }

    /// Who doubted has all of a file, durably, if it is still in that boot.
    async fn trust(&self, sealed: &Sealed, doubting: &Doubts) -> Result<()> {
        let object = sealed.object();
        let doubting = sealed.members.iter().zip(doubting);
        let asked = doubting.filter_map(|(member, boot)| Some((member.node, (*boot)?)));
        let asked = asked
            .map(async |(node, boot)| self.ask_node(node, &Call::Trust { object, boot }).await);
        join_all(asked.collect()).await.into_iter().try_for_each(|answer| answer.map(drop))
    }

    /// Which strips from one on members that doubt have found damaged.
    async fn damaged_strips(
        &self,
        members: &[Coordinate],
        object: u64,
        from: u64,
        doubting: &Doubts,
    ) -> Result<Vec<BTreeSet<u64>>> {
        let call = Call::Damaged { object, from };
        let asked = members.iter().zip(doubting).map(async |(member, doubts)| {
            if doubts.is_none() {
                return Ok(BTreeSet::new());
            }
            match self.ask_node(member.node, &call).await? {
                Reply::Claims(claims) => Ok(claims.iter().map(|claim| claim.strip).collect()),
                _ => Err(Errno::EPROTO),
            }
        });
        join_all(asked.collect()).await.into_iter().collect()
    }

    /// What each member has of the strips from one on, as many as it says at once.
    async fn claims_of(
        &self,
        members: &[Coordinate],
        object: u64,
        from: u64,
    ) -> Result<Vec<Vec<Claim>>> {
        let call = Call::Claims { object, epoch: EPOCH, from };
        let asked = members.iter().map(|member| self.ask_node(member.node, &call));
        let answers = join_all(asked.collect()).await.into_iter().map(|answer| match answer? {
            Reply::Claims(claims)
                if claims.first().is_none_or(|one| one.strip >= from)
                    && claims.last().is_none_or(|one| one.strip < STRIPS_MAX) =>
            {
                Ok(claims)
            }
            _ => Err(Errno::EPROTO),
        });
        answers.collect()
    }

    /// Decides the strips that members have, up to one, and has that carried out; the ranks of
    /// those that lacked something. There is room for so many strips that somebody lacks.
    async fn decide_some(
        &self,
        sealed: &Sealed,
        (Said { pages, damaged }, doubts): (&Said, &Doubts),
        last: Option<u64>,
        room: &mut usize,
    ) -> Result<BTreeSet<usize>> {
        // What lies behind a truncation that is to be carried out goes.
        let cut = ends_at(&sealed.spread).map_or(u64::MAX, |end| end.div_ceil(STRIP));
        let strips = pages.iter().flatten().map(|claim| claim.strip);
        let strips = strips.filter(|strip| *strip < cut && last.is_none_or(|last| *strip <= last));
        let mut told: Vec<Vec<Decided>> = vec![Vec::new(); pages.len()];
        let mut lacking = Vec::new();
        for number in strips.collect::<BTreeSet<u64>>() {
            let claims: Vec<Claim> = pages.iter().map(|page| claim_of(page, number)).collect();
            let strip = sealed.decide(number, &claims, doubts)?;
            let is_damaged = |at: &BTreeSet<u64>| at.contains(&number);
            let damaged = ranks_of(damaged.iter().map(is_damaged));
            let (strip, damaged) = sealed.without(strip, &claims, damaged);
            for ((rank, claim), told) in claims.iter().enumerate().zip(&mut told) {
                let has_it = !is_among(damaged, rank) && has(claim, strip.version);
                if !has_it {
                    lacking.push((rank, strip));
                } else if claim.pending.is_some() {
                    told.push(Decided { strip: number, version: strip.version });
                }
            }
        }
        let asked = sealed.members.iter().zip(told).filter(|(_, decided)| !decided.is_empty());
        let asked = asked.map(async |(member, decided)| {
            let (object, fence) = (sealed.object(), sealed.fence);
            let call = Call::Resolve { object, fence, epoch: EPOCH, decided };
            match self.ask_node(member.node, &call).await? {
                Reply::Claims(lacks) if lacks.is_empty() => Ok(()),
                Reply::Claims(_) => Err(Errno::EIO),
                _ => Err(Errno::EPROTO),
            }
        });
        join_all(asked.collect()).await.into_iter().collect::<Result<()>>()?;
        let numbers: BTreeSet<u64> = lacking.iter().map(|(_, strip)| strip.number).collect();
        let first_left = numbers.iter().nth(*room).copied();
        lacking.retain(|(_, strip)| first_left.is_none_or(|left| strip.number < left));
        *room = room.saturating_sub(numbers.len());
        if !lacking.is_empty() {
            self.give_strips(sealed, &lacking).await?;
        }
        if first_left.is_some() {
            return Err(Errno::EINPROGRESS);
        }
        Ok(lacking.into_iter().map(|(rank, _)| rank).collect())
    }

    /// Members are given strips that they lack, as a member has them that has them whole: what lies
    /// behind its end goes later. Nothing is taken away before: a hole would be a newer version.
    async fn give_strips(&self, sealed: &Sealed, lacking: &[(usize, Strip)]) -> Result<()> {
        let found = self.seal_at(&sealed.members, sealed.object(), sealed.fence).await?;
        let grant = self.grant_to_all(sealed).await?;
        let strips: BTreeMap<u64, Strip> =
            lacking.iter().map(|(_, strip)| (strip.number, *strip)).collect();
        let (found, grant) = (&found, &grant);
        let each = strips.values().map(|strip| async move {
            let start = strip.number.checked_mul(STRIP).ok_or(Errno::EIO)?;
            let whole = start..start.checked_add(STRIP).ok_or(Errno::EIO)?;
            // Rows of stripes are the same at all of them, also behind what its sources have.
            let longest = found.iter().map(|object| object.end).max().unwrap_or(0);
            let sources = found.iter().zip(&sealed.members).enumerate();
            let sources = sources.filter(|(rank, _)| strip.sources >> rank & 1 == 1);
            let (ends, sources): (Vec<u64>, Vec<Coordinate>) =
                sources.map(|(_, (object, member))| (object.end, *member)).unzip();
            let there = ends.into_iter().max().unwrap_or(0).min(whole.end);
            if strip.version == Version::default() || there <= start {
                return self.in_time(self.data().hole_at_members(grant, whole)).await;
            }
            let source = Grant { nodes: sources, ..grant.clone() };
            if is_coded(&sealed.spread.layout) {
                let rows = longest.min(whole.end) - start;
                let mended = self.data().mend((&source, grant), strip.number, rows);
                return self.in_time(mended).await;
            }
            let len = usize::try_from(there - start).map_err(|_| Errno::EIO)?;
            let bytes = self.in_time(self.data().read(&source, start, len)).await?;
            self.in_time(self.data().write(grant, start, &bytes)).await
        });
        try_join_abreast(ABREAST, each).await.map(drop)
    }
}

/// Whether a member has a version, be it known to be done or not.
fn has(claim: &Claim, version: Version) -> bool {
    claim.stable == version || claim.pending.is_some_and(|taken| taken.version == version)
}

/// The ranks for which it is so.
fn ranks_of(is: impl Iterator<Item = bool>) -> u32 {
    is.enumerate().filter(|(_, is)| *is).fold(0, |all, (rank, _)| all | 1 << rank)
}

fn is_among(ranks: u32, rank: usize) -> bool {
    u32::try_from(rank).is_ok_and(|rank| ranks.checked_shr(rank).unwrap_or(0) & 1 == 1)
}

/// Whether a rank is among those.
pub(crate) fn is_in(ranks: u16, rank: usize) -> bool {
    is_among(ranks.into(), rank)
}

/// Whether a member says anything of a strip.
pub(crate) fn is_told(claim: &Claim) -> bool {
    claim.pending.is_some() || claim.stable != Version::default()
}

/// Where what members have of a file ends that anybody was answered: what a truncation that is to
/// be carried out, or a file's size, says.
fn ends_at(spread: &Spread) -> Option<u64> {
    if is_coded(&spread.layout) { stripes::ends_at(spread) } else { spread.cut }
}

/// Behind the last strip of a page that is full its member has said nothing yet.
fn known_to(pages: &[Vec<Claim>]) -> Option<u64> {
    let full = pages.iter().filter(|page| page.len() >= CLAIMS_MAX);
    full.filter_map(|page| page.last()).map(|claim| claim.strip).min()
}

/// What a member says of a strip.
fn claim_of(page: &[Claim], strip: u64) -> Claim {
    let at = page.binary_search_by_key(&strip, |claim| claim.strip).ok();
    let nothing = Claim { strip, stable: Version::default(), pending: None };
    at.and_then(|at| page.get(at)).copied().unwrap_or(nothing)
}

pub(crate) fn peer(member: &Coordinate) -> Peer {
    Peer::Node(member.node)
}
