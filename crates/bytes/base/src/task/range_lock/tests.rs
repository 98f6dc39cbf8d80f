use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;
use crate::Rng;

const BYTES: u64 = BLOCK as u64;

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>, wakes: &Arc<Count>) -> Option<F::Output> {
    let waker = Waker::from(Arc::clone(wakes));
    match future.poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(out) => Some(out),
        Poll::Pending => None,
    }
}

fn on(start: u64, end: u64, exclusive: bool) -> RangeRequest {
    RangeRequest { start, end, exclusive, owner: 0 }
}

#[test]
fn range_locks_come_in_the_order_of_arrival() {
    let (locks, wakes) = (RangeLocks::default(), Arc::new(Count::default()));
    let reader = poll(pin!(locks.shared(Ino(9))), &wakes).unwrap();
    let (mut writer, mut late) = (pin!(locks.exclusive(Ino(9))), pin!(locks.shared(Ino(9))));
    assert!(poll(writer.as_mut(), &wakes).is_none());
    assert!(poll(late.as_mut(), &wakes).is_none(), "a reader passed a waiting writer");
    assert!(poll(pin!(locks.exclusive(Ino(25))), &wakes).is_some(), "another inode of the shard");
    drop(reader);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    let written = poll(writer.as_mut(), &wakes).unwrap();
    assert!(poll(late.as_mut(), &wakes).is_none());
    drop(written);
    drop(poll(late.as_mut(), &wakes).unwrap());
    assert!(locks.shard(Ino(9)).is_empty());
}

#[test]
fn a_dropped_future_gives_up_its_place_and_its_lock() {
    let (locks, wakes) = (RangeLocks::default(), Arc::new(Count::default()));
    let reader = poll(pin!(locks.shared(Ino(9))), &wakes).unwrap();
    let mut behind = pin!(locks.shared(Ino(9)));
    {
        let mut writer = pin!(locks.exclusive(Ino(9)));
        assert!(poll(writer.as_mut(), &wakes).is_none());
        assert!(poll(behind.as_mut(), &wakes).is_none());
    }
    drop(poll(behind.as_mut(), &wakes).expect("the writer's place still bars the way"));
    {
        let mut writer = Box::pin(locks.exclusive(Ino(9)));
        assert!(poll(writer.as_mut(), &wakes).is_none());
        drop(reader); // Granted, but never polled again.
    }
    assert!(poll(pin!(locks.exclusive(Ino(9))), &wakes).is_some(), "a granted lock was lost");
    assert!(locks.shard(Ino(9)).is_empty());
}

#[test]
fn two_inodes_are_locked_in_one_order() {
    let (locks, wakes) = (RangeLocks::default(), Arc::new(Count::default()));
    let both = poll(pin!(locks.exclusive_both(Ino(7), Ino(3))), &wakes).unwrap();
    let mut other = pin!(locks.exclusive_both(Ino(3), Ino(7)));
    assert!(poll(other.as_mut(), &wakes).is_none());
    drop(both);
    assert!(poll(other.as_mut(), &wakes).is_some());
    let (_, second) = poll(pin!(locks.exclusive_both(Ino(4), Ino(4))), &wakes).unwrap();
    assert!(second.is_none());
}

#[test]
fn other_blocks_do_not_wait() {
    let (locks, wakes) = (RangeLocks::default(), Arc::new(Count::default()));
    let ino = Ino(1);
    let on = |from: u64, to: u64| from * BYTES..to * BYTES;
    let first = poll(pin!(locks.exclusive_on(ino, on(0, 2))), &wakes).unwrap();
    let other = poll(pin!(locks.exclusive_on(ino, on(2, 3))), &wakes).unwrap();
    assert!(poll(pin!(locks.exclusive_on(ino, 2 * BYTES - 1..2 * BYTES)), &wakes).is_none());
    let mut whole = pin!(locks.exclusive(ino));
    assert!(poll(whole.as_mut(), &wakes).is_none());
    let mut late = pin!(locks.shared_on(ino, on(8, 9)));
    assert!(poll(late.as_mut(), &wakes).is_none(), "it passed one who waits for its block");
    drop(first);
    assert!(poll(whole.as_mut(), &wakes).is_none());
    drop(other);
    let all = poll(whole.as_mut(), &wakes).unwrap();
    assert!(poll(late.as_mut(), &wakes).is_none());
    drop(all);
    drop(poll(late.as_mut(), &wakes).unwrap());
    assert!(locks.shard(ino).is_empty());
}

