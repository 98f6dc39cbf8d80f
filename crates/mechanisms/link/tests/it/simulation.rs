//! Seeded interleavings of both ends with faults in the engine, against a simple model: every
//! command is answered exactly once, with its own answer, through any number of lost DPUs.
//!
//! `OUTBOARD_SEED=n` replays one seed; a failure prints it. `OUTBOARD_SEEDS=n` runs the first n.

use std::collections::BTreeMap;
use std::sync::Arc;

use outboard_base::ledger::Ledger;
use outboard_base::{Errno, Rng};
use outboard_link::dma::{Counted, Direct, Dma, Faults, Faulty};
use outboard_link::queue::{
    Arrival, Cid, Command, CommandId, DpuQueue, HostQueue, Span, Submission,
};
use outboard_wire::nvmefs::{QueueError, Status};

use crate::rig::{DpfsRig, Mortal, Rig, TunedRig, submission};

/// Data comes back elsewhere than it went out from, or a command could not be asked twice.
const READ_AT: u32 = 512 << 10;

/// What the model knows of a command on its way.
struct Sent {
    mark: u64,
    len: usize,
    id: CommandId,
    aborted: bool,
}

struct World<M> {
    rng: Rng,
    rig: M,
    faults: Faults,
    /// A descriptor that changed on the way had the DPU write over what another command carries:
    /// what was sent meanwhile is answered, but no more with its own data, whoever asks for it
    /// again. (The sound end of each run took it to be whole.)
    spoilt: bool,
    lives: u64,
    sent: BTreeMap<Cid, Sent>,
    working: Vec<Command>,
    aborts: Vec<CommandId>,
    marks: u64,
    answered: u64,
    asleep: bool,
    host_asleep: bool,
}

fn engine(
    region: &Arc<outboard_link::Region>,
    ledger: &Arc<Ledger>,
    faults: Faults,
    seed: u64,
) -> Arc<dyn Dma> {
    let direct = Direct::new(Arc::clone(region));
    Arc::new(Counted::new(Faulty::new(direct, faults, seed), Arc::clone(ledger)))
}

fn data_of(mark: u64, len: usize) -> Vec<u8> {
    mark.to_le_bytes().into_iter().cycle().take(len).collect()
}

