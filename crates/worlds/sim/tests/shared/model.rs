//! What a file and a name may hold: the judges of the walk.
//!
//! A byte is a register: a read finds what some write put there, unless another write, which began
//! after that one had ended, had itself ended before the read began. A write that was seen has
//! ended where it was seen. What is not flushed is in doubt from a node's loss of power on: it may
//! be found, and so may what it wrote over, until a sync of its host says which. Only where that
//! host's DPU side has died, too, a sync says nothing. A write that was under way when its client
//! died is done again by the next one, so it may come back until it is answered; an append is done
//! once, unless the server has lost power meanwhile. A truncation that
//! is answered is durable at the nodes; its size is, once it is synced.

use std::collections::BTreeSet;

/// Bytes of a cell: no divisor of what is a unit anywhere below.
pub(crate) const CELL: u64 = 500;
/// Cells of a file: three strips.
pub(crate) const CELLS: u64 = 300;
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Op {
    /// 0 writes zeros.
    pattern: u64,
    begun: u64,
    ended: u64,
    durable: bool,
    /// A node lost power before it was durable.
    doubtful: bool,
    /// The client that did it, or began it, has died: nobody knows in which boots of nodes.
    orphan: bool,
    /// A truncation.
    cuts: bool,
    /// It is done again by another life of its client.
    repeats: bool,
    /// Whose it is.
    host: usize,
    /// Its host's cache may have lost it; its host was told so.
    unkept: bool,
    failed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Put {
    op: usize,
    /// When a read that found it had ended.
    seen: u64,
    /// Another host has found it: no cache can lose it any more.
    shared: bool,
    /// When a read that did not find it had ended, though it was done: it was lost, for ever.
    gone: u64,
}

impl Put {
    fn new(op: usize) -> Put {
        Put { op, seen: NEVER, shared: false, gone: NEVER }
    }
}

#[derive(Clone, Copy, Debug)]
struct Size {
    least: u64,
    most: u64,
    from: u64,
    until: u64,
}

/// Losses of power: of nodes, of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    pub(crate) nodes: u64,
    pub(crate) server: u64,
}

/// What a change of a size was told at its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Since {
    losses: Losses,
    doubts: u64,
}

/// The model of one file.
pub(crate) struct File {
    /// Hosts have caches.
    is_cached: bool,
    ops: Vec<Op>,
    /// What each puts into a cell.
    contents: Vec<Vec<u8>>,
    cells: Vec<Vec<Put>>,
    sizes: Vec<Size>,
    /// Of all sizes since the last that is durable.
    since: (u64, u64),
    losses: Losses,
    /// A change of the size has failed, or was forgotten by a node: the size may be another later.
    unsure: bool,
    /// Who changed the size last; what it is then, and since when, if a sync can say so.
    sizer: Option<usize>,
    sized: Option<(u64, u64, u64)>,
    /// Since then: that client has died, a node has lost power.
    orphan: bool,
    doubtful: bool,
    /// Times that what a cache had of the size came into doubt.
    doubts: u64,
    /// The server has lost power since the size was changed last, and how often a sync then proved
    /// that it was not lost.
    forgotten: bool,
    /// Hosts of which a sync has failed since: each hears once, so their next ones prove nothing.
    heard: BTreeSet<usize>,
    pub(crate) sizes_proved: u64,
}

/// The byte that a write puts at a place. Cells of one write are alike, so that an append that is
/// done twice is known where it was not meant to be.
pub(crate) fn byte(pattern: u64, at: u64) -> u8 {
    if pattern == 0 {
        return 0;
    }
    let mixed = (pattern << 32 ^ (at % CELL)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 56) as u8
}

/// What a write puts into each cell.
fn cell(pattern: u64) -> Vec<u8> {
    (0..CELL).map(|at| byte(pattern, at)).collect()
}

/// What a write of so many bytes puts, whole cells.
pub(crate) fn bytes(pattern: u64, len: u64) -> Vec<u8> {
    cell(pattern).repeat((len / CELL) as usize)
}

