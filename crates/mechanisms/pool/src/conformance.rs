//! The suite every [`Pool`] passes. The caller brings a pool whose objects `rule-*` do not exist,
//! and something that polls; a failure panics.

use std::sync::Arc;

use super::port::{Guard, Op, Pool, PoolError, Step};
use outboard_base::task::join_all;
use outboard_kv::{Key, Value};
use outboard_medium::{ALIGN, Buf};

fn op(guards: Vec<Guard>, steps: Vec<Step>) -> Op {
    Op { guards, steps, essential: false }
}

fn set(key: &[u8], value: &[u8]) -> Step {
    Step::MapSet(key.into(), value.into())
}

/// Every rule of the port but the fence, one after the other.
pub async fn rules<P: Pool>(pool: &P) {
    existence(pool).await;
    bytes(pool).await;
    guards(pool).await;
    maps(pool).await;
    side_by_side(pool).await;
    assert_eq!(pool.settle().await, Ok(()));
    assert!(pool.usage().await.is_ok_and(|usage| usage.used <= usage.capacity));
    assert!(!pool.instance().is_empty() && pool.instance().len() <= 255);
}

async fn existence<P: Pool>(pool: &P) {
    let name = "rule-exists";
    assert_eq!(pool.stat(name).await, Err(PoolError::NotFound));
    assert_eq!(pool.read(name, 0, 10).await, Err(PoolError::NotFound));
    assert_eq!(pool.map_get(name, &[b"k".into()]).await, Err(PoolError::NotFound));
    assert_eq!(pool.map_scan(name, b"", None, 10).await, Err(PoolError::NotFound));
    let remove = || op(vec![], vec![Step::Remove]);
    assert_eq!(pool.apply(name, remove()).await, Err(PoolError::NotFound));
    let touch = op(vec![Guard::Exists], vec![Step::Create]);
    assert_eq!(pool.apply(name, touch).await, Err(PoolError::NotFound));
    assert_eq!(pool.stat(name).await, Err(PoolError::NotFound), "a refused step makes nothing");
    let make = || op(vec![Guard::Absent], vec![set(b"k", b"v")]);
    assert_eq!(pool.apply(name, make()).await, Ok(()));
    assert_eq!(pool.apply(name, make()).await, Err(PoolError::Guard));
    assert_eq!(pool.stat(name).await, Ok(0));
    let names = pool.list(100_000).await;
    assert!(names.is_ok_and(|names| names.iter().any(|found| found == name)));
    assert_eq!(pool.list(1).await.map(|names| names.len()), Ok(1));
    assert_eq!(pool.apply(name, remove()).await, Ok(()));
    assert_eq!(pool.stat(name).await, Err(PoolError::NotFound));
}

async fn bytes<P: Pool>(pool: &P) {
    let name = "rule-bytes";
    let write = |at, bytes: &[u8]| op(vec![], vec![Step::Write(at, bytes.into())]);
    assert_eq!(pool.apply(name, write(3, b"hello")).await, Ok(()));
    assert_eq!(pool.read(name, 0, 100).await, Ok(b"\0\0\0hello".to_vec()), "holes read zero");
    assert_eq!(pool.apply(name, write(4, b"E")).await, Ok(()));
    assert_eq!(pool.read(name, 3, 3).await, Ok(b"hEl".to_vec()));
    assert_eq!(pool.read(name, 8, 3).await, Ok(Vec::new()), "nothing beyond the end");
    assert_eq!(pool.read(name, 6, 3).await, Ok(b"lo".to_vec()));
    let replace = op(vec![], vec![Step::Replace(b"abc".into()), set(b"k", b"v")]);
    assert_eq!(pool.apply(name, replace).await, Ok(()));
    assert_eq!(pool.stat(name).await, Ok(3));
    let shorter = op(vec![], vec![Step::Replace(b"x".into())]);
    assert_eq!(pool.apply(name, shorter).await, Ok(()));
    assert_eq!(pool.read(name, 0, 10).await, Ok(b"x".to_vec()));
    let kept = pool.map_get(name, &[b"k".into()]).await;
    assert_eq!(kept, Ok(vec![Some(b"v".into())]), "the map stays");
    let large: Vec<u8> = (0..=250).cycle().take(5 << 20).collect();
    assert_eq!(pool.apply(name, write(0, &large)).await, Ok(()));
    assert!(pool.read(name, 0, 5 << 20).await.as_ref() == Ok(&large), "5 MiB come back");
    buffers(pool, name, &large).await;
}

