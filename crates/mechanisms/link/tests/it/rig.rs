//! Both ends of one queue pair in one process.

use std::sync::Arc;

use outboard_base::ledger::{Count, Ledger};
use outboard_base::limits::{IO_MAX, REPLY_HEADER_MAX, REQUEST_HEADER_MAX};
use outboard_link::Region;
use outboard_link::dma::{Counted, Direct, Dma};
use outboard_link::layout::Layout;
use outboard_link::queue::nvmefs::{Initiator, Target};
use outboard_link::queue::virtiofs::{self, Rings, Variant};
use outboard_link::queue::{Arrival, Command, Completion, DpuQueue, HostQueue, Span, Submission};
use outboard_link::registers::Registers;
use outboard_wire::nvmefs::Dispatch;
use outboard_wire::regs::registers_len;

/// A transport under test: makes both ends of a queue pair of `depth` entries.
pub(crate) trait Transport {
    type Host: HostQueue;
    type Dpu: DpuQueue;
    fn pair(depth: u16) -> (Self::Host, Self::Dpu);
}

pub(crate) struct Nvmefs;

impl Transport for Nvmefs {
    type Host = Initiator;
    type Dpu = Target;

    fn pair(depth: u16) -> (Initiator, Target) {
        let rig = Rig::new(depth);
        (rig.host, rig.dpu)
    }
}

pub(crate) struct Dpfs;

impl Transport for Dpfs {
    type Host = virtiofs::Initiator;
    type Dpu = virtiofs::Target;

    fn pair(depth: u16) -> (virtiofs::Initiator, virtiofs::Target) {
        let rig = DpfsRig::new(depth);
        (rig.host, rig.dpu)
    }
}

pub(crate) struct Tuned;

impl Transport for Tuned {
    type Host = virtiofs::Initiator;
    type Dpu = virtiofs::Target;

    fn pair(depth: u16) -> (virtiofs::Initiator, virtiofs::Target) {
        let rig = TunedRig::new(depth);
        (rig.host, rig.dpu)
    }
}

/// A pair whose DPU side can be lost and replaced, over any engine.
pub(crate) trait Mortal: Sized {
    type Host: HostQueue;
    type Dpu: DpuQueue;
    fn build(depth: u16, engine: impl FnOnce(Arc<Region>, &Arc<Ledger>) -> Arc<dyn Dma>) -> Self;
    fn host(&mut self) -> &mut Self::Host;
    fn dpu(&mut self) -> &mut Self::Dpu;
    /// The DPU is gone; another begins its `life` with a new engine.
    fn lose(&mut self, life: u64, engine: impl FnOnce(Arc<Region>, &Arc<Ledger>) -> Arc<dyn Dma>);
    fn resubmit(&mut self) -> usize;
    fn violations(&self) -> u64;
}

impl Mortal for Rig {
    type Host = Initiator;
    type Dpu = Target;

    fn build(depth: u16, engine: impl FnOnce(Arc<Region>, &Arc<Ledger>) -> Arc<dyn Dma>) -> Rig {
        Rig::with(depth, engine)
    }

    fn host(&mut self) -> &mut Initiator {
        &mut self.host
    }

    fn dpu(&mut self) -> &mut Target {
        &mut self.dpu
    }

    fn lose(&mut self, life: u64, engine: impl FnOnce(Arc<Region>, &Arc<Ledger>) -> Arc<dyn Dma>) {
        let next = registers(self.layout, life);
        self.host.reattach(&next).unwrap();
        let dma = engine(Arc::clone(&self.region), &self.ledger);
        self.dpu = Target::new(dma, &next, 0, Arc::clone(&self.ledger)).unwrap();
    }

    fn resubmit(&mut self) -> usize {
        self.host.resubmit()
    }

    fn violations(&self) -> u64 {
        self.host_ledger.snapshot().count(Count::Violations)
    }
}

impl<const TUNED: bool> Mortal for VirtioRig<TUNED> {
    type Host = virtiofs::Initiator;
    type Dpu = virtiofs::Target;

    fn build(depth: u16, engine: impl FnOnce(Arc<Region>, &Arc<Ledger>) -> Arc<dyn Dma>) -> Self {
        VirtioRig::with(depth, engine)
    }

    fn host(&mut self) -> &mut virtiofs::Initiator {
        &mut self.host
    }

    fn dpu(&mut self) -> &mut virtiofs::Target {
        &mut self.dpu
    }

    fn lose(&mut self, life: u64, engine: impl FnOnce(Arc<Region>, &Arc<Ledger>) -> Arc<dyn Dma>) {
        let next = registers(self.rings.layout(), life);
        self.host.reattach(&next).unwrap();
        let dma = engine(Arc::clone(&self.region), &self.ledger);
        let ledger = Arc::clone(&self.ledger);
        self.dpu =
            virtiofs::Target::new(dma, &next, &self.rings, 0, Self::VARIANT, ledger).unwrap();
        self.registers = next;
    }

    fn resubmit(&mut self) -> usize {
        self.host.resubmit()
    }

