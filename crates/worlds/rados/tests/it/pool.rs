//! The pool port's rules, one by one.

use outboard_base::task::poll_once;
use std::pin::pin;
use std::task::Poll;

use outboard_base::task::join_all;
use outboard_kv::{Bytes, Key};
use outboard_pool::{Guard, Op, Pool, PoolError, Step, conformance};
use outboard_rados::{Location, Rados};

use crate::{block_on, clear, location};

fn set(key: &[u8], value: &[u8]) -> Step {
    Step::MapSet(key.into(), value.into())
}

#[test]
fn the_pool_keeps_every_rule() {
    let Some(location) = location("rules") else { return };
    let rados = Rados::connect(&location).unwrap();
    block_on(conformance::rules(&rados));
    let other = Rados::connect(&location).unwrap();
    block_on(conformance::fencing(&rados, &other));
    clear(&rados);
}

#[test]
fn objects_are_written_guarded_read_and_removed() {
    let Some(location) = location("objects") else { return };
    let rados = Rados::connect(&location).unwrap();
    block_on(bytes(&rados));
    block_on(guards(&rados));
    block_on(maps(&rados));
    let mut names = block_on(rados.list(10)).unwrap();
    names.sort();
    assert_eq!(names, ["bytes", "map"]);
    assert_eq!(block_on(rados.list(1)).unwrap().len(), 1);
    let usage = block_on(rados.usage()).unwrap();
    assert!(usage.capacity > usage.used, "{usage:?}");
    clear(&rados);
    assert_eq!(block_on(rados.list(10)).unwrap(), Vec::<String>::new());
}

async fn bytes(rados: &Rados) {
    assert_eq!(rados.stat("bytes").await, Err(PoolError::NotFound));
    assert_eq!(rados.read("bytes", 0, 10).await, Err(PoolError::NotFound));
    let write = Op::new().then(Step::Write(4, b"abcd".into()));
    assert_eq!(rados.apply("bytes", write).await, Ok(()));
    assert_eq!(rados.stat("bytes").await, Ok(8));
    assert_eq!(rados.read("bytes", 2, 4).await, Ok(b"\0\0ab".to_vec()));
    assert_eq!(rados.read("bytes", 6, 100).await, Ok(b"cd".to_vec()));
    assert_eq!(rados.read("bytes", 8, 100).await, Ok(Vec::new()));
    assert_eq!(rados.read("bytes", 0, 0).await, Ok(Vec::new()));
    let replace = Op::new().then(Step::Replace(b"xyz".into())).then(set(b"k", b"v"));
    assert_eq!(rados.apply("bytes", replace).await, Ok(()));
    assert_eq!(rados.read("bytes", 0, 100).await, Ok(b"xyz".to_vec()));
}

async fn guards(rados: &Rados) {
    let with = |guard: Guard| Op::new().when(guard).then(Step::Write(0, b"X".into()));
    let equals = |key: &[u8], value: &[u8]| Guard::MapEquals(key.into(), value.into());
    for (object, guard, expected) in [
        ("bytes", Guard::Absent, Err(PoolError::Guard)),
        ("none", Guard::Exists, Err(PoolError::NotFound)),
        ("none", equals(b"k", b""), Err(PoolError::NotFound)),
        ("none", Guard::Starts(b"x".into()), Err(PoolError::NotFound)),
        ("bytes", equals(b"k", b"w"), Err(PoolError::Guard)),
        ("bytes", equals(b"none", b"w"), Err(PoolError::Guard)),
        ("bytes", Guard::Starts(b"xyZ".into()), Err(PoolError::Guard)),
        ("bytes", equals(b"none", b""), Ok(())),
        ("bytes", equals(b"k", b"v"), Ok(())),
        ("bytes", Guard::Starts(b"Xyz".into()), Ok(())),
        ("bytes", Guard::Exists, Ok(())),
    ] {
        let before = rados.read("bytes", 0, 9).await;
        assert_eq!(rados.apply(object, with(guard.clone())).await, expected, "{object} {guard:?}");
        let after = rados.read("bytes", 0, 9).await;
        assert!(expected.is_ok() || before == after, "nothing is done where a guard fails");
    }
    let gone = Op::new().then(Step::Remove);
    assert_eq!(rados.apply("none", gone).await, Err(PoolError::NotFound));
    assert_eq!(rados.stat("none").await, Err(PoolError::NotFound));
    let made = Op::new().when(Guard::Absent).then(set(b"a", b"b"));
    assert_eq!(rados.apply("new", made.clone()).await, Ok(()));
    assert_eq!(rados.apply("new", made).await, Err(PoolError::Guard));
    assert_eq!(rados.apply("new", Op::new().then(Step::Remove)).await, Ok(()));
}

