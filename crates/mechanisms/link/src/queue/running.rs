//! The commands a target has given out: their tags, their aborts, and the end of their queue. The
//! registers and the rules are the same for every transport.

use outboard_wire::regs::queue::{DELETE, DELETED, RUNNING};

use super::{Arrival, Cid, CommandId};
use crate::registers::QueueRegisters;
use outboard_base::ledger::{Count, Ledger};

/// Where the life of the queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    /// The host asked for the end; what is in flight is being aborted.
    Deleting,
    Deleted,
}

/// What a target knows of the commands it gave out.
#[derive(Debug)]
pub(super) struct Running {
    /// Tags of the commands in flight, by command id; 0: none.
    tags: Vec<u32>,
    in_flight: usize,
    abort_doorbell: u32,
    /// Abort words as last read.
    aborts: Vec<u32>,
    life: Life,
}

impl Running {
    pub(super) fn new(depth: u16) -> Running {
        let none = vec![0; usize::from(depth)];
        let life = Life::Running;
        Running { tags: none.clone(), in_flight: 0, abort_doorbell: 0, aborts: none, life }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether a command may have this id: in range, and nobody has it.
    pub(super) fn is_free(&self, cid: u16) -> bool {
        self.tags.get(usize::from(cid)) == Some(&0)
    }

    /// Whether commands are still taken.
    pub(super) fn is_running(&self) -> bool {
        self.life == Life::Running
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.life == Life::Deleted
    }

    /// A command is given out; its abort may be there already.
    pub(super) fn begin(&mut self, id: CommandId) -> Option<Arrival> {
        let at = usize::from(id.cid.0);
        if let Some(tag) = self.tags.get_mut(at) {
            *tag = id.tag;
            self.in_flight += 1;
        }
        (self.aborts.get(at) == Some(&id.tag)).then_some(Arrival::Abort(id))
    }

    /// A command comes back; false when it was never given out.
    pub(super) fn end(&mut self, id: CommandId) -> bool {
        let tag = self.tags.get_mut(usize::from(id.cid.0)).filter(|tag| **tag == id.tag);
        let known = tag.map(|tag| *tag = 0).is_some();
        self.in_flight -= usize::from(known);
        known
    }

    /// Looks at the control word; true when the queue starts afresh.
    pub(super) fn follow_control(
        &mut self,
        registers: &QueueRegisters,
        ledger: &Ledger,
        out: &mut Vec<Arrival>,
    ) -> bool {
        let delete = registers.control() == DELETE;
        match self.life {
            Life::Running if delete => {
                self.life = Life::Deleting;
                self.abort_all(ledger, out);
                false
            }
            Life::Deleted if !delete => {
                self.life = Life::Running;
                registers.set_state(RUNNING);
                true
            }
            _ => false,
        }
    }

    fn abort_all(&self, ledger: &Ledger, out: &mut Vec<Arrival>) {
        for (cid, tag) in (0u16..).zip(&self.tags) {
            if *tag != 0 {
                ledger.count(Count::Aborts, 1);
                out.push(Arrival::Abort(CommandId { cid: Cid(cid), tag: *tag }));
            }
        }
    }

    /// Says that the queue is deleted, once nothing is in flight and `drained`.
    pub(super) fn end_if(&mut self, drained: bool, registers: &QueueRegisters) {
        if self.life == Life::Deleting && drained && self.in_flight == 0 {
            self.life = Life::Deleted;
            registers.set_state(DELETED);
        }
    }

    /// Reads the abort words when their doorbell changed. The caller has read the submission
    /// doorbell before: an abort older than a reuse of its command id is then seen before it.
    pub(super) fn follow_aborts(
        &mut self,
        registers: &QueueRegisters,
        ledger: &Ledger,
        out: &mut Vec<Arrival>,
    ) {
        let doorbell = registers.abort_doorbell();
        if doorbell == self.abort_doorbell {
            return;
        }
        self.abort_doorbell = doorbell;
        for (cid, (seen, running)) in (0u16..).zip(self.aborts.iter_mut().zip(&self.tags)) {
            let tag = registers.abort(cid);
            if tag != *seen {
                *seen = tag;
                if tag != 0 && tag == *running {
                    ledger.count(Count::Aborts, 1);
                    out.push(Arrival::Abort(CommandId { cid: Cid(cid), tag }));
                }
            }
        }
    }

    /// Whether the registers ask for something beside commands.
    pub(super) fn has_work(&self, registers: &QueueRegisters) -> bool {
        let delete = registers.control() == DELETE;
        match self.life {
            Life::Deleted => !delete,
            Life::Deleting => {
                self.in_flight == 0 || registers.abort_doorbell() != self.abort_doorbell
            }
            Life::Running => delete || registers.abort_doorbell() != self.abort_doorbell,
        }
    }
}
