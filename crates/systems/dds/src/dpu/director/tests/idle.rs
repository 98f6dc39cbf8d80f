//! Clients that are slow, by a clock that the test moves.

use super::once::Counting;
use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);
/// How often idle clients are looked for.
const LOOK: Duration = Duration::from_secs(7);

/// Each byte of a command that never became whole made a client not idle: a byte a minute kept a
/// place for ever. Others that get something done, however seldom, or wait for somebody else, stay.
#[test]
fn who_sends_a_byte_a_second_is_idle_and_holds_its_bytes_alone() {
    let app = Arc::new(Counting::default());
    let director = Local::of(Arc::clone(&app) as _, Arc::new(Shared::default()), 8, Pool::new(0));
    let mut director = director.within(100, 1 << 20);
    let [drip, seldom, long, waits, silent] = [(); 5].map(|()| director.open(true));
    let forwarded = director.open(false);
    let (mut now, mut gone) = (Time(0), Vec::new());
    let all = [drip, seldom, long, waits, silent, forwarded];
    all.iter().for_each(|id| director.came(*id, now));
    director.client_bytes(waits, b"X\n");
    for second in 1..=300u64 {
        now = now.after(Duration::from_secs(1));
        if director.flow(drip).is_some() {
            director.client_bytes(drip, b"k");
            let held = director.flow(drip).unwrap().weight();
            assert_eq!(held, usize::try_from(second).unwrap(), "its bytes, and nothing else");
        }
        if second % 50 == 0 {
            director.client_bytes(seldom, b"X\n");
            host_answers(&mut director, seldom);
        }
        // A long message over a slow line.
        director.client_bytes(long, &[b'y'; 200]);
        if second % 30 == 0 {
            director.client_bytes(forwarded, b"?");
        }
        if second % LOOK.as_secs() == 0 {
            for id in director.find_idle(now, TIMEOUT) {
                gone.push((id, second));
                director.close(id);
            }
        }
    }
    let gone: HashMap<FlowId, u64> = gone.into_iter().collect();
    for id in [drip, silent] {
        let second = gone[&id];
        assert!((60..=60 + LOOK.as_secs()).contains(&second), "{second}");
    }
    for id in [seldom, long, waits, forwarded] {
        assert!(director.flow(id).is_some() && !gone.contains_key(&id), "{id:?}");
    }
    // Nor does it keep a worker: each byte was looked at once.
    let (shown, _) = app.take();
    assert!(shown < 300 * 200 + 1000, "{shown}");
}

fn host_answers(director: &mut Local, id: FlowId) {
    let n = director.flow(id).unwrap().to_host().len();
    director.host_took(id, n);
    director.host_bytes(id, b"what?\n");
    assert_eq!(taken(director, id), b"what?\n");
}