/// Reads and writes of whole buffers: as the others, also where the object ends, at an object that
/// is not there, and at lengths that an engine may cut into pieces. `name` holds `large`.
async fn buffers<P: Pool>(pool: &P, name: &str, large: &[u8]) {
    let len = large.len();
    for (at, wanted) in [
        (0, ALIGN),
        (1, 1 << 20),
        (len - 100, ALIGN),
        (len - (700 << 10), 1 << 20),
        (len - (512 << 10), 1 << 20),
        (len, 1 << 20),
        (len + 5000, ALIGN),
    ] {
        let (read, buf) = pool.read_into(name, at as u64, Buf::zeroed(wanted)).await;
        let there = &large[at.min(len)..(at + wanted).min(len)];
        assert_eq!(read, Ok(there.len()), "{wanted} bytes at {at}");
        assert!(buf.len() == wanted && buf[..there.len()] == *there, "{wanted} bytes at {at}");
    }
    let none = "rule-nobody";
    let (read, buf) = pool.read_into(none, 0, Buf::zeroed(1 << 20)).await;
    assert_eq!((read, buf.len()), (Err(PoolError::NotFound), 1 << 20));
    let whole = Arc::new({
        let mut whole = Buf::zeroed(3 * ALIGN);
        whole.copy_from_slice(&large[..3 * ALIGN]);
        whole
    });
    let part = Buf::part(&whole, ALIGN..3 * ALIGN);
    assert!(part.is_some());
    let Some(part) = part else { return };
    let (written, part) = pool.write_from("rule-buffer", 7, part).await;
    assert_eq!((written, &part[..]), (Ok(()), &whole[ALIGN..]), "made where there is none");
    let found = pool.read("rule-buffer", 0, len).await.unwrap_or_default();
    assert!(found.len() > 7 && found[..7] == [0; 7] && found[7..] == whole[ALIGN..]);
}

async fn guards<P: Pool>(pool: &P) {
    let name = "rule-guards";
    let base = vec![Step::Replace(b"0123".into()), set(b"k", b"v")];
    assert_eq!(pool.apply(name, op(vec![], base)).await, Ok(()));
    let equals = |key: &[u8], value: &[u8]| Guard::MapEquals(key.into(), value.into());
    let cases = [
        (vec![Guard::Exists], Ok(())),
        (vec![Guard::Absent], Err(PoolError::Guard)),
        (vec![equals(b"k", b"v")], Ok(())),
        (vec![equals(b"k", b"w")], Err(PoolError::Guard)),
        (vec![equals(b"k", b"vv")], Err(PoolError::Guard)),
        (vec![equals(b"k", b"")], Err(PoolError::Guard)),
        (vec![equals(b"none", b"")], Ok(())),
        (vec![equals(b"none", b"v")], Err(PoolError::Guard)),
        (vec![Guard::Starts(b"01".into())], Ok(())),
        (vec![Guard::Starts(b"0123".into())], Ok(())),
        (vec![Guard::Starts(b"02".into())], Err(PoolError::Guard)),
        (vec![Guard::Starts(b"01234".into())], Err(PoolError::Guard)),
        (vec![equals(b"k", b"v"), Guard::Starts(b"x".into())], Err(PoolError::Guard)),
    ];
    for (at, (guards, expected)) in (0u8..).zip(cases) {
        let done = [b'd', at];
        let outcome = pool.apply(name, op(guards, vec![set(&done, b"1")])).await;
        assert_eq!(outcome, expected, "case {at}");
        let found = pool.map_get(name, &[done.into()]).await;
        assert_eq!(
            found.map(|v| v.iter().any(Option::is_some)),
            Ok(expected.is_ok()),
            "case {at}: all or nothing"
        );
    }
    let missing = op(vec![equals(b"k", b"")], vec![set(b"k", b"v")]);
    assert_eq!(pool.apply("rule-missing", missing).await, Err(PoolError::NotFound));
    // Guards speak of what was before the steps.
    let swap = op(vec![equals(b"k", b"v")], vec![set(b"k", b"w")]);
    assert_eq!(pool.apply(name, swap.clone()).await, Ok(()));
    assert_eq!(pool.apply(name, swap).await, Err(PoolError::Guard));
}

