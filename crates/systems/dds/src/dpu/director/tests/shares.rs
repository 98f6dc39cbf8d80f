//! All flows hold no more memory than they may, and share it.

use super::once::Counting;
use super::*;
use crate::dpu::director::shares::{PATIENCE, TURN_MAX};

/// Lines as long as they like, of which it sees each from its start.
struct Whole;

fn any_line(stream: &[u8]) -> Framing {
    match stream.iter().position(|byte| *byte == b'\n') {
        Some(at) => Framing::Whole(at + 1),
        None => Framing::More(stream.len() + 1),
    }
}

impl Application for Whole {
    fn frame(&self, stream: &[u8], _: &mut Cursor) -> Framing {
        any_line(stream)
    }

    fn frame_answer(&self, stream: &[u8], _: &mut Cursor) -> Framing {
        any_line(stream)
    }

    fn off_pred(&self, _: &[u8], _: &dyn Lookup, _: &mut Division) {}

    fn off_func(&self, _: &[u8], _: &dyn Lookup) -> Option<ReadOp> {
        None
    }

    fn answer(&self, _: &[u8], _: ReadOp, _: &[u8]) -> Option<Answer> {
        None
    }

    fn cache(&self, _: WriteOp<'_>, _: &mut Vec<(Key, Item)>) {}

    fn invalidate(&self, _: ReadOp, _: &mut Vec<Key>) {}
}

fn local(app: Arc<dyn Application>, flows: usize, bytes: usize) -> Local {
    Local::of(app, Arc::new(Shared::default()), 8, Pool::new(1 << 20)).within(flows, bytes)
}

/// Sends from `chunk` what there is room for; how much.
fn offer(director: &mut Local, id: FlowId, chunk: &[u8]) -> usize {
    let n = director.client_room(id).min(chunk.len());
    director.client_bytes(id, &chunk[..n]);
    n
}

fn host_takes(director: &mut Local, id: FlowId) -> usize {
    let mut all = 0;
    while let n @ 1.. = director.flow(id).unwrap().to_host().len() {
        director.host_took(id, n);
        all += n;
    }
    all
}

/// Each flow held up to 2 MiB of a message that was not whole, whatever all others held: a thousand
/// clients that began a long message and stopped took two gigabytes of the DPU side.
#[test]
fn clients_that_send_half_a_message_share_the_memory_and_are_forwarded() {
    let (flows, most) = (1000, 8 << 20);
    let mut director = local(Arc::new(Whole), flows, most);
    let ids: Vec<FlowId> = (0..flows - 1).map(|_| director.open(true)).collect();
    let (chunk, mut sent) = (vec![b'x'; 64 << 10], vec![0; ids.len()]);
    for _ in 0..40 {
        for (id, sent) in ids.iter().zip(&mut sent) {
            *sent += offer(&mut director, *id, &chunk);
            assert!(director.held() <= most, "{}", director.held());
        }
    }
    assert!(director.held() > most / 4, "it is used: {}", director.held());
    assert!(sent.iter().all(|sent| *sent > 0));
    // Who needs little goes on at once.
    let late = director.open(true);
    assert_eq!(offer(&mut director, late, b"G a\n"), 4);
    assert_eq!(host_takes(&mut director, late), 4);
    assert_eq!(director.host_room(late).min(4), 4);
    director.host_bytes(late, b"nil\n");
    assert_eq!(taken(&mut director, late), b"nil\n");
    // The others wait for a while, and are the host's then.
    director.share_memory(Time(0));
    assert_eq!(director.patience_ends(), Some(Time(0).after(PATIENCE)));
    director.share_memory(Time(0).after(PATIENCE / 2));
    assert_eq!(director.counts().crowded, 0);
    director.share_memory(Time(0).after(PATIENCE));
    assert_eq!(director.counts().crowded, ids.len() as u64);
    for (id, sent) in ids.iter().zip(&sent) {
        assert_eq!(host_takes(&mut director, *id), *sent, "nothing is lost");
        assert!(director.client_room(*id) > 0);
    }
    assert!(!director.is_short_of_memory());
    // What is left is the place of what the host may say.
    assert!(director.held() <= 128 * flows, "{}", director.held());
    assert_eq!(director.patience_ends(), None);
}

/// Memory that one flow gives back is another's, before patience ends.
#[test]
fn who_waits_goes_on_when_others_give_memory_back() {
    let mut director = local(Arc::new(Whole), 2, 1 << 20);
    let [one, two] = [director.open(true), director.open(true)];
    let chunk = vec![b'x'; 64 << 10];
    while offer(&mut director, one, &chunk) + offer(&mut director, two, &chunk) > 0 {}
    director.share_memory(Time(0));
    while director.next_news().is_some() {}
    director.close(one);
    director.share_memory(Time(1));
    assert_eq!(director.next_news(), Some(two));
    assert!(offer(&mut director, two, &chunk) > 0);
    assert_eq!(director.counts().crowded, 0);
    director.close(two);
    assert_eq!((director.held(), director.is_short_of_memory()), (0, false));
}

/// An answer that must be seen whole takes what it takes, one at a time; one that does not come to
/// its end keeps the turn from others for a moment only.
#[test]
fn long_answers_are_waited_for_one_at_a_time_and_none_for_ever() {
    let most = 256 << 10;
    let mut director = local(Arc::new(Whole), 4, most);
    let [slow, next, little] = [(); 3].map(|()| director.open(true));
    let (mut chunk, mut now) = (vec![b'x'; 8 << 10], Time(0));
    for id in [slow, next, little] {
        director.client_bytes(id, b"?\n");
        assert_eq!(host_takes(&mut director, id), 2);
    }
    let mut got = [0; 2];
    let pass = |director: &mut Local, got: &mut [usize; 2], now: Time| {
        for (id, got) in [slow, next].into_iter().zip(got) {
            let n = director.host_room(id).min(chunk.len()).min((1 << 20) - *got);
            director.host_bytes(id, &chunk[..n]);
            *got += n;
        }
        director.share_memory(now);
        assert!(director.held() <= most, "but for the one with the turn: {}", director.held());
    };
    for _ in 0..2000 {
        pass(&mut director, &mut got, now);
    }
    assert_eq!(got[0], 1 << 20, "it has the turn");
    assert!(got[1] < most, "{}", got[1]);
    director.host_bytes(little, b"some\n");
    assert_eq!(taken(&mut director, little), b"some\n");
    now = now.after(TURN_MAX);
    director.share_memory(now);
    for _ in 0..2000 {
        let n = director.host_room(next).min(chunk.len()).min((1 << 20) - got[1]);
        director.host_bytes(next, &chunk[..n]);
        got[1] += n;
        director.share_memory(now);
    }
    assert_eq!(got[1], 1 << 20, "and then the other");
    chunk.truncate(1);
    chunk[0] = b'\n';
    director.host_bytes(next, &chunk);
    assert_eq!(taken(&mut director, next).len(), got[1] + 1);
    director.host_bytes(slow, &chunk);
    assert_eq!(taken(&mut director, slow).len(), got[0] + 1);
    director.share_memory(now);
    assert_eq!((director.held(), director.is_short_of_memory()), (0, false));
}

/// Long messages among short ones, in so little memory that some are forwarded: clients get the
/// same.
#[test]
fn little_memory_changes_nothing_for_clients() {
    let (clients, most) = (3, 16 << 10);
    let (mut crowded, mut offloaded) = (0, 0);
    for seed in 300..330 {
        let shared = Arc::new(Shared::default());
        let app: Arc<dyn Application> = Arc::new(Counting::default());
        let director = Local::of(app, Arc::clone(&shared) as _, 8, Pool::new(1 << 20));
        let director = director.within(clients, most);
        println!("seed {seed}");
        let mut world = World::around(director, shared, seed, clients, false);
        world.failing = seed % 2 == 0;
        for (n, client) in world.clients.iter_mut().enumerate() {
            let mut rng = Rng::new(seed * 10 + n as u64);
            for _ in 0..3 {
                let key = |rng: &mut Rng| format!("c{n}k{}", rng.below(12));
                let keys: Vec<String> = (0..100 + rng.below(900)).map(|_| key(&mut rng)).collect();
                client.script.extend(format!("M {}\n", keys.join(" ")).bytes());
                client.script.extend(script(&mut rng, 10, &format!("c{n}k"), false));
            }
        }
        let counts = compare_in(world);
        (crowded, offloaded) = (crowded + counts.crowded, offloaded + counts.offloaded);
    }
    assert!(crowded > 0 && offloaded > 0, "{crowded} {offloaded}");
}
