//! Both ends of one queue pair in one process.

use std::sync::Arc;

use outboard_base::limits::{IO_MAX, REPLY_HEADER_MAX, REQUEST_HEADER_MAX};
use outboard_link::Region;
use outboard_link::dma::{Counted, Direct, Dma, Ledger};
use outboard_link::layout::Layout;
use outboard_link::queue::nvmefs::{Initiator, Target};
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