async fn maps<P: Pool>(pool: &P) {
    let name = "rule-maps";
    let keys: [&[u8]; 9] =
        [b"\0", b"\0\0", b"\0\x01", b"\x01", b"a", b"a\0", b"a\xFF", b"b", b"\xFF\xFF"];
    let steps = keys.iter().map(|key| set(key, key)).chain([set(b"empty", b"")]).collect();
    assert_eq!(pool.apply(name, op(vec![], steps)).await, Ok(()));
    let asked = [Key::from(b"a\0"), b"none".into(), b"empty".into(), b"\0\x01".into()];
    let found: [Option<Value>; 4] =
        [Some(b"a\0".into()), None, Some(b"".into()), Some(b"\0\x01".into())];
    assert_eq!(pool.map_get(name, &asked).await, Ok(found.to_vec()), "empty is not absent");
    assert_eq!(pool.map_get(name, &[]).await, Ok(Vec::new()));
    let removed = vec![Step::MapRemove(b"empty".into()), Step::MapRemove(b"none".into())];
    assert_eq!(pool.apply(name, op(vec![], removed)).await, Ok(()));
    let prefixes: [&[u8]; 5] = [b"", b"a", b"\0", b"\xFF", b"z"];
    let afters = keys.iter().map(|key| Some(*key)).chain([None, Some(&b"aa"[..])]);
    for after in afters {
        for prefix in prefixes {
            let expected: Vec<Key> = keys
                .iter()
                .filter(|key| key.starts_with(prefix) && after.is_none_or(|after| **key > after))
                .map(|key| Key::from(*key))
                .collect();
            for limit in [1, 3, 100] {
                let found = scan_all(pool, name, prefix, after, limit).await;
                assert_eq!(found, expected, "{prefix:?} after {after:?}, {limit} at once");
            }
        }
    }
    // More than engines answer at once.
    let steps = (0..5000u32).map(|i| set(&i.to_be_bytes(), &[7; 100])).collect();
    assert_eq!(pool.apply("rule-many", op(vec![], steps)).await, Ok(()));
    assert_eq!(scan_all(pool, "rule-many", b"", None, usize::MAX).await.len(), 5000);
}

/// The keys of scans that go on where the last ended.
async fn scan_all<P: Pool>(
    pool: &P,
    name: &str,
    prefix: &[u8],
    after: Option<&[u8]>,
    limit: usize,
) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    loop {
        let after = keys.last().map(|key| &key[..]).or(after);
        let scan = pool.map_scan(name, prefix, after, limit).await;
        assert!(scan.is_ok(), "{scan:?}");
        let scan = scan.unwrap_or_default();
        assert!(scan.pairs.len() <= limit && !(scan.more && scan.pairs.is_empty()));
        keys.extend(scan.pairs.into_iter().map(|(key, _)| key));
        if !scan.more {
            return keys;
        }
    }
}

/// Many at once: each is done once, and of those that exclude each other one is.
async fn side_by_side<P: Pool>(pool: &P) {
    let name = "rule-many-at-once";
    assert_eq!(pool.apply(name, op(vec![], vec![Step::Create])).await, Ok(()));
    let take = |i: u8| {
        let free = Guard::MapEquals(b"taken".into(), Value::default());
        pool.apply(name, op(vec![free], vec![set(b"taken", &[i])]))
    };
    let outcomes = join_all((1..=16).map(take).collect()).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    assert!(outcomes.iter().all(|o| matches!(o, Ok(()) | Err(PoolError::Guard))));
    let put = |i: u8| pool.apply(name, op(vec![], vec![set(&[b'n', i], &[i])]));
    assert!(join_all((0..64).map(put).collect()).await.iter().all(Result::is_ok));
    assert_eq!(scan_all(pool, name, b"n", None, 100).await.len(), 64);
}

/// `other` is shut out by `pool`, and only that; the objects of [`rules`] exist.
pub async fn fencing<P: Pool>(pool: &P, other: &P) {
    assert_ne!(pool.instance(), other.instance());
    let name = "rule-fence";
    let write = |byte: u8| op(vec![], vec![Step::Replace([byte].into())]);
    assert_eq!(other.apply(name, write(1)).await, Ok(()));
    assert_eq!(pool.fence(&other.instance()).await, Ok(()));
    assert_eq!(pool.read(name, 0, 1).await, Ok(vec![1]));
    assert_eq!(other.apply(name, write(2)).await, Err(PoolError::Fenced));
    assert_eq!(other.read(name, 0, 1).await, Err(PoolError::Fenced));
    assert_eq!(pool.read(name, 0, 1).await, Ok(vec![1]));
    assert_eq!(pool.apply(name, write(3)).await, Ok(()));
    assert_eq!(pool.fence(&other.instance()).await, Ok(()), "once more");
}