impl<M: Mortal> World<M> {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut rng = Rng::new(seed);
        let depth = 2 << rng.below(5);
        let rig = M::build(depth, |region, ledger| engine(&region, ledger, faults, seed));
        World {
            rng,
            rig,
            faults,
            spoilt: faults.corrupt > 0,
            lives: 1,
            sent: BTreeMap::new(),
            working: Vec::new(),
            aborts: Vec::new(),
            marks: 0,
            answered: 0,
            asleep: false,
            host_asleep: false,
        }
    }

    fn pick(&mut self, bound: usize) -> usize {
        usize::try_from(self.rng.below(bound as u64)).unwrap()
    }

    fn submit(&mut self) {
        let Some(cid) = self.rig.host().acquire() else { return };
        let mark = self.marks;
        self.marks += 1;
        let len = self.pick(3) * self.pick(9000);
        self.rig.host().write_buffer(cid, 0, &data_of(mark, len)).unwrap();
        let write = Span::first(u32::try_from(len).unwrap());
        let read = Span { offset: READ_AT, len: write.len };
        let header = mark.to_le_bytes();
        let sub = Submission { write, read, reply_header: 8, ..submission(&header) };
        let id = self.rig.host().submit(cid, &sub).unwrap();
        self.sent.insert(cid, Sent { mark, len, id, aborted: false });
    }

    fn ring(&mut self) {
        if self.rig.host().ring() {
            assert!(self.asleep, "only a sleeper is woken");
            self.asleep = false;
        }
    }

    fn abort(&mut self) {
        let Some(sent) = self.sent.values_mut().next() else { return };
        sent.aborted = true;
        if self.rig.host().abort(sent.id) {
            self.asleep = false;
        }
    }

    fn reap(&mut self) {
        let mut done = Vec::new();
        let budget = self.pick(8);
        self.rig.host().poll(budget, &mut done);
        for completion in done {
            let sent = self.sent.remove(&completion.cid).expect("answered once");
            let faulty = self.spoilt || self.faults != Faults::default();
            match completion.status {
                Status::Ok => self.check_answer(completion.cid, &sent, completion.result),
                // A tag that changed on the way may be that of an earlier, aborted use.
                Status::Queue(QueueError::Aborted) => {
                    assert!(sent.aborted || self.spoilt);
                }
                Status::Queue(QueueError::TransferFailed) | Status::Errno(Errno::EIO) => {
                    assert!(faulty);
                }
                Status::Queue(_) => assert!(self.spoilt),
                other => panic!("{other:?}"),
            }
            self.answered += 1;
            self.rig.host().release(completion.cid).unwrap();
        }
    }

    fn check_answer(&mut self, cid: Cid, sent: &Sent, result: u64) {
        let (mut reply, mut data) = ([0; 8], vec![0; sent.len]);
        self.rig.host().reply_header(cid, &mut reply).unwrap();
        self.rig.host().read_buffer(cid, READ_AT, &mut data).unwrap();
        if !self.spoilt {
            assert_eq!((result, u64::from_le_bytes(reply)), (!sent.mark, sent.mark));
            assert!(data == data_of(!sent.mark, sent.len));
        }
    }

    fn poll_dpu(&mut self) {
        self.rig.dpu().awake();
        self.asleep = false;
        let (mut out, budget) = (Vec::new(), self.pick(6));
        self.rig.dpu().poll(budget, &mut out);
        for arrival in out {
            match arrival {
                Arrival::Command(command) => self.working.push(command),
                Arrival::Abort(id) => self.aborts.push(id),
            }
        }
    }

    fn answer(&mut self) {
        if self.working.is_empty() {
            return;
        }
        let pick = self.pick(self.working.len());
        let command = self.working.swap_remove(pick);
        let id = command.id();
        if let Some(at) = self.aborts.iter().position(|abort| *abort == id) {
            self.aborts.swap_remove(at);
            return self.rig.dpu().complete(command, Status::Queue(QueueError::Aborted), 0, &[]);
        }
        let Ok(header) = <[u8; 8]>::try_from(command.header()) else {
            assert!(self.spoilt);
            return self.rig.dpu().complete(command, Status::Errno(Errno::EIO), 0, &[]);
        };
        let mark = u64::from_le_bytes(header);
        let mut data = vec![0; command.write_len() as usize];
        let fetched = command.read_data(0, &mut data);
        if fetched.is_ok() && !self.spoilt {
            assert!(data == data_of(mark, data.len()));
        }
        let room = data.len().min(command.read_len() as usize);
        let stored = command.write_data(0, &data_of(!mark, room));
        let status =
            if fetched.and(stored).is_ok() { Status::Ok } else { Status::Errno(Errno::EIO) };
        self.rig.dpu().complete(command, status, !mark, &mark.to_le_bytes());
    }

    fn flush(&mut self) {
        if self.rig.dpu().flush() {
            assert!(self.host_asleep);
            self.host_asleep = false;
        }
    }

    fn sleep(&mut self) {
        if self.rng.chance(1, 2) {
            self.asleep = self.rig.dpu().may_sleep();
        } else {
            self.host_asleep = self.rig.host().may_sleep().is_some();
        }
    }

    /// The DPU dies, whatever it was doing; another takes over.
    fn lose_dpu(&mut self) {
        self.lives += 1;
        self.working.clear();
        self.aborts.clear();
        (self.asleep, self.host_asleep) = (false, false);
        let (faults, life) = (self.faults, self.lives);
        self.rig.lose(life, |region, ledger| engine(&region, ledger, faults, life));
        assert_eq!(self.rig.resubmit(), self.sent.len());
        self.ring();
    }

    fn turn(&mut self) {
        match self.rng.below(100) {
            0..20 => self.submit(),
            20..40 => self.ring(),
            40..55 => self.reap(),
            55..70 => self.poll_dpu(),
            70..85 => self.answer(),
            85..90 => self.flush(),
            90..93 => self.abort(),
            93..99 => self.sleep(),
            _ if self.rng.chance(1, 10) => self.lose_dpu(),
            _ => {}
        }
        if self.rig.dpu().fault().is_some() {
            assert_ne!(self.faults, Faults::default(), "an honest host is never at fault");
            self.lose_dpu();
        }
        assert_eq!(self.rig.host().in_flight(), self.sent.len());
    }

    /// No more faults and no more work: everything that was sent must be answered. Whoever sleeps
    /// with work before it is never woken by this loop, so a lost wake-up shows as a hang.
    fn settle(&mut self) {
        self.faults = Faults::default();
        self.lose_dpu();
        for _ in 0..10_000 {
            self.ring();
            if !self.asleep {
                self.poll_dpu();
                while !self.working.is_empty() {
                    self.answer();
                }
                self.flush();
                self.asleep = self.rig.dpu().may_sleep();
            }
            if !self.host_asleep {
                self.rig.host().awake();
                self.reap();
                self.host_asleep = self.rig.host().may_sleep().is_some();
            }
            if self.sent.is_empty() {
                return;
            }
        }
        panic!("{} commands are never answered", self.sent.len());
    }
}

fn run<M: Mortal>(seed: u64, faults: Faults) {
    let mut world = World::<M>::new(seed, faults);
    for _ in 0..3000 {
        world.turn();
    }
    world.settle();
    assert_eq!(world.answered, world.marks);
    if faults == Faults::default() {
        assert_eq!(world.rig.violations(), 0);
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match (number("OUTBOARD_SEED"), number("OUTBOARD_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(16),
    }
}

fn each_seed<M: Mortal>(faults: Faults) {
    for seed in seeds() {
        let outcome = std::panic::catch_unwind(|| run::<M>(seed, faults));
        assert!(outcome.is_ok(), "OUTBOARD_SEED={seed} with {faults:?}");
    }
}

fn every_command_is_answered_once_by_a_sound_engine<M: Mortal>() {
    each_seed::<M>(Faults::default());
}

fn every_command_is_answered_once_by_an_engine_that_fails_and_tears<M: Mortal>() {
    each_seed::<M>(Faults { fail: 600, tear: 600, corrupt: 0 });
}

fn a_host_whose_memory_changes_under_the_dpu_is_served_to_the_end<M: Mortal>() {
    each_seed::<M>(Faults { fail: 0, tear: 0, corrupt: 2000 });
}

macro_rules! simulations {
    ($($rig:ident, $module:ident;)*) => {$(
        mod $module {
            use super::$rig;

            #[test]
            fn every_command_is_answered_once_by_a_sound_engine() {
                super::every_command_is_answered_once_by_a_sound_engine::<$rig>();
            }

            #[test]
            fn every_command_is_answered_once_by_an_engine_that_fails_and_tears() {
                super::every_command_is_answered_once_by_an_engine_that_fails_and_tears::<$rig>();
            }

            #[test]
            fn a_host_whose_memory_changes_under_the_dpu_is_served_to_the_end() {
                super::a_host_whose_memory_changes_under_the_dpu_is_served_to_the_end::<$rig>();
            }
        }
    )*};
}

simulations! {
    Rig, nvmefs;
    DpfsRig, virtiofs_dpfs;
    TunedRig, virtiofs_tuned;
}