#[test]
fn readers_share_writers_do_not_and_order_holds() {
    let mut queue = RangeQueue::default();
    let ask = |queue: &mut RangeQueue<char>, request, name| queue.ask(request, || name);
    let (first, granted) = ask(&mut queue, on(0, 10, false), 'a');
    assert!(granted);
    let (second, granted) = ask(&mut queue, on(5, 7, false), 'b');
    assert!(granted, "beside another reader");
    let (writer, granted) = ask(&mut queue, on(6, 8, true), 'w');
    assert!(!granted);
    assert!(ask(&mut queue, on(20, 30, true), 'e').1, "elsewhere");
    let (late, granted) = ask(&mut queue, on(7, 9, false), 'l');
    assert!(!granted, "not before the writer who asked first");
    let mut granted = Vec::new();
    queue.release(first, |name| granted.push(name));
    assert!(granted.is_empty() && !queue.holds(writer));
    queue.release(second, |name| granted.push(name));
    assert_eq!(granted, ['w']);
    assert!(queue.holds(writer) && queue.waiter(late).is_some());
    queue.release(writer, |name| granted.push(name));
    assert_eq!(granted, ['w', 'l']);
    queue.release(writer, |name| granted.push(name));
    assert_eq!(granted, ['w', 'l'], "it had ended");
}

#[test]
fn locks_of_an_owner_that_is_lost_end_and_no_others() {
    let mut queue = RangeQueue::default();
    let by = |owner, start, end| RangeRequest { owner, ..on(start, end, false) };
    let lost = [by(7, 0, 10), by(7, 20, 30)].map(|request| queue.ask(request, || ' ').0);
    let (other, _) = queue.ask(by(8, 0, 5), || ' ');
    assert!(!queue.ask(on(4, 6, true), || '1').1);
    assert!(!queue.ask(on(25, 26, true), || '2').1);
    assert!(!queue.ask(by(7, 4, 5), || '7').1);
    let mut granted = Vec::new();
    queue.release_all(7, |name| granted.push(name));
    assert_eq!(granted, ['2']);
    // It comes back after all.
    lost.into_iter().for_each(|id| queue.release(id, |name| granted.push(name)));
    assert_eq!(granted, ['2']);
    queue.release(other, |name| granted.push(name));
    assert_eq!(granted, ['2', '1']);
}

/// A hundred wait for one unit, and one behind them for another. When that is released, the bound
/// on what a release looks at would keep it from who waits for it alone.
#[test]
fn a_queue_that_looks_at_all_reaches_who_waits_behind_many() {
    let mut queue = RangeQueue::looking_at_all();
    queue.ask(on(0, 1, true), || 0);
    let other = queue.ask(on(5, 6, true), || 0).0;
    (0..100).for_each(|_| _ = queue.ask(on(0, 1, true), || 1));
    queue.ask(on(5, 6, true), || 7);
    let mut granted = Vec::new();
    queue.release(other, |who| granted.push(who));
    assert_eq!(granted, [7]);
}

/// A release looks at so many of those who wait; all the others get their locks nevertheless.
#[test]
fn a_long_queue_is_served_to_its_end() {
    let mut queue = RangeQueue::default();
    let mut held = vec![queue.ask(on(0, 1000, true), || usize::MAX).0];
    let ids: Vec<u64> =
        (0..500).zip(0..).map(|(at, nth)| queue.ask(on(at, at + 2, true), || nth).0).collect();
    let mut order = Vec::new();
    while let Some(id) = held.pop() {
        let before = order.len();
        queue.release(id, |at| order.push(at));
        assert!(order.len() - before <= LOOKED_AT);
        held.extend(order[before..].iter().map(|at| ids[*at]));
    }
    assert_eq!((order.len(), queue.is_idle()), (500, true));
}

/// Every request that came and has not ended, in order: a request is granted if nothing before it
/// conflicts with it. That is the whole rule.
#[derive(Default)]
struct Model(Vec<(u64, RangeRequest)>);

impl Model {
    fn granted(&self) -> Vec<u64> {
        let all = self.0.iter().enumerate();
        let free = all.filter(|(at, (_, request))| {
            let mut before = self.0[..*at].iter();
            !before.any(|(_, other)| other.conflicts(request))
        });
        free.map(|(_, (id, _))| *id).collect()
    }
}

