//! Power loss at every point of a script, with every subset of what was not flushed, and with every
//! block torn at each of its sectors.
//!
//! Goal: the volume opens, its names and sizes are those after one of the script's steps, no
//! earlier than the last flush, no later than what had begun; what was flushed and left alone is
//! there to the byte; no file shows a byte of another. The same when power fails again while the
//! volume is being opened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use outboard_base::Errno;

use super::*;

const SECTOR: usize = 512;
/// Writes between two flushes at most: every subset of them is tried.
const PENDING_MAX: usize = 10;

#[derive(Clone, Debug)]
enum Op {
    Write(u64, Vec<u8>),
    Flush,
    Grow(u64),
}

/// A medium that keeps a record of everything that changes it.
#[derive(Default)]
struct Tape(Mutex<(Vec<u8>, Vec<Op>)>);

impl Tape {
    fn of(image: Vec<u8>) -> Arc<Tape> {
        Arc::new(Tape(Mutex::new((image, Vec::new()))))
    }

    fn at(&self) -> usize {
        self.0.lock().unwrap().1.len()
    }

    fn ops(&self) -> Vec<Op> {
        self.0.lock().unwrap().1.clone()
    }

    fn done(&self, op: Op) {
        let (image, ops) = &mut *self.0.lock().unwrap();
        apply(image, &op);
        ops.push(op);
    }
}

fn apply(image: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write(at, bytes) => image[index(*at)..][..bytes.len()].copy_from_slice(bytes),
        Op::Grow(len) => image.resize(image.len().max(index(*len)), 0),
        Op::Flush => {}
    }
}

impl Medium for Tape {
    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<(), Errno>, Buf) {
        let (image, _) = &*self.0.lock().unwrap();
        let (from, len) = (index(offset), buf.len());
        let found = image.get(from..from + len).map(|bytes| buf.copy_from_slice(bytes));
        (found.ok_or(Errno::EIO), buf)
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        self.done(Op::Write(offset, buf.to_vec()));
        (Ok(()), buf)
    }

    async fn flush(&self) -> Result<(), Errno> {
        self.done(Op::Flush);
        Ok(())
    }

    async fn grow(&self, len: u64) -> Result<(), Errno> {
        self.done(Op::Grow(len));
        Ok(())
    }

    fn len(&self) -> u64 {
        self.0.lock().unwrap().0.len() as u64
    }
}

/// What power loss may leave of `ops` after `image`: everything flushed, and of the writes behind
/// the last flush every subset, and all of them with one torn at each sector, from either side.
fn each_loss(image: &[u8], ops: &[Op], each: &mut dyn FnMut(Vec<u8>)) {
    let flushed = ops.iter().rposition(|op| matches!(op, Op::Flush)).map_or(0, |at| at + 1);
    let mut base = image.to_vec();
    ops[..flushed].iter().for_each(|op| apply(&mut base, op));
    // Growing is not undone: what is left is zeros.
    let (pending, grown): (Vec<&Op>, Vec<&Op>) =
        ops[flushed..].iter().partition(|op| matches!(op, Op::Write(..)));
    grown.into_iter().for_each(|op| apply(&mut base, op));
    assert!(pending.len() <= PENDING_MAX, "{} writes without a flush", pending.len());
    for subset in 0..1u32 << pending.len() {
        let mut left = base.clone();
        let kept = pending.iter().enumerate().filter(|(n, _)| subset >> n & 1 == 1);
        kept.for_each(|(_, op)| apply(&mut left, op));
        each(left);
    }
    // What is torn matters where it is read by its structure: in the metadata's blocks.
    let metadata = |op: &&&Op| matches!(op, Op::Write(at, _) if *at < SEGMENT);
    for torn in pending.iter().filter(metadata) {
        let Op::Write(at, bytes) = torn else { continue };
        for cut in (SECTOR..bytes.len().min(BLOCK)).step_by(SECTOR) {
            for kept in [0..cut, cut..bytes.len()] {
                let mut left = base.clone();
                for op in &pending {
                    if std::ptr::eq(*op, *torn) {
                        let part = bytes[kept.clone()].to_vec();
                        apply(&mut left, &Op::Write(at + kept.start as u64, part));
                    } else {
                        apply(&mut left, op);
                    }
                }
                each(left);
            }
        }
    }
}