async fn maps(rados: &Rados) {
    let removal = Op::new().then(Step::MapRemove(b"x".into()));
    assert_eq!(rados.apply("map", removal).await, Ok(()), "makes the object");
    let keys: [&[u8]; 7] = [b"a", b"a\0", b"a\0\x01", b"a\x01", b"a\x02", b"a\xFF", b"b"];
    let mut op = Op::new();
    for key in keys.iter().rev() {
        op = op.then(set(key, b"first")).then(set(key, key));
    }
    assert_eq!(rados.apply("map", op.then(set(b"empty", b""))).await, Ok(()));
    let wanted = [Key::from(b"b"), Key::from(b"none"), Key::from(b"a\0"), Key::from(b"empty")];
    let found = rados.map_get("map", &wanted).await.unwrap();
    let bytes = |text: &[u8]| Some(Bytes::from(text));
    assert_eq!(found, [bytes(b"b"), None, bytes(b"a\0"), bytes(b"")]);
    let scan = async |prefix: &[u8], after: Option<&[u8]>, limit| {
        let scan = rados.map_scan("map", prefix, after, limit).await.unwrap();
        let keys = scan.pairs.iter().map(|(key, _)| key.to_vec()).collect::<Vec<_>>();
        (keys, scan.more)
    };
    let some = |range: std::ops::Range<usize>| -> Vec<Vec<u8>> {
        keys[range].iter().map(|key| key.to_vec()).collect()
    };
    assert_eq!(scan(b"a", None, 100).await, (some(0..6), false));
    assert_eq!(scan(b"a", None, 2).await.0, some(0..2));
    assert_eq!(scan(b"a", Some(b"a\0"), 100).await, (some(2..6), false));
    assert_eq!(scan(b"a\0", None, 100).await, (some(1..3), false));
    assert_eq!(scan(b"a", Some(b"b"), 100).await, (some(0..0), false));
    assert_eq!(scan(b"a", Some(b"A"), 100).await, (some(0..6), false));
    assert_eq!(scan(b"", None, 100).await.0.len(), 8);
    let op = Op::new().then(Step::MapRemove(b"a\0".into())).then(Step::MapRemove(b"zz".into()));
    assert_eq!(rados.apply("map", op).await, Ok(()));
    assert_eq!(scan(b"a\0", None, 100).await, (some(2..3), false));
    many_pairs(rados).await;
    assert_eq!(rados.map_scan("none", b"", None, 1).await, Err(PoolError::NotFound));
}

/// More pairs than a daemon gives at once.
async fn many_pairs(rados: &Rados) {
    let fill = (0u32..3000).fold(Op::new(), |op, at| op.then(set(&at.to_be_bytes(), b"v")));
    assert_eq!(rados.apply("map", fill).await, Ok(()));
    let (mut seen, mut after) = (0, None::<Key>);
    loop {
        let scan = rados.map_scan("map", b"\0\0", after.as_deref(), 5000).await.unwrap();
        seen += scan.pairs.len();
        after = scan.pairs.last().map(|(key, _)| key.clone());
        if !scan.more {
            break;
        }
        assert!(after.is_some(), "more is promised, so something is given");
    }
    assert_eq!(seen, 3000);
}

#[test]
fn many_operations_are_in_flight_and_dropped_ones_settle() {
    let Some(location) = location("flight") else { return };
    let rados = Rados::connect(&location).unwrap();
    block_on(async {
        let write = |at: u64| {
            let bytes = vec![u8::try_from(at % 251).unwrap(); 8192];
            let op = Op::new().then(Step::Write(at * 8192, bytes.into()));
            rados.apply("big", op)
        };
        let results = join_all((0..200).map(write).collect()).await;
        assert!(results.iter().all(Result::is_ok));
        // A quick cluster may answer one before it is asked how far it is; never all of them.
        let mut dropped = 0;
        for at in 200..300 {
            let mut begun = pin!(write(at));
            match poll_once(begun.as_mut()) {
                Poll::Ready(result) => assert_eq!(result, Ok(())),
                Poll::Pending => dropped += 1,
            }
        }
        assert!(dropped > 0);
        assert_eq!(rados.settle().await, Ok(()));
        assert_eq!(rados.stat("big").await, Ok(300 * 8192));
        let bytes = rados.read("big", 0, 300 * 8192).await.unwrap();
        for (at, block) in bytes.chunks(8192).enumerate() {
            assert!(block.iter().all(|byte| usize::from(*byte) == at % 251), "block {at}");
        }
    });
    clear(&rados);
}

#[test]
fn who_is_fenced_can_do_nothing_more() {
    let Some(location) = location("fence") else { return };
    let first = Rados::connect(&location).unwrap();
    let second = Rados::connect(&location).unwrap();
    assert_ne!(first.instance(), second.instance());
    let write = |byte: u8| Op::new().then(Step::Replace(vec![byte].into()));
    block_on(async {
        assert_eq!(first.apply("a", write(1)).await, Ok(()));
        assert_eq!(second.fence(&first.instance()).await, Ok(()));
        assert_eq!(second.read("a", 0, 9).await, Ok(vec![1]));
        assert_eq!(first.apply("a", write(2)).await, Err(PoolError::Fenced));
        assert_eq!(second.read("a", 0, 9).await, Ok(vec![1]));
        assert_eq!(second.apply("a", write(3)).await, Ok(()));
        assert_eq!(second.fence(&first.instance()).await, Ok(()), "again");
    });
    clear(&second);
}

#[test]
fn what_is_wrong_is_said_with_its_remedy() {
    let Some(location) = location("wrong") else { return };
    let said = |wrong: Location| Rados::connect(&wrong).unwrap_err().to_string();
    let message = said(Location { pool: "nobody-made-it".into(), ..location.clone() });
    assert!(message.contains("no pool `nobody-made-it`") && message.contains("osd pool create"));
    let message = said(Location { conf: "/nowhere/ceph.conf".into(), ..location });
    assert!(message.contains("/nowhere/ceph.conf") && message.contains("conf=PATH"), "{message}");
}