impl Op {
    fn new(pattern: u64, begun: u64, host: usize) -> Op {
        Op {
            pattern,
            begun,
            ended: NEVER,
            durable: false,
            doubtful: false,
            orphan: false,
            cuts: false,
            repeats: false,
            host,
            unkept: false,
            failed: false,
        }
    }
}

impl File {
    pub(crate) fn new(is_cached: bool) -> File {
        let zeros = Op { durable: true, ended: 0, ..Op::new(0, 0, usize::MAX) };
        File {
            is_cached,
            ops: vec![zeros],
            contents: vec![cell(0)],
            cells: vec![vec![Put::new(0)]; CELLS as usize],
            sizes: vec![Size { least: 0, most: 0, from: 0, until: NEVER }],
            since: (0, 0),
            losses: Losses::default(),
            unsure: false,
            sizer: None,
            sized: None,
            orphan: false,
            doubtful: false,
            doubts: 0,
            forgotten: false,
            heard: BTreeSet::new(),
            sizes_proved: 0,
        }
    }

    /// The least that it was long since the last sync.
    pub(crate) fn least(&self) -> u64 {
        self.since.0
    }

    /// Whether everything that it was long since the last sync is the same.
    pub(crate) fn is_size_kept(&self) -> bool {
        self.since.0 == self.since.1
    }

    /// The least and the most that it may be long.
    pub(crate) fn size(&self) -> (u64, u64) {
        let last = self.sizes.last().unwrap();
        (last.least, last.most)
    }

    fn resize(&mut self, least: u64, most: u64, now: u64) {
        self.sizes.last_mut().unwrap().until = now;
        self.sizes.push(Size { least, most, from: now, until: NEVER });
        self.since = (self.since.0.min(least), self.since.1.max(most));
    }

    /// A write of `pattern` (0: zeros) to these bytes begins.
    pub(crate) fn begin(
        &mut self,
        host: usize,
        (from, to): (u64, u64),
        pattern: u64,
        now: u64,
    ) -> usize {
        self.ops.push(Op::new(pattern, now, host));
        self.contents.push(cell(pattern));
        let op = self.ops.len() - 1;
        let cells = self.cells.iter_mut().take((to / CELL) as usize).skip((from / CELL) as usize);
        cells.for_each(|puts| puts.push(Put::new(op)));
        op
    }

    /// It is a truncation: nodes answer it when it is durable.
    pub(crate) fn cuts(&mut self, op: usize) {
        self.ops[op].cuts = true;
    }

    pub(crate) fn pattern(&self, op: usize) -> u64 {
        self.ops[op].pattern
    }

    /// It is answered.
    pub(crate) fn end(&mut self, op: usize, now: u64) {
        let op = &mut self.ops[op];
        (op.ended, op.durable) = (now, op.cuts);
        op.doubtful &= !op.cuts;
    }

    /// Its client dies while it is under way, and asks again.
    pub(crate) fn repeats(&mut self, op: usize) {
        (self.ops[op].repeats, self.ops[op].orphan) = (true, true);
        let puts = self.cells.iter_mut().flatten().filter(|put| put.op == op);
        puts.for_each(|put| put.seen = NEVER);
    }

    /// The client of a host has died.
    pub(crate) fn orphaned(&mut self, host: usize) {
        let ops = self.ops.iter_mut().filter(|op| op.host == host && !op.durable);
        ops.for_each(|op| op.orphan = true);
        if self.sizer == Some(host) {
            self.orphan = true;
            self.sized = self.sized.filter(|_| !self.doubtful);
        }
    }

    /// The size is being changed, to something between.
    pub(crate) fn begin_size(&mut self, host: usize, (least, most): (u64, u64), now: u64) -> Since {
        (self.sizer, self.sized) = (Some(host), None);
        (self.orphan, self.doubtful, self.forgotten) = (false, false, false);
        let (old_least, old_most) = self.size();
        self.resize(least.min(old_least), most.max(old_most), now);
        Since { losses: self.losses, doubts: self.doubts }
    }

    pub(crate) fn losses(&self) -> Losses {
        self.losses
    }

