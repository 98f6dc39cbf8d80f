//! What the file service asks a plug-in: which items a write brings, which keys a read takes.
//!
//! The write or read waits for that, since the table must be right before the host is answered. So
//! this asks one thing at a time, and sleeps until it is answered.

use std::future::ready;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use outboard_dds::dpu::offload::plugin::area::BATCH;
use outboard_dds::dpu::offload::plugin::exchange::{Batch, Said, entries};
use outboard_dds::dpu::offload::plugin::{Maintainer, Saying, Written};
use outboard_dds::dpu::offload::{Item, Key, ReadOp};

use super::Plugin;
use super::channel::{Channel, Found};
use outboard_os::wakeup::Wakeup;

/// How long a thread looks for an answer before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// A plug-in's `Cache` and `Invalidate`, in a process of their own.
pub struct PluginMaintainer {
    caches: bool,
    invalidates: bool,
    asked: Mutex<Asked>,
}

struct Asked {
    channel: Channel,
    wakeup: Wakeup,
    batch: Batch,
}

impl PluginMaintainer {
    /// Waits until the process is there; it ends with the thread that calls this.
    ///
    /// # Errors
    /// No descriptor could be made.
    pub fn new(plugin: Plugin) -> io::Result<PluginMaintainer> {
        let (caches, invalidates) = (plugin.profile.caches, plugin.profile.invalidates);
        let wakeup = Wakeup::new()?;
        let mut channel = Channel::new(plugin, &wakeup)?;
        if caches || invalidates {
            // The first write is to be heard, too.
            channel.begin();
        }
        let asked = Mutex::new(Asked { channel, wakeup, batch: Batch::new(BATCH) });
        Ok(PluginMaintainer { caches, invalidates, asked })
    }

    fn ask(&self, put: impl FnOnce(&mut Batch) -> bool) -> Option<Said> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.ask(put)
    }
}

impl Asked {
    /// `None` if there is no answer.
    fn ask(&mut self, put: impl FnOnce(&mut Batch) -> bool) -> Option<Said> {
        let now = Instant::now();
        if self.channel.look(now) != Found::Idle {
            return None;
        }
        self.batch.clear();
        if !put(&mut self.batch) {
            return None;
        }
        self.channel.ask(now, self.batch.bytes(), 1);
        loop {
            let now = Instant::now();
            match self.channel.look(now) {
                Found::Said(said) => {
                    let said = match entries(&said).as_deref() {
                        Some([(kind, body)]) => Said::parse(*kind, body, 0),
                        _ => None,
                    };
                    if said.is_none() {
                        self.channel.fail(now, "it said what cannot be");
                    }
                    return said;
                }
                Found::Busy => self.wait(now),
                Found::Idle | Found::Away => return None,
            }
        }
    }

    /// Waits until there may be an answer.
    fn wait(&mut self, begun: Instant) {
        while begun.elapsed() < SPIN {
            if self.channel.has_news() {
                return;
            }
            std::hint::spin_loop();
        }
        self.channel.set_waits(true);
        if !self.channel.has_news() {
            let now = Instant::now();
            let until = self.channel.deadline(now).unwrap_or(now);
            let limit = until.saturating_duration_since(now).max(Duration::from_micros(100));
            // Woken or not, it is looked at again; what keeps this from waiting ends it there.
            let _notified = self.wakeup.wait(limit);
        }
        self.channel.set_waits(false);
    }
}

impl Maintainer for PluginMaintainer {
    fn cache(&self, written: Written) -> Saying<Vec<(Key, Item)>> {
        let said = match self.caches.then(|| self.ask(|batch| batch.cache(written.op()))) {
            None => Some(Vec::new()),
            Some(Some(Said::Items(said))) => Some(said),
            Some(_) => None,
        };
        Box::pin(ready(said))
    }

    fn invalidate(&self, read: ReadOp) -> Saying<Vec<Key>> {
        let said = match self.invalidates.then(|| self.ask(|batch| batch.invalidate(read))) {
            None => Some(Vec::new()),
            Some(Some(Said::Keys(said))) => Some(said),
            Some(_) => None,
        };
        Box::pin(ready(said))
    }
}
