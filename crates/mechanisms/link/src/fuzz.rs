//! The bodies of this crate's fuzz targets: a host that writes anything anywhere, and a DPU that
//! must neither panic, nor reach beyond the region, nor work without bound, by either transport.
//! `fuzz/` drives them with libFuzzer, the tests with seeded bytes.

use std::sync::Arc;

use outboard_wire::nvmefs::Status;
use outboard_wire::regs::registers_len;

use crate::Region;
use crate::dma::{Counted, Direct};
use crate::layout::Layout;
use crate::queue::nvmefs::Target;
use crate::queue::virtiofs::{self, Rings, Variant};
use crate::queue::{Arrival, DpuQueue};
use crate::registers::Registers;
use outboard_base::ledger::Ledger;

const DEPTH: u16 = 8;

/// Plays `data` against a target: the first half fills the rings and the pages behind them, the
/// second half is a script of doorbells, scribbles and answers.
pub fn target(data: &[u8]) {
    let Some(layout) = Layout::new(1, DEPTH) else { return };
    let region = Region::anonymous(layout.rings_len() + (8 << 12));
    let Ok(registers) = Registers::create(Region::anonymous(registers_len(1, DEPTH)), layout, 1)
    else {
        return;
    };
    let ledger = Arc::new(Ledger::new());
    let dma = Arc::new(Counted::new(Direct::new(Arc::clone(&region)), Arc::clone(&ledger)));
    let Ok(mut target) = Target::new(dma, &registers, 0, ledger) else { return };
    play(data, layout.sqe_at(0, 0), &region, &registers, &mut target);
}

/// The same against a virtio-fs device: tuned when the first byte is odd, else as DPFS has it. The
/// first half of the rest fills the virtqueue.
pub fn device(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let Some(layout) = Layout::new(1, DEPTH) else { return };
    let Some(rings) = Rings::new(layout, 8192) else { return };
    let Some(queue) = rings.virtqueue(0) else { return };
    let region = Region::anonymous(rings.region_len());
    let Ok(registers) = Registers::create(Region::anonymous(registers_len(1, DEPTH)), layout, 1)
    else {
        return;
    };
    let ledger = Arc::new(Ledger::new());
    let dma = Arc::new(Counted::new(Direct::new(Arc::clone(&region)), Arc::clone(&ledger)));
    let variant = if first % 2 == 1 { Variant::Tuned } else { Variant::Dpfs };
    let Ok(mut target) = virtiofs::Target::new(dma, &registers, &rings, 0, variant, ledger) else {
        return;
    };
    play(data, queue.descriptor_at(0), &region, &registers, &mut target);
}

/// Fills memory from `at` on, then runs the script.
fn play(
    data: &[u8],
    at: u64,
    region: &Region,
    registers: &Registers,
    target: &mut (impl DpuQueue + ?Sized),
) {
    let (memory, script) = data.split_at(data.len() / 2);
    let fits = memory.len().min(usize::try_from(region.len() - at).unwrap_or(0));
    let _in_range = region.write_from(at, memory.get(..fits).unwrap_or_default());
    let mut held = Vec::new();
    for step in script.as_chunks::<4>().0 {
        turn(*step, region, at, registers, target, &mut held);
    }
}

fn turn(
    [what, a, b, c]: [u8; 4],
    region: &Region,
    at: u64,
    registers: &Registers,
    target: &mut (impl DpuQueue + ?Sized),
    held: &mut Vec<Arrival>,
) {
    let Some(block) = registers.queue(0) else { return };
    match what % 8 {
        0 => block.set_tail(u32::from(a) % (u32::from(DEPTH) + u32::from(b == 0))),
        1 => block.set_head(u32::from(a) % (u32::from(DEPTH) + u32::from(b == 0))),
        2 => {
            block.set_abort(u16::from(a) % DEPTH, u32::from(b));
            block.set_abort_doorbell(u32::from(c));
        }
        3 => block.set_control(u32::from(a) % 3),
        4 => {
            let at = at + u64::from(a) * 256 + u64::from(b);
            let _in_range = region.write_from(at, &[c]);
        }
        5 => {
            let before = held.len();
            let taken = target.poll(usize::from(a), held);
            assert!(taken <= usize::from(a));
            // Each entry brings a command and perhaps its abort; each running command one abort
            // more.
            assert!(held.len() - before <= 2 * taken + 2 * usize::from(DEPTH));
        }
        6 => {
            let _asleep = target.may_sleep();
        }
        _ => answer(target, held, usize::from(a), usize::from(b)),
    }
    assert!(target.in_flight() <= usize::from(DEPTH));
}

fn answer(target: &mut (impl DpuQueue + ?Sized), held: &mut Vec<Arrival>, pick: usize, len: usize) {
    if held.is_empty() {
        return;
    }
    if let Arrival::Command(command) = held.swap_remove(pick % held.len()) {
        let mut data = vec![0; usize::try_from(command.write_len()).unwrap_or(0)];
        let fetched = command.read_data(0, &mut data);
        let stored = command.write_data(0, data.get(..len.min(data.len())).unwrap_or_default());
        assert!(
            fetched.is_ok() && (stored.is_ok() || len > 0),
            "admitted ranges are in the region"
        );
        target.complete(command, Status::Ok, 0, data.get(..len.min(256)).unwrap_or_default());
    }
    let _interrupt = target.flush();
}