    /// It was changed. `since` is what the beginning said.
    pub(crate) fn end_size(&mut self, (least, most): (u64, u64), since: Since, now: u64) {
        if since == (Since { losses: self.losses, doubts: self.doubts }) {
            self.resize(least, most, now);
            self.unsure = false;
            self.sized = Some((least, most, now));
        } else if since.doubts == self.doubts
            && since.losses.server == self.losses.server
            && !self.orphan
        {
            // What of it a node has lost, the next sync says.
            self.sized = Some((least, most, now));
        }
    }

    pub(crate) fn fail_size(&mut self) {
        self.unsure = true;
    }

    /// A sync of a host, which began at `begun` with `losses`, has succeeded: of this file, or of
    /// all that the host itself wrote. How much that was in doubt it has proved.
    pub(crate) fn synced(
        &mut self,
        (host, is_all): (usize, bool),
        begun: u64,
        losses: Losses,
    ) -> u64 {
        let is_own = is_all || self.is_cached;
        let ops = self.ops.iter_mut().filter(|op| op.ended < begun && !op.failed);
        // What others wrote is flushed, too, but where a node lost it before they gave it away.
        let is_kept = |op: &&mut Op| match op.host == host {
            true => !(op.doubtful && op.orphan),
            false => !(op.doubtful || is_own),
        };
        let mut proved = 0;
        for op in ops.filter(is_kept) {
            proved += u64::from(op.doubtful);
            (op.durable, op.unkept, op.doubtful) = (true, false, false);
        }
        if self.sizer.is_some_and(|sizer| sizer != host && (is_own || self.doubtful))
            || losses.server != self.losses.server
            || self.forgotten && self.heard.contains(&host)
        {
            return proved;
        }
        if let Some((least, most, at)) = self.sized.filter(|(.., at)| *at < begun) {
            if self.size() != (least, most) {
                self.resize(least, most, at);
            }
            self.sizes_proved += u64::from(self.forgotten && self.since.0 != self.since.1);
            (self.since, self.unsure, self.doubtful) = ((least, most), false, false);
            self.forgotten = false;
        } else if losses == self.losses && self.sizes.last().unwrap().from < begun {
            self.since = self.size();
        }
        proved
    }

    /// A sync of all that a host wrote failed: the next of them says nothing of the size, nor of
    /// writes that may be lost.
    pub(crate) fn told_of_all(&mut self, host: usize) {
        let lost = self.ops.iter_mut().filter(|op| op.host == host && op.doubtful);
        lost.for_each(|op| op.failed = true);
        self.sized = self.sized.filter(|_| self.sizer != Some(host));
    }

    /// The cache of a host may lose, or has lost, what was not synced; `told`: and a sync said so.
    pub(crate) fn unkept(&mut self, host: usize, told: bool, now: u64) {
        let ops = self.ops.iter_mut().filter(|op| op.host == host && !op.durable);
        for op in ops.filter(|op| op.ended != NEVER) {
            (op.unkept, op.failed) = (true, op.failed || told);
        }
        if told {
            self.heard.insert(host);
        }
        if self.sizer == Some(host) {
            self.doubts += 1;
            self.sized = self.sized.filter(|_| !told);
            let (least, most) = self.since;
            self.unsure |= least != most;
            self.resize(least, most, now);
        }
    }

    /// Power is lost, by a node or by the server.
    pub(crate) fn power_lost(&mut self, is_node: bool, now: u64) {
        if is_node {
            self.losses.nodes += 1;
            let ops = self.ops.iter_mut().filter(|op| !op.durable);
            ops.for_each(|op| op.doubtful = true);
            self.doubtful = true;
            self.sized = self.sized.filter(|_| !self.orphan);
        } else {
            // What of the size it has forgotten the next sync says, to whatever life of its client.
            self.losses.server += 1;
            self.forgotten = true;
            self.heard.clear();
        }
        let (least, most) = self.since;
        // What a read finds now is not the last word: who resolves the file later believes nodes.
        self.unsure |= least != most;
        self.resize(least, most, now);
    }

    fn is_over(&self, puts: &[Put], put: &Put, when: u64) -> bool {
        let ended = self.ops[put.op].ended.min(put.seen);
        let is_after = |other: &Put| {
            let op = &self.ops[other.op];
            let is_kept = !op.doubtful && (!op.unkept || other.shared);
            op.begun > ended && op.ended.min(other.seen) < when && is_kept
        };
        put.gone < when || puts.iter().any(is_after)
    }

