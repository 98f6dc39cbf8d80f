//! The watcher: sleeps for what nobody spins for.

use std::sync::Arc;
use std::time::Duration;

use outboard_base::Time;
use outboard_dpc::host::Session;
use outboard_link::events::{Acts, Receiver};
use outboard_volume::backend::Told;

use super::Stop;
use super::world::HostWorld;
use crate::link::{HostLink, HostMemory};
use outboard_os::clock;
use outboard_os::futex;

/// Longest sleep: a wake-up that is lost all the same is a delay, not a hang.
const NAP: Duration = Duration::from_secs(1);
/// How often it looks for a new link while the old one is lost.
const AWAY: Duration = Duration::from_millis(5);
/// Events taken in at a time.
const EVENTS: usize = 64;

pub(super) fn run(session: &Arc<Session>, world: &HostWorld, memory: &HostMemory, stop: &Stop) {
    while !stop.is_asked() {
        let (life, link) = (world.life(), world.link());
        if link.is_lost() {
            std::thread::sleep(AWAY);
            continue;
        }
        match link.receiver(memory) {
            Ok(mut receiver) => {
                let acts = session.keeps().then(|| receiver.acts());
                while !stop.is_asked() && !link.is_lost() && world.life() == life {
                    pass(session, &link, &mut receiver, acts.as_ref());
                }
            }
            Err(error) => {
                tracing::error!(%error, "the link has no event ring: it is given up");
                link.declare_lost();
            }
        }
    }
}

/// One pass: takes in what is there and sleeps until there is more.
fn pass(
    session: &Arc<Session>,
    link: &HostLink,
    receiver: &mut Receiver,
    acts: Option<&Arc<Acts>>,
) {
    let mut words = Vec::with_capacity(usize::from(session.queues()) + 1);
    for queue in (0..session.queues()).filter(|queue| session.is_watched(*queue)) {
        let Some(block) = link.registers().queue(queue) else { continue };
        // Down: between a new link and the session's return to it.
        if let Some(word) = session.watch(queue) {
            words.push((block.interrupt_at(), word));
        } else {
            std::thread::sleep(AWAY);
            return;
        }
    }
    let mut events = Vec::new();
    loop {
        let first = receiver.next();
        receiver.poll(EVENTS, &mut events);
        for (number, event) in (first..).zip(events.drain(..)) {
            let told = acts.map(Arc::clone).map(|acts| Told::new(move || acts.acted(number)));
            session.event(event, told.unwrap_or_default());
        }
        if let Some(word) = receiver.may_sleep() {
            words.push((link.registers().event_interrupt_at(), word));
            break;
        }
    }
    if link.is_lost() {
        return;
    }
    let until: Time = clock::now().after(NAP);
    if let Err(error) = futex::wait_any(link.registers().region(), &words, until) {
        tracing::error!(%error, "cannot sleep on the link's words (this needs Linux 5.16)");
        std::thread::sleep(AWAY);
    }
}