fn read_all(service: &FileService<Arc<Tape>>, file: FileId, bytes: u32) -> Vec<u8> {
    let (range, buf) = run(service.read(ReadOp { file, offset: 0, bytes }, Buf::zeroed(0)));
    let held = &buf[range.unwrap()];
    assert_eq!(held.len(), bytes as usize);
    held.to_vec()
}

/// Every directory, and every file with what it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    directories: BTreeMap<u32, Vec<u8>>,
    files: BTreeMap<u32, (u32, Vec<u8>, Vec<u8>)>,
}

impl Seen {
    fn of(service: &FileService<Arc<Tape>>) -> Seen {
        let mut seen = Seen::default();
        let directories = |id, _, name: &[u8]| {
            seen.directories.insert(id, name.to_vec());
            true
        };
        assert_eq!(service.list(DirectoryId::ROOT, 0, directories), Ok(true));
        for directory in seen.directories.keys() {
            let mut listed = Vec::new();
            let files = |id, size: u64, name: &[u8]| {
                listed.push((id, u32::try_from(size).unwrap(), name.to_vec()));
                true
            };
            assert_eq!(service.list(DirectoryId(*directory), 0, files), Ok(true));
            for (id, bytes, name) in listed {
                let held = read_all(service, FileId(id), bytes);
                seen.files.insert(id, (*directory, name, held));
            }
        }
        seen
    }