    fn violations(&self) -> u64 {
        self.host_ledger.snapshot().count(Count::Violations)
    }
}

/// A virtio-fs pair with everything around it in reach.
pub(crate) struct VirtioRig<const TUNED: bool> {
    pub(crate) region: Arc<Region>,
    pub(crate) rings: Rings,
    pub(crate) registers: Registers,
    pub(crate) host_ledger: Arc<Ledger>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) host: virtiofs::Initiator,
    pub(crate) dpu: virtiofs::Target,
}

pub(crate) type DpfsRig = VirtioRig<false>;
pub(crate) type TunedRig = VirtioRig<true>;

impl<const TUNED: bool> VirtioRig<TUNED> {
    const VARIANT: Variant = if TUNED { Variant::Tuned } else { Variant::Dpfs };

    pub(crate) fn new(depth: u16) -> Self {
        VirtioRig::with(depth, |region, ledger| engine(&region, ledger))
    }

    pub(crate) fn with(
        depth: u16,
        engine: impl FnOnce(Arc<Region>, &Arc<Ledger>) -> Arc<dyn Dma>,
    ) -> Self {
        let layout = Layout::new(1, depth).unwrap();
        let rings = Rings::new(layout, 1 << 20).unwrap();
        let region = Region::anonymous(rings.region_len());
        let registers = registers(layout, 1);
        let (host_ledger, ledger) = (Arc::new(Ledger::new()), Arc::new(Ledger::new()));
        let dma = engine(Arc::clone(&region), &ledger);
        let host = virtiofs::Initiator::new(
            Arc::clone(&region),
            &registers,
            rings,
            0,
            Arc::clone(&host_ledger),
        )
        .unwrap();
        let counts = Arc::clone(&ledger);
        let dpu = virtiofs::Target::new(dma, &registers, &rings, 0, Self::VARIANT, counts).unwrap();
        VirtioRig { region, rings, registers, host_ledger, ledger, host, dpu }
    }
}

/// An nvme-fs pair with everything around it in reach.
pub(crate) struct Rig {
    pub(crate) region: Arc<Region>,
    pub(crate) layout: Layout,
    pub(crate) registers: Registers,
    pub(crate) host_ledger: Arc<Ledger>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) host: Initiator,
    pub(crate) dpu: Target,
}

pub(crate) fn registers(layout: Layout, instance: u64) -> Registers {
    let pages = Region::anonymous(registers_len(layout.queues(), layout.depth()));
    Registers::create(pages, layout, instance).unwrap()
}

pub(crate) fn engine(region: &Arc<Region>, ledger: &Arc<Ledger>) -> Arc<dyn Dma> {
    Arc::new(Counted::new(Direct::new(Arc::clone(region)), Arc::clone(ledger)))
}

impl Rig {
    pub(crate) fn new(depth: u16) -> Rig {
        Rig::with(depth, |region, ledger| engine(&region, ledger))
    }

    pub(crate) fn with(
        depth: u16,
        engine: impl FnOnce(Arc<Region>, &Arc<Ledger>) -> Arc<dyn Dma>,
    ) -> Rig {
        let layout = Layout::new(1, depth).unwrap();
        let region = Region::anonymous(layout.region_len());
        let registers = registers(layout, 1);
        let (host_ledger, ledger) = (Arc::new(Ledger::new()), Arc::new(Ledger::new()));
        let dma = engine(Arc::clone(&region), &ledger);
        let host =
            Initiator::new(Arc::clone(&region), &registers, 0, Arc::clone(&host_ledger)).unwrap();
        let dpu = Target::new(dma, &registers, 0, Arc::clone(&ledger)).unwrap();
        Rig { region, layout, registers, host_ledger, ledger, host, dpu }
    }
}

pub(crate) fn submission(header: &[u8]) -> Submission<'_> {
    Submission {
        dispatch: Dispatch::Kv,
        header,
        write: Span::NONE,
        read: Span::NONE,
        reply_header: 0,
    }
}

/// Polls until nothing more comes; commands only.
pub(crate) fn commands(dpu: &mut impl DpuQueue) -> Vec<Command> {
    arrivals(dpu)
        .into_iter()
        .filter_map(|arrival| match arrival {
            Arrival::Command(command) => Some(command),
            Arrival::Abort(_) => None,
        })
        .collect()
}

pub(crate) fn arrivals(dpu: &mut impl DpuQueue) -> Vec<Arrival> {
    let mut out = Vec::new();
    dpu.poll(usize::MAX, &mut out);
    out
}

pub(crate) fn completions(host: &mut impl HostQueue) -> Vec<Completion> {
    let mut out = Vec::new();
    host.poll(usize::MAX, &mut out);
    out
}

/// Sends one command and has the DPU fetch its data whole.
pub(crate) fn ring(host: &mut impl HostQueue) {
    let _asleep = host.ring();
}

const _: () = assert!(REQUEST_HEADER_MAX >= 2560 && REPLY_HEADER_MAX >= 256 && IO_MAX >= 1 << 20);