    /// `host` has found `one` in a cell: what it would have found instead is lost.
    fn found(&mut self, (cell, one): (usize, usize), host: usize, (begun, now): (u64, u64)) {
        let (ops, puts) = (&self.ops, &mut self.cells[cell]);
        let since = ops[puts[one].op].ended.min(puts[one].seen);
        for put in puts.iter_mut() {
            let op = &ops[put.op];
            // A host may keep a clean page of what a node has lost.
            let is_lost = op.unkept && !put.shared || op.doubtful && !self.is_cached;
            if is_lost && op.begun > since && op.ended < begun {
                put.gone = put.gone.min(now);
            }
        }
        let op = &ops[puts[one].op];
        if op.pattern != 0 && (!op.repeats || op.ended != NEVER) {
            puts[one].seen = puts[one].seen.min(now);
            puts[one].shared |= op.host != host;
        }
    }

    /// A read from `begun` on of `len` bytes at `offset` found these; or what is wrong with that.
    pub(crate) fn read(
        &mut self,
        host: usize,
        (begun, now): (u64, u64),
        (offset, len): (u64, u64),
        found: &[u8],
        steady: bool,
    ) -> Result<(), String> {
        let count = found.len() as u64;
        self.look((begun, now), (offset, len), count, steady)?;
        for cell in offset / CELL..(offset + count).div_ceil(CELL) {
            let start = cell * CELL;
            let end = (start + CELL).min(offset + count);
            let some = &found[(start - offset) as usize..(end - offset) as usize];
            let puts = &self.cells[cell as usize];
            let is = |at: &usize| self.contents[puts[*at].op].starts_with(some);
            let is_allowed = |at: &usize| !self.is_over(puts, &puts[*at], begun);
            let whole: Vec<usize> = (0..puts.len()).filter(is).filter(is_allowed).collect();
            if let [one] = whole[..] {
                self.found((cell as usize, one), host, (begun, now));
            } else if whole.is_empty() {
                let allowed: Vec<usize> = (0..puts.len()).filter(is_allowed).collect();
                let is_possible = |(found, at): (&u8, u64)| {
                    allowed.iter().any(|put| *found == byte(self.ops[puts[*put].op].pattern, at))
                };
                if let Some(at) = some.iter().zip(start..).position(|byte| !is_possible(byte)) {
                    return Err(self.explain(cell, at, some, begun));
                }
            }
        }
        Ok(())
    }

    fn explain(&self, cell: u64, at: usize, some: &[u8], begun: u64) -> String {
        let puts = &self.cells[cell as usize];
        let (offset, found) = (cell * CELL + at as u64, &some[at..some.len().min(at + 8)]);
        let mut text = format!("byte {offset} is wrong, {found:?}; read from {begun}:");
        for put in puts {
            let op = &self.ops[put.op];
            let here = some[at] == byte(op.pattern, cell * CELL + at as u64);
            let over = self.is_over(puts, put, begun);
            text += &format!("\n  {op:?} {put:?} over {over} found {here}");
        }
        text
    }

    /// The size that a read or `getattr` tells of.
    pub(crate) fn look(
        &mut self,
        (begun, now): (u64, u64),
        (offset, len): (u64, u64),
        count: u64,
        steady: bool,
    ) -> Result<(), String> {
        let (least, most) = match count {
            _ if count == len => (offset + len, NEVER),
            0 => (0, offset),
            _ => (offset + count, offset + count),
        };
        let fits = |size: &Size| size.until >= begun && size.least <= most && size.most >= least;
        if !self.sizes.iter().any(fits) {
            let sizes = &self.sizes;
            return Err(format!("{count} of {len} at {offset} from {begun} on, sizes {sizes:?}"));
        }
        let last = self.sizes.last_mut().unwrap();
        let is_last = last.from < begun && steady && !self.unsure;
        if is_last && least == most && (last.least, last.most) != (least, most) {
            self.resize(least, most, now);
        }
        Ok(())
    }
}