/// Random requests, releases, givings-up and lost owners: the queue grants what the model does, and
/// tells everyone once.
#[test]
fn the_queue_is_its_model() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (mut queue, mut model) = (RangeQueue::default(), Model::default());
        let mut waiting = Vec::new();
        for step in 0..300_u64 {
            let mut told = Vec::new();
            match rng.below(8) {
                // Fewer than a release looks at.
                0..4 if model.0.len() < LOOKED_AT => {
                    let start = rng.below(12);
                    let end = if rng.chance(1, 6) { u64::MAX } else { start + 1 + rng.below(3) };
                    let owner = u32::try_from(rng.below(4)).unwrap();
                    let request = RangeRequest { start, end, exclusive: rng.chance(1, 2), owner };
                    let (id, granted) = queue.ask(request, || step);
                    model.0.push((id, request));
                    if !granted {
                        waiting.push((id, step));
                    }
                }
                4..7 if !model.0.is_empty() => {
                    let at = usize::try_from(rng.below(model.0.len() as u64)).unwrap();
                    let (id, _) = model.0.remove(at);
                    waiting.retain(|(waits, _)| *waits != id);
                    queue.release(id, |step| told.push(step));
                }
                7 if rng.chance(1, 8) => {
                    let gone = |model: &Model, id| !model.0.iter().any(|(other, _)| *other == id);
                    model.0.retain(|(_, request)| request.owner != 3);
                    waiting.retain(|(id, _)| !gone(&model, *id));
                    queue.release_all(3, |step| told.push(step));
                }
                _ => {}
            }
            for step in told {
                let at = waiting.iter().position(|(_, asked)| *asked == step);
                let (id, _) = waiting.remove(at.expect("told once, and only who waits"));
                assert!(queue.holds(id), "seed {seed}");
            }
            let held = model.granted();
            assert_eq!(held.len() + waiting.len(), model.0.len(), "seed {seed} step {step}");
            for (id, _) in &model.0 {
                assert_eq!(queue.holds(*id), held.contains(id), "seed {seed} step {step}");
                assert_eq!(queue.waiter(*id).is_some(), !held.contains(id), "seed {seed}");
            }
            assert_eq!(queue.is_idle(), model.0.is_empty());
        }
    }
}

/// The same with futures: those dropped on their way leave nothing behind.
#[test]
fn nobody_is_barred_and_nobody_starves() {
    type Waits<'l> = Pin<Box<dyn Future<Output = RangeGuard<'l>> + 'l>>;
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (locks, wakes) = (RangeLocks::default(), Arc::new(Count::default()));
        let mut waiting: Vec<(RangeRequest, Waits<'_>)> = Vec::new();
        let mut held: Vec<(RangeRequest, RangeGuard<'_>)> = Vec::new();
        let below = |rng: &mut Rng, len: usize| usize::try_from(rng.below(len as u64)).unwrap();
        let (mut begun, mut ended) = (0, 0);
        while ended < 100 {
            match rng.below(4) {
                0 if begun < 100 => {
                    let (from, exclusive) = (rng.below(6), rng.chance(1, 2));
                    let to = if rng.chance(1, 6) { u64::MAX / BYTES } else { from + 2 };
                    let bytes = from * BYTES..to * BYTES;
                    let mut lock: Waits<'_> = Box::pin(locks.wait(Ino(1), bytes, exclusive));
                    begun += 1;
                    match poll(lock.as_mut(), &wakes) {
                        Some(guard) => held.push((on(from, to, exclusive), guard)),
                        None => waiting.push((on(from, to, exclusive), lock)),
                    }
                }
                1 if !held.is_empty() => {
                    drop(held.swap_remove(below(&mut rng, held.len())));
                    ended += 1;
                }
                2 if !waiting.is_empty() && rng.chance(1, 5) => {
                    drop(waiting.remove(below(&mut rng, waiting.len())));
                    ended += 1;
                }
                _ => {}
            }
            let mut at = 0;
            while at < waiting.len() {
                if let Some(guard) = poll(waiting[at].1.as_mut(), &wakes) {
                    held.push((waiting.remove(at).0, guard));
                } else {
                    at += 1;
                }
            }
            for (at, (request, _)) in held.iter().enumerate() {
                let mut others = held[..at].iter();
                assert!(others.all(|(other, _)| !other.conflicts(request)), "seed {seed}");
            }
            for (at, (request, _)) in waiting.iter().enumerate() {
                let earlier = waiting[..at].iter().map(|(request, _)| request);
                let mut others = held.iter().map(|(request, _)| request).chain(earlier);
                let waits = others.any(|other| other.conflicts(request));
                assert!(waits, "seed {seed}: it waits for nobody");
            }
        }
        assert!(locks.shard(Ino(1)).is_empty());
    }
}