    /// All but what files hold: their directories, names and sizes.
    fn shape(&self) -> Shape {
        let files = self.files.iter();
        let files = files.map(|(id, (at, name, held))| (*id, (*at, name.clone(), held.len())));
        Shape(self.directories.clone(), files.collect())
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Shape(BTreeMap<u32, Vec<u8>>, BTreeMap<u32, (u32, Vec<u8>, usize)>);

/// The volume after a step, and where its operations ended.
struct Step {
    what: String,
    end: usize,
    seen: Seen,
}

/// What is done, a step at a time: names come and go, files grow by parts of blocks and by
/// segments, space of the dead is given to the living, and the log fills its half.
fn script(tape: &Arc<Tape>) -> Vec<Step> {
    let service = run(Service::open(Arc::clone(tape))).unwrap();
    let mut steps = Vec::new();
    let mut step = |what: &str| {
        let seen = Seen::of(&service);
        steps.push(Step { what: what.to_owned(), end: tape.at(), seen });
    };
    step("opened");
    let flush = || run(service.flush_all()).unwrap();
    let tag = |file: FileId| u8::try_from(file.0 + 1).unwrap();
    let write = |file: FileId, offset: u64, len: usize| {
        run(service.write(file, offset, Data::Bytes(&vec![tag(file); len]), async || ())).unwrap();
    };
    let directory = run(service.create_directory(b"d")).unwrap();
    step("a directory");
    let mut files = Vec::new();
    for round in 0..5u8 {
        let file = run(service.create(directory, &[b'f', round])).unwrap();
        step("a file");
        write(file, 0, 700);
        step("its first bytes");
        flush();
        write(file, 700, 5000);
        step("more of it");
        // Over bytes that are flushed, and beyond the end, which leaves a hole.
        write(file, 100, 50);
        step("a change in its middle");
        flush();
        write(file, 9000, 20);
        step("a hole");
        if round % 2 == 0 {
            run(service.resize(file, 300)).unwrap();
            step("cut");
            flush();
            run(service.resize(file, 2000)).unwrap();
            step("grown again");
        }
        flush();
        files.push(file);
        if files.len() == 3 {
            // Its segment goes to the next, which must not show its bytes.
            run(service.delete(files.remove(1))).unwrap();
            step("deleted");
        }
    }
    // So many that a half is full and the next checkpoint goes to the other.
    let spare = run(service.create_directory(b"spare")).unwrap();
    step("another directory");
    for round in 0..16u8 {
        let name = [&[b's', round][..], &[b'n'; 200]].concat();
        let file = run(service.create(spare, &name)).unwrap();
        step("a long name");
        if round % 2 == 0 {
            flush();
            run(service.delete(file)).unwrap();
            step("and away");
        }
    }
    flush();
    run(service.delete(files.remove(0))).unwrap();
    step("deleted last");
    steps
}

type Service = FileService<Arc<Tape>>;

/// The volume in `image`, and what opening it did.
fn recover(image: Vec<u8>) -> (Seen, Vec<Op>) {
    let tape = Tape::of(image);
    let service = run(Service::open(Arc::clone(&tape))).unwrap();
    assert!(service.state().is_consistent());
    (Seen::of(&service), tape.ops())
}

/// `seen` after power loss that may have kept no less than `steps`' first and no more than its
/// last.
fn judge(seen: &Seen, steps: &[Step]) {
    let last = &steps.last().unwrap().what;
    let mut shapes = steps.iter().map(|step| step.seen.shape());
    assert!(shapes.any(|shape| shape == seen.shape()), "{last}: {:?}", seen.shape());
    for (id, (.., held)) in &seen.files {
        let own = u8::try_from(id + 1).unwrap();
        assert!(
            held.iter().all(|byte| *byte == 0 || *byte == own),
            "{last}: foreign bytes in {id}"
        );
        // Bytes that no step since the flush has changed.
        let flushed = steps[0].seen.files.get(id).map_or(&[][..], |file| &file.2);
        for (at, (byte, was)) in held.iter().zip(flushed).enumerate() {
            let later = steps.iter().map(|step| step.seen.files.get(id)?.2.get(at).copied());
            let same = later.into_iter().all(|later| later == Some(*was));
            assert!(!same || byte == was, "{last}: byte {at} of {id} was flushed");
        }
    }
}

#[test]
fn every_crash_of_a_script_is_survived() {
    let tape = Tape::of(Vec::new());
    let layout = Layout { segment: SEGMENT, segments: 7 };
    run(Service::format(&tape, layout, 1, false)).unwrap();
    let image = tape.0.lock().unwrap().0.clone();
    tape.0.lock().unwrap().1.clear();
    let steps = script(&tape);
    let ops = tape.ops();
    let (mut losses, mut again) = (0, 0);
    for point in 0..=ops.len() {
        let before = &ops[..point];
        let flushed = before.iter().rposition(|op| matches!(op, Op::Flush)).map_or(0, |at| at + 1);
        // Steps that had ended when the last flush began, and the first that had not at the crash.
        let from = steps.iter().rposition(|step| step.end < flushed).unwrap_or(0);
        let to = steps.iter().position(|step| step.end >= point).unwrap_or(steps.len() - 1);
        each_loss(&image, before, &mut |left| {
            losses += 1;
            // Power fails again while it is opened: of every so many, at every point of that.
            let second = (losses % 97 == 0).then(|| left.clone());
            let (seen, opening) = recover(left);
            judge(&seen, &steps[from..=to]);
            for point in 0..=second.as_ref().map_or(0, |_| opening.len()) {
                each_loss(second.as_deref().unwrap_or_default(), &opening[..point], &mut |left| {
                    again += 1;
                    if second.is_some() {
                        assert!(recover(left).0.shape() == seen.shape(), "opened twice");
                    }
                });
            }
        });
    }
    println!("{} operations, {losses} losses, {again} of them while opening", ops.len());
    assert!(losses > 1000 && again > 100, "{losses} {again}");
}

/// Power fails while a volume is made: what is there is a volume, or may be made one again.
#[test]
fn a_volume_half_made_is_made_again() {
    let tape = Tape::of(Vec::new());
    let layout = Layout { segment: SEGMENT, segments: 7 };
    run(Service::format(&tape, layout, 1, false)).unwrap();
    let ops = tape.ops();
    for point in 0..=ops.len() {
        each_loss(&[], &ops[..point], &mut |left| {
            let tape = Tape::of(left);
            match run(Service::open(Arc::clone(&tape))) {
                Ok(_) => {}
                Err(OpenError::Empty) => {
                    run(Service::format(&tape, layout, 2, false)).unwrap();
                    run(Service::open(tape)).map(drop).unwrap();
                }
                Err(error) => panic!("{point}: {error:?}"),
            }
        });
    }
}
