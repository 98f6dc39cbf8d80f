//! Clients that want the same files, stop, lose messages, and a server that dies: of what clients
//! believe by their own clocks there is one writer or readers, and whoever gets a file gets its
//! size.

use std::time::Duration;

use outboard_base::Ino;
use outboard_sim::{Chooser, seeds};
use outboard_wire::shared::call::{Call, Mode, Reply};

use crate::client::Client;
use crate::world::Rig;

/// What a walk met.
#[derive(Default)]
struct Met {
    grants: u64,
    shared: u64,
    ends: u64,
    restarts: u64,
}

fn judge(rig: &Rig, clients: &[Client], files: &[Ino], met: &mut Met) {
    let now = rig.world.time();
    for ino in files {
        let uses: Vec<(u64, Mode, u64)> = clients
            .iter()
            .filter_map(|client| {
                let has = client.uses(*ino, now)?;
                Some((client.id, has.mode, has.end))
            })
            .collect();
        let writers = uses.iter().filter(|(_, mode, _)| *mode == Mode::Write).count();
        assert!(writers == 0 || uses.len() == 1, "{ino}: {uses:?}");
        met.shared += u64::from(uses.len() > 1);
        for (client, _, end) in uses {
            assert_eq!(end, rig.world.end(ino.0), "client {client} knows an old end of {ino}");
        }
    }
}

fn walk(seed: u64) -> Met {
    let mut chooser = Chooser::new(seed);
    let rig = Rig::new(seed);
    let mut met = Met::default();
    rig.renew(100);
    let files = [rig.create(100, 11, b"a"), rig.create(100, 11, b"b")];
    // Names of files must survive a loss of power.
    let synced = rig.call(100, rig.file(11, &outboard_wire::file::Request::Syncfs));
    assert!(matches!(synced, Reply::File { .. }));
    let mut clients: Vec<Client> = (1..=3).map(Client::new).collect();
    let mut next = 4;
    for _ in 0..1500 {
        (0..1 + chooser.below(3)).for_each(|_| rig.step());
        rig.world.pass(Duration::from_millis(chooser.below(150)));
        for client in &mut clients {
            let before = client.has.len();
            if !client.step(&rig, &mut chooser, &files) {
                met.ends += 1;
                *client = Client::new(next);
                next += 1;
            }
            met.grants += u64::from(client.has.len() > before);
        }
        judge(&rig, &clients, &files, &mut met);
        match chooser.below(600) {
            0 => {
                rig.restart(chooser.chance(1, 2));
                met.restarts += 1;
            }
            1..4 => {
                let at = chooser.below(3) as usize;
                let time = Duration::from_millis(chooser.below(40_000));
                clients[at].stopped_until = rig.world.time().after(time);
            }
            // Its process is killed, and another begins.
            4 => {
                let at = chooser.below(3) as usize;
                clients[at] = Client::new(next);
                next += 1;
            }
            _ => {}
        }
    }
    heal(&rig, &files);
    met
}

/// Nobody else is there any more: whoever comes gets everything, and a check finds nothing.
fn heal(rig: &Rig, files: &[Ino]) {
    rig.world.state().asked.clear();
    rig.renew(200);
    let slots: Vec<_> = files
        .iter()
        .map(|ino| (*ino, rig.ask(200, Call::Delegate { ino: *ino, mode: Mode::Write })))
        .collect();
    for _ in 0..120 {
        rig.pass(Duration::from_secs(1));
        rig.renew(200);
    }
    for (ino, slot) in slots {
        let reply = rig.at_once(&slot);
        let Some(Reply::Grant(grant)) = reply else { panic!("{ino}: {reply:?}") };
        assert_eq!(grant.attr.size, rig.world.end(ino.0));
    }
    let checked = rig.call(200, Call::Check { contents: true });
    let Reply::Text(text) = checked else { panic!("{checked:?}") };
    assert!(text.starts_with("{\"findings\":[],"), "{text}");
}

#[test]
fn there_is_one_writer_or_readers_whatever_is_lost() {
    let runs = seeds::run(0..20, walk);
    let sum = |of: fn(&Met) -> u64| runs.outcomes.iter().map(of).sum::<u64>();
    let met = [
        sum(|met| met.grants),
        sum(|met| met.shared),
        sum(|met| met.ends),
        sum(|met| met.restarts),
    ];
    assert!(runs.is_alone || met.iter().all(|count| *count > 20), "too little happens: {met:?}");
}