#[cfg(test)]
mod tests {
    use outboard_base::Rng;
    use outboard_wire::fuse::{InHeader, Opcode};
    use outboard_wire::nvmefs::{Dispatch, Prp, Sqe};
    use outboard_wire::virtio::Descriptor;
    use outboard_wire::virtio::message::unique;

    use super::*;

    fn entry(rng: &mut Rng, layout: Layout, cid: u16) -> [u8; 64] {
        let mut word = |bound: u64| rng.below(bound);
        let base = layout.rings_len();
        let sqe = Sqe {
            cid,
            tag: u32::try_from(1 + word(3)).unwrap(),
            dispatch: Dispatch::Kv,
            write: Prp { first: base + word(9 << 12), second: base + (word(9 << 12) & !7) },
            read: Prp { first: base + word(9 << 12), second: base + (word(9) << 12) },
            write_len: u32::try_from(256 + word(20_000)).unwrap(),
            read_len: u32::try_from(128 + word(20_000)).unwrap(),
            rh_len: u16::try_from(word(129)).unwrap(),
            wh_len: u16::try_from(word(257)).unwrap(),
        };
        sqe.emit()
    }

    /// A good 8 KiB write in four descriptors, its message lying in the avail ring's unused part;
    /// now and then one of them is bent.
    fn chain(rng: &mut Rng, layout: Layout, message: u64, index: u16) -> Descriptor {
        let slot = layout.slot(0, 0);
        let buffer = slot.buffer + 4096 * u64::from(index % 4);
        let (at, len) = [(message, 80), (buffer, 4096), (buffer, 4096), (slot.reply, 24)]
            [usize::from(index % 4)];
        let good = Descriptor {
            at,
            len,
            writable: index % 4 == 3,
            next: (index % 4 < 3).then(|| index + 1),
        };
        match rng.below(40) {
            0 => Descriptor { at: at + rng.below(1 << 22), ..good },
            1 => Descriptor { len: u32::try_from(rng.below(1 << 14)).unwrap(), ..good },
            2 => Descriptor { writable: !good.writable, ..good },
            3 => Descriptor { next: Some(u16::try_from(rng.below(70)).unwrap()), ..good },
            _ => good,
        }
    }

    #[test]
    fn seeded_hosts_cannot_break_the_device() {
        let layout = Layout::new(1, DEPTH).unwrap();
        let rings = Rings::new(layout, 8192).unwrap();
        let queue = rings.virtqueue(0).unwrap();
        let place = |at: u64| usize::try_from(at - queue.descriptor_at(0)).unwrap();
        for seed in 0..400 {
            let mut rng = Rng::new(seed);
            let mut memory = Vec::new();
            for index in 0..queue.size() {
                memory.extend(chain(&mut rng, layout, queue.avail_at() + 40, index).emit());
            }
            memory.resize(place(queue.end()), 0);
            let avail = place(queue.avail_at());
            memory[avail + 2] = 8;
            for head in 0..8 {
                memory[avail + 4 + 2 * head] = u8::try_from(4 * rng.below(17)).unwrap();
            }
            let header = InHeader {
                len: 80 + 8192,
                opcode: Opcode::Write as u32,
                unique: unique(u16::try_from(rng.below(9)).unwrap(), 1),
                ..InHeader::default()
            };
            memory[avail + 40..avail + 80].copy_from_slice(&header.emit());
            let mut script = vec![0; 400];
            rng.fill(&mut script);
            script.resize(memory.len(), 0);
            let data = [vec![u8::from(rng.chance(1, 2))], memory, script].concat();
            let run = std::panic::catch_unwind(|| device(&data));
            assert!(run.is_ok(), "seed {seed}");
        }
    }

    /// Mostly valid entries with hostile places, then any script: seeded, so that each run is the
    /// same.
    #[test]
    fn seeded_hosts_cannot_break_the_target() {
        let layout = Layout::new(1, DEPTH).unwrap();
        for seed in 0..600 {
            let mut rng = Rng::new(seed);
            let mut memory = Vec::new();
            for cid in 0..DEPTH {
                let cid = if rng.chance(1, 8) { 99 } else { cid };
                let mut raw = entry(&mut rng, layout, cid);
                if rng.chance(1, 3) {
                    let at = usize::try_from(rng.below(64)).unwrap();
                    rng.fill(&mut raw[at..=at]);
                }
                memory.extend(raw);
            }
            memory.resize(usize::try_from(layout.rings_len() + (8 << 12) - 4096).unwrap(), 0);
            let lists = usize::try_from(layout.rings_len() - 4096).unwrap();
            for place in memory[lists..].chunks_exact_mut(8) {
                let page = layout.rings_len() + (rng.below(9) << 12) + rng.below(40) / 39;
                place.copy_from_slice(&page.to_le_bytes());
            }
            let mut script = vec![0; memory.len()];
            rng.fill(&mut script[..400]);
            script.truncate(400);
            // The halves must be equal: pad the script with polls that take nothing.
            script.resize(memory.len(), 5);
            script[400..].chunks_exact_mut(4).for_each(|s| s.copy_from_slice(&[5, 0, 0, 0]));
            let data = [memory, script].concat();
            let run = std::panic::catch_unwind(|| target(&data));
            assert!(run.is_ok(), "seed {seed}");
        }
    }
}
