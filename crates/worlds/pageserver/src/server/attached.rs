//! One host, attached: its pumps and its wakeups.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::ledger::{Count, Ledger};
use outboard_base::task::Spawn;
use outboard_dds::dpu::offload::health::Health;
use outboard_dds::dpu::pump::summary::Summary;
use outboard_dds::dpu::pump::{Config, Pump, Pumped};
use outboard_dds::groups::Shape;
use outboard_dds::table;
use outboard_dds::wakeups::WakeupWords;
use outboard_link::dma::{Counted, Direct, Dma};
use outboard_link::ring::Fault;
use outboard_wire::attach::{Message, Reason, RingsHello, RingsWelcome, Welcome};
use rustix::net::{AddressFamily, SendFlags, sockopt};
use serde_json::{Value, json};

use super::{Files, backup};
use crate::wakeups::{Asked, Wakeups};
use outboard_attach::link::Peer;
use outboard_os::clock;
use outboard_os::runtime::Poller;
use outboard_os::shm::Shared;
use outboard_os::wakeup::Wakeup;

/// Bytes of a host's region at most.
const REGION_MAX: u64 = 4 << 30;

/// While a host's ring of responses is full it is looked at this often.
const SHORT: Duration = Duration::from_micros(500);

/// What attached hosts are served with.
pub(super) struct Terms<'a> {
    pub(super) files: &'a Arc<Files>,
    pub(super) summary: &'a Arc<Summary>,
    pub(super) health: &'a Health,
    pub(super) config: Config,
    pub(super) ledger: &'a Arc<Ledger>,
    pub(super) wakeup: &'a Arc<Wakeup>,
    pub(super) table: &'a table::Reader,
    /// What backups are made of.
    pub(super) backup: &'a backup::Source,
    /// When the server began.
    pub(super) started: Time,
}

/// One group.
struct Group {
    pump: Pump<backup::Held>,
    fault: Option<Fault>,
}

/// A host.
pub(super) struct Attached {
    groups: Vec<Group>,
    shape: Shape,
    wakeups: Wakeups,
    /// Where the host sleeps when it does not sleep on a word.
    wake: OwnedFd,
    summary: Arc<Summary>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.summary.leave();
    }
}

impl Attached {
    /// Takes a host in as it asks, and answers it; or says why not.
    pub(super) fn admit(
        peer: &Peer,
        hello: &RingsHello,
        fds: Vec<OwnedFd>,
        terms: &Terms<'_>,
    ) -> Result<Attached, (Reason, String)> {
        let malformed = |text: &str| (Reason::Malformed, text.to_owned());
        let region = |text: String| (Reason::Region, text);
        let region_len = hello.region_len;
        let shape = Shape::asked(hello).filter(|_| region_len <= REGION_MAX).ok_or_else(|| {
            region(format!("a region of {region_len} bytes is too small or too large"))
        })?;
        let Ok([memory, wake]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(malformed("an attachment brings exactly one region and one socket"));
        };
        if sockopt::socket_domain(&wake) != Ok(AddressFamily::UNIX) {
            return Err(malformed("an attachment is woken through a Unix socket"));
        }
        let shared = Shared::open(memory, region_len).map_err(|error| region(error.to_string()))?;
        let direct = Direct::new(Arc::clone(shared.region()));
        let dma: Arc<dyn Dma> = Arc::new(Counted::new(direct, Arc::clone(terms.ledger)));
        let mut all = Vec::new();
        let summary = Arc::new(terms.summary.for_another());
        for places in (0..hello.groups).filter_map(|group| shape.rings(group)) {
            let (files, ledger) = (Arc::clone(terms.files), Arc::clone(terms.ledger));
            let pump = Pump::new(files, Arc::clone(&summary), &dma, places, terms.config, ledger)
                .map_err(|error| region(error.to_string()))?;
            all.push(Group { pump, fault: None });
        }
        let wakeups = welcome(peer, hello.groups, terms.wakeup).map_err(|error| {
            (Reason::Closing, format!("the Welcome could not be sent: {error}"))
        })?;
        Ok(Attached { groups: all, shape, wakeups, wake, summary })
    }

    /// One pass over every group; how much was found.
    pub(super) fn pass(&mut self, now: Time, runtime: &Poller, ledger: &Ledger) -> usize {
        let mut found = 0;
        let Attached { groups, wakeups, wake, .. } = self;
        for (group, number) in groups.iter_mut().zip(0..) {
            if group.fault.is_some() {
                continue;
            }
            match group.pump.pass(now, &mut |work| runtime.spawn(work)) {
                Ok(Pumped { begun, delivered, .. }) => {
                    found += begun + delivered;
                    if delivered > 0 && interrupt(wakeups, wake, number) {
                        ledger.count(Count::Interrupts, 1);
                    }
                }
                Err(fault) => group.fault = Some(fault),
            }
        }
        found
    }

    /// What makes it impossible to follow this host any further.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.groups.iter().find_map(|group| group.fault)
    }

    /// When to come back although nobody notifies: for responses that wait for company, or for a
    /// host that has to read some first.
    pub(super) fn next_deadline(&self, now: Time) -> Option<Time> {
        let healthy = self.groups.iter().filter(|group| group.fault.is_none());
        let pumps = healthy.map(|group| &group.pump);
        let short = |pump: &Pump<_>| pump.is_short().then(|| now.after(SHORT));
        pumps.filter_map(|pump| pump.next_deadline().or_else(|| short(pump))).min()
    }

    /// Its rings, one pair for each group, and what is under way in them.
    pub(super) fn json(&self) -> Vec<Value> {
        let of = |group: &Group| {
            json!({
                "request_bytes": self.shape.request_bytes(),
                "response_bytes": self.shape.response_bytes(),
                "under_way": group.pump.under_way(),
                "waiting": group.pump.waiting(),
            })
        };
        self.groups.iter().map(of).collect()
    }

    pub(super) fn set_asleep(&self, asleep: bool) {
        self.wakeups.set_asleep(asleep);
    }
}

/// Wakes who sleeps for a group; whether somebody did.
fn interrupt(wakeups: &Wakeups, wake: &OwnedFd, group: u16) -> bool {
    match wakeups.interrupt(group) {
        Ok(Asked::Nothing) | Err(_) => false,
        Ok(Asked::Woken) => true,
        Ok(Asked::Byte) => {
            // A full socket is readable, and a closed one has no reader: nothing to do for either.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _full_or_closed = rustix::net::send(wake, &[1], flags);
            true
        }
    }
}

fn welcome(peer: &Peer, groups: u16, wakeup: &Wakeup) -> io::Result<Wakeups> {
    let wakeups_len = WakeupWords::len(groups);
    let pages = Shared::create("outboard-wakeups", wakeups_len)?;
    let notifier = wakeup.notifier()?;
    let welcome = RingsWelcome { instance: clock::now().0 | 1, wakeups_len };
    let message = Message::Welcome(Welcome::Rings(welcome));
    peer.send(&message, &[pages.fd(), notifier.fd()])?;
    Ok(Wakeups::new(Arc::clone(pages.region())))
}