/// What a name leads to, or may.
pub(crate) struct Name {
    /// Values with the time in which each is possible; [`ANY`]: something.
    values: Vec<(u64, u64, u64)>,
    /// What was over then does not come back.
    synced: u64,
    /// What it was made last and surely, and by which host.
    last: Option<(u64, usize)>,
    /// The server has lost power since, when that was not synced: the next sync of that host fails,
    /// or it is so.
    doubt: Option<(u64, usize)>,
}

/// A name that leads to something, not known what.
pub(crate) const ANY: u64 = u64::MAX;
/// A name that leads nowhere.
pub(crate) const NONE: u64 = 0;

impl Name {
    pub(crate) fn new() -> Name {
        Name { values: vec![(NONE, 0, NEVER)], synced: 0, last: None, doubt: None }
    }

    /// The only value there can be.
    pub(crate) fn exact(&self) -> Option<u64> {
        let mut now = self.values.iter().filter(|(.., until)| *until == NEVER);
        match (now.next(), now.next()) {
            (Some((value, ..)), None) if *value != ANY => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn begin(&mut self, value: u64, now: u64) {
        (self.last, self.doubt) = (None, None);
        self.values.push((value, now, NEVER));
    }

    /// What it is to be by what was begun last.
    pub(crate) fn begun(&self) -> u64 {
        self.values.last().unwrap().0
    }

    /// A host has made it this.
    pub(crate) fn made(&mut self, host: usize, value: u64, now: u64) {
        self.set(value, now);
        self.last = Some((value, host));
    }

    /// It is this now, and nothing else.
    fn set(&mut self, value: u64, now: u64) {
        let open = self.values.iter_mut().filter(|(.., until)| *until == NEVER);
        open.for_each(|(.., until)| *until = now);
        self.values.push((value, now, NEVER));
    }

    /// What was begun last did not happen.
    pub(crate) fn undo(&mut self, now: u64) {
        if let Some((.., until)) = self.values.last_mut() {
            *until = now;
        }
    }

    /// It may be this, too.
    pub(crate) fn may_be(&mut self, value: u64, now: u64) {
        self.values.push((value, now, NEVER));
    }

    /// A sync of a host that began then has succeeded, `sure`: after the server's last loss of
    /// power. How much that was in doubt it has proved.
    pub(crate) fn synced(&mut self, host: usize, sure: bool, begun: u64) -> u64 {
        self.synced = self.synced.max(begun);
        let proved = self.doubt.take_if(|(_, of)| *of == host && sure);
        if let Some((value, _)) = proved {
            self.set(value, begun);
        }
        u64::from(proved.is_some())
    }

    /// A sync of a host failed: what it had made may be gone.
    pub(crate) fn told(&mut self, host: usize) {
        self.doubt.take_if(|(_, of)| *of == host);
    }

    /// The server loses power.
    pub(crate) fn power_lost(&mut self) {
        let synced = self.synced;
        let values = self.values.iter_mut().filter(|(.., until)| *until >= synced);
        values.for_each(|(.., until)| *until = NEVER);
        self.doubt = self.doubt.or(self.last);
        self.last = None;
    }

    /// A look that began then found this.
    pub(crate) fn look(&self, begun: u64, found: u64) -> Result<(), String> {
        let fits = |(value, _, until): &(u64, u64, u64)| {
            *until >= begun
                && (*value == found
                    || (*value == ANY && found != NONE)
                    || (found == ANY && *value != NONE))
        };
        if self.values.iter().any(fits) {
            return Ok(());
        }
        Err(format!("found {found} from {begun} on, of {:?}", self.values))
    }
}

#[test]
fn a_sync_proves_a_size_to_whom_no_loss_was_told() {
    let sizes_after = |heard: &[usize]| {
        let mut file = File::new(false);
        let since = file.begin_size(1, (CELL, CELL), 1);
        file.end_size((CELL, CELL), since, 2);
        file.power_lost(false, 3);
        heard.iter().for_each(|host| file.unkept(*host, true, 4));
        file.synced((0, false), 5, file.losses());
        file.size()
    };
    assert_eq!(sizes_after(&[]), (CELL, CELL));
    assert_eq!(sizes_after(&[0]), (0, CELL));
    assert_eq!(sizes_after(&[1]), (0, CELL));
}
