//! The DPU side of Figure 6: a device that moves the bytes and stores nothing.
//!
//! It is a process of its own. Its standard input is the host's region and its standard output the
//! registers, with a page behind them: wakeups, and the figures it reports when asked.
//!
//! ```text
//! 0x000 u32 ask      changes when the host wants figures     0x040 u32 answer   the same, given
//! 0x080 u64 CPU ns   0x088 u64 DMAs   0x090 u64 bytes   0x098 u64 commands
//! 0x100 u32 wakeup[8], a line each     changes when a worker that sleeps is to wake up
//! ```

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::ledger::{Count, Ledger};
use outboard_base::limits::PAGE;
use outboard_link::Region;
use outboard_link::dma::{Counted, Delayed, Direct, Dma, Price};
use outboard_link::layout::Layout;
use outboard_link::pace::Config;
use outboard_link::queue::virtiofs::{Rings, Variant};
use outboard_link::queue::{Arrival, Command, DpuQueue, nvmefs, virtiofs};
use outboard_link::registers::Registers;
use outboard_os::event_loop::{EventLoop, Pace, Pass, Polled};
use outboard_os::shm::Shared;
use outboard_os::{clock, futex};
use outboard_wire::file::Request;
use outboard_wire::fuse::{Call, Dialect, IN_HEADER_LEN, InHeader, Opcode};
use outboard_wire::nvmefs::{DEPTH_MIN, QUEUES_MAX, QueueError, Status};
use outboard_wire::regs::registers_len;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Most workers of a device: as many wakeups as there are.
pub(super) const WORKERS_MAX: usize = 8;
const ASK: u64 = 0x000;
const ANSWER: u64 = 0x040;
const FIGURES: [u64; 4] = [0x080, 0x088, 0x090, 0x098];
const WAKEUP: u64 = 0x100;
const LINE: u64 = 64;

/// A transport and the device that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum System {
    /// nvme-fs, a queue pair for each thread.
    #[serde(rename = "nvme-fs")]
    Nvmefs,
    /// virtio-fs as DPFS has it: one queue, one worker, each piece by its own DMA.
    #[serde(rename = "virtio-fs")]
    Dpfs,
    /// virtio-fs with a queue for each thread and the tuned device.
    #[serde(rename = "virtio-fs-mq")]
    Tuned,
}

impl System {
    /// All, in the order they take turns.
    pub const ALL: [System; 3] = [System::Nvmefs, System::Dpfs, System::Tuned];

    /// Its name in tables and on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            System::Nvmefs => "nvme-fs",
            System::Dpfs => "virtio-fs",
            System::Tuned => "virtio-fs-mq",
        }
    }

    /// From its name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<System> {
        System::ALL.into_iter().find(|system| system.name() == name)
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What the bus charges, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedPrice {
    /// As on the command line and in reports.
    pub name: &'static str,
    /// `None`: the engine runs free.
    pub price: Option<Price>,
}

impl NamedPrice {
    /// Every price there is.
    pub const ALL: [NamedPrice; 3] = [
        NamedPrice { name: "none", price: None },
        NamedPrice { name: "pcie3x16", price: Some(Price::PCIE3_X16) },
        NamedPrice { name: "pcie4x16", price: Some(Price::PCIE4_X16) },
    ];

    /// From its name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<NamedPrice> {
        NamedPrice::ALL.into_iter().find(|price| price.name == name)
    }
}

/// The shape of a device and of the link to it: what both processes compute places from.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Which transport.
    pub system: System,
    /// Queues.
    pub queues: u16,
    /// Entries of each.
    pub depth: u16,
    /// Bytes of each operation.
    pub io: u32,
    /// Threads of the device.
    pub workers: usize,
    /// What the bus charges.
    pub price: NamedPrice,
}

impl Shape {
    /// For `threads` of the host that each have one operation of `io` bytes on its way.
    pub(super) fn of(system: System, threads: usize, io: u32, price: NamedPrice) -> Shape {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (queues, workers) = match system {
            System::Dpfs => (1, 1),
            System::Nvmefs | System::Tuned => {
                let queues = threads.clamp(1, usize::from(QUEUES_MAX));
                (queues, (cores / 2).clamp(1, WORKERS_MAX.min(queues)))
            }
        };
        let depth = (threads.div_ceil(queues) + 1).next_power_of_two();
        Shape {
            system,
            queues: u16::try_from(queues).unwrap_or(1),
            depth: u16::try_from(depth).unwrap_or(u16::MAX).max(DEPTH_MIN),
            io,
            workers,
            price,
        }
    }

    pub(super) fn layout(&self) -> io::Result<Layout> {
        Layout::new(self.queues, self.depth).ok_or_else(|| self.out_of_range())
    }

    pub(super) fn rings(&self) -> io::Result<Rings> {
        Rings::new(self.layout()?, self.io).ok_or_else(|| self.out_of_range())
    }

    fn out_of_range(&self) -> io::Error {
        io::Error::other(format!(
            "{} has no {} queues of {} entries for {} bytes",
            self.system, self.queues, self.depth, self.io
        ))
    }

    /// Bytes of the region.
    pub(super) fn region_len(&self) -> io::Result<u64> {
        match self.system {
            System::Nvmefs => Ok(self.layout()?.region_len()),
            System::Dpfs | System::Tuned => Ok(self.rings()?.region_len()),
        }
    }

    /// Bytes of the registers, and where the page behind them begins.
    pub(super) fn page_at(&self) -> u64 {
        registers_len(self.queues, self.depth)
    }

    pub(super) fn pages_len(&self) -> u64 {
        self.page_at() + PAGE as u64
    }

    /// The worker that serves a queue.
    pub(super) fn worker_of(&self, queue: usize) -> usize {
        queue % self.workers.max(1)
    }
}

/// What a device has spent so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub(super) cpu_ns: u64,
    pub(super) dmas: u64,
    pub(super) bytes: u64,
    pub(super) commands: u64,
}

impl Spent {
    pub(super) fn since(&self, earlier: &Spent) -> Spent {
        Spent {
            cpu_ns: self.cpu_ns - earlier.cpu_ns,
            dmas: self.dmas - earlier.dmas,
            bytes: self.bytes - earlier.bytes,
            commands: self.commands - earlier.commands,
        }
    }
}

/// CPU time of this process so far, all its threads.
pub(super) fn cpu_ns() -> u64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    let sec = u64::try_from(t.tv_sec).unwrap_or(0);
    sec * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// The page behind the registers, as both processes use it.
#[derive(Clone, Debug)]
pub(super) struct Page {
    region: Arc<Region>,
    at: u64,
}

impl Page {
    pub(super) fn new(region: Arc<Region>, shape: &Shape) -> Page {
        Page { region, at: shape.page_at() }
    }

    fn get(&self, at: u64) -> u32 {
        self.region.load_u32(self.at + at, Acquire).unwrap_or(0)
    }

    fn set(&self, at: u64, value: u32) -> io::Result<()> {
        self.region.store_u32(self.at + at, value, Release).map_err(io::Error::other)?;
        futex::wake(&self.region, self.at + at, 1).map(drop)
    }

    fn wakeup(worker: usize) -> u64 {
        WAKEUP + LINE * (worker % WORKERS_MAX) as u64
    }

    /// Wakes a worker.
    pub(super) fn wake(&self, worker: usize) -> io::Result<()> {
        let at = self.at + Page::wakeup(worker);
        self.region.add_u32(at, 1, AcqRel).map_err(io::Error::other)?;
        futex::wake(&self.region, at, 1).map(drop)
    }

    /// Asks the device what it has spent.
    pub(super) fn ask(&self) -> io::Result<Spent> {
        let ask = self.get(ASK).wrapping_add(1);
        self.set(ASK, ask)?;
        let limit = clock::now().after(Duration::from_secs(10));
        while self.get(ANSWER) != ask {
            if clock::now() >= limit {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the device is silent"));
            }
            let seen = self.get(ANSWER);
            if seen != ask {
                futex::wait(&self.region, self.at + ANSWER, seen, Duration::from_millis(100))?;
            }
        }
        let figure = |i: usize| {
            let at = FIGURES.get(i).copied().unwrap_or(0);
            self.region.load_u64(self.at + at, Relaxed).unwrap_or(0)
        };
        Ok(Spent { cpu_ns: figure(0), dmas: figure(1), bytes: figure(2), commands: figure(3) })
    }

    fn answer(&self, spent: &Spent, ask: u32) -> io::Result<()> {
        let figures = [spent.cpu_ns, spent.dmas, spent.bytes, spent.commands];
        for (at, figure) in FIGURES.into_iter().zip(figures) {
            self.region.store_u64(self.at + at, figure, Relaxed).map_err(io::Error::other)?;
        }
        self.set(ANSWER, ask)
    }
}

/// Serves until the process that started it ends or kills it.
pub fn serve(shape: &Shape) -> io::Result<()> {
    let memory: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let memory = Shared::open(memory, shape.region_len()?).map_err(io::Error::other)?;
    let pages: OwnedFd = io::stdout().as_fd().try_clone_to_owned()?;
    let pages = Shared::open(pages, shape.pages_len()).map_err(io::Error::other)?;
    let device = Device::start(shape, memory.region(), pages.region())?;
    let page = &device.page;
    let parent = rustix::process::getppid();
    // The host waits for the first answer before it begins.
    let mut answered = 0;
    while rustix::process::getppid() == parent {
        let ask = page.get(ASK);
        if ask == answered {
            futex::wait(pages.region(), page.at + ASK, ask, Duration::from_secs(1))?;
            continue;
        }
        page.answer(&device.spent(), ask)?;
        answered = ask;
    }
    Ok(())
}

/// The workers of a device; they end when it is dropped.
pub(super) struct Device {
    page: Page,
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
}

impl Device {
    /// Over the host's region and the pages of the registers.
    pub(super) fn start(
        shape: &Shape,
        memory: &Arc<Region>,
        pages: &Arc<Region>,
    ) -> io::Result<Device> {
        let registers = Registers::create(Arc::clone(pages), shape.layout()?, 1)
            .map_err(|_| shape.out_of_range())?;
        let mut device = Device {
            page: Page::new(Arc::clone(pages), shape),
            ledger: Arc::new(Ledger::new()),
            stop: Arc::new(AtomicBool::new(false)),
            workers: Vec::new(),
        };
        for number in 0..shape.workers {
            let worker = Worker::new(shape, number, memory, &registers, &device)?;
            let name = format!("device-{number}");
            let thread = std::thread::Builder::new().name(name).spawn(move || worker.run())?;
            device.workers.push(thread);
        }
        Ok(device)
    }

    /// What it has spent so far.
    pub(super) fn spent(&self) -> Spent {
        let now = self.ledger.snapshot();
        let (total, commands) = (now.total(), now.count(Count::Commands));
        Spent { cpu_ns: cpu_ns(), dmas: total.ops, bytes: total.bytes, commands }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for (number, worker) in self.workers.drain(..).enumerate() {
            // One that sleeps looks again within a second in any case; one that panicked has said
            // so.
            let _notified = self.page.wake(number);
            let _ended = worker.join();
        }
    }
}

/// One thread of a device, with the queues it serves.
struct Worker {
    shape: Shape,
    number: usize,
    /// Each with where its interrupt word lies.
    queues: Vec<(Box<dyn DpuQueue + Send>, u64)>,
    registers: Registers,
    page: Page,
    /// Its wake-up word when it last looked before a sleep.
    seen: u32,
    buffer: Vec<u8>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    fn new(
        shape: &Shape,
        number: usize,
        region: &Arc<Region>,
        registers: &Registers,
        device: &Device,
    ) -> io::Result<Worker> {
        let mut queues: Vec<(Box<dyn DpuQueue + Send>, u64)> = Vec::new();
        for queue in 0..shape.queues {
            let block = registers.queue(queue).ok_or_else(|| shape.out_of_range())?;
            if shape.worker_of(usize::from(queue)) == number {
                let target = target(shape, queue, region, registers, &device.ledger)?;
                queues.push((target, block.interrupt_at()));
            }
        }
        Ok(Worker {
            shape: *shape,
            number,
            queues,
            registers: registers.clone(),
            page: device.page.clone(),
            seen: 0,
            buffer: vec![0x5A; usize::try_from(shape.io).unwrap_or(0)],
            stop: Arc::clone(&device.stop),
        })
    }

    fn run(mut self) {
        // The host sees that nothing is answered any more.
        if let Err(error) = EventLoop::new(Config::default()).run(&mut self) {
            eprintln!("outboard: the device stops: {error}");
        }
    }

    /// Serves what every queue has; how much that was. DPFS takes one request at a time.
    fn serve(&mut self) -> io::Result<usize> {
        let budget = if self.shape.system == System::Dpfs { 1 } else { 16 };
        let (mut found, mut arrivals) = (0, Vec::new());
        for (queue, interrupt_at) in &mut self.queues {
            found += queue.poll(budget, &mut arrivals);
            for arrival in arrivals.drain(..) {
                if let Arrival::Command(command) = arrival {
                    answer(self.shape.system, queue.as_mut(), command, &mut self.buffer);
                }
            }
            if queue.flush() {
                futex::wake(self.registers.region(), *interrupt_at, 1)?;
            }
            if let Some(fault) = queue.fault() {
                return Err(io::Error::other(format!("a queue is at fault: {fault:?}")));
            }
        }
        Ok(found)
    }

    fn awake(&mut self) {
        self.queues.iter_mut().for_each(|(queue, _)| queue.awake());
    }
}

impl Polled for Worker {
    fn pass(&mut self, _: &mut Pace) -> io::Result<Pass> {
        if self.stop.load(Relaxed) {
            return Ok(Pass::Over);
        }
        let found = self.serve()?;
        Ok(if found > 0 { Pass::Worked } else { Pass::Idle(clock::now()) })
    }

    fn begin_sleep(&mut self, now: Time) -> io::Result<Option<Time>> {
        self.seen = self.page.get(Page::wakeup(self.number));
        // Each queue is told, and looked at, before any sleep.
        let quiet = self.queues.iter_mut().fold(true, |all, (queue, _)| queue.may_sleep() && all);
        if !quiet {
            self.awake();
        }
        Ok(quiet.then(|| now.after(Duration::from_secs(1))))
    }

    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        let at = self.page.at + Page::wakeup(self.number);
        futex::wait(&self.page.region, at, self.seen, limit).map(drop)
    }

    fn end_sleep(&mut self, _: Time) -> io::Result<()> {
        self.awake();
        Ok(())
    }
}

fn engine(shape: &Shape, region: &Arc<Region>, ledger: &Arc<Ledger>) -> Arc<dyn Dma> {
    let counted = Counted::new(Direct::new(Arc::clone(region)), Arc::clone(ledger));
    match shape.price.price {
        Some(price) => Arc::new(Delayed::new(counted, price, Arc::new(clock::spin))),
        None => Arc::new(counted),
    }
}

fn target(
    shape: &Shape,
    queue: u16,
    region: &Arc<Region>,
    registers: &Registers,
    ledger: &Arc<Ledger>,
) -> io::Result<Box<dyn DpuQueue + Send>> {
    let (dma, ledger) = (engine(shape, region, ledger), Arc::clone(ledger));
    let virtio = |variant, dma, ledger| -> io::Result<Box<dyn DpuQueue + Send>> {
        virtiofs::Target::new(dma, registers, &shape.rings()?, queue, variant, ledger)
            .map(|target| Box::new(target) as Box<dyn DpuQueue + Send>)
            .map_err(|_| shape.out_of_range())
    };
    match shape.system {
        System::Nvmefs => nvmefs::Target::new(dma, registers, queue, ledger)
            .map(|target| Box::new(target) as Box<dyn DpuQueue + Send>)
            .map_err(|_| shape.out_of_range()),
        System::Dpfs => virtio(Variant::Dpfs, dma, ledger),
        System::Tuned => virtio(Variant::Tuned, dma, ledger),
    }
}

/// What a request asks to be moved.
enum Asked {
    Read,
    Write,
}

fn asked(system: System, header: &[u8]) -> Option<Asked> {
    if system == System::Nvmefs {
        return match Request::decode(header).ok()?.1 {
            Request::Read { .. } => Some(Asked::Read),
            Request::Write { .. } => Some(Asked::Write),
            _ => None,
        };
    }
    let opcode = Opcode::from_raw(InHeader::parse(header).ok()?.opcode).ok()?;
    match Call::parse(opcode, header.get(IN_HEADER_LEN..)?, Dialect::default()).ok()? {
        Call::Read { .. } => Some(Asked::Read),
        Call::Write { .. } => Some(Asked::Write),
        _ => None,
    }
}

/// Moves the data of one request and answers it.
fn answer(system: System, queue: &mut dyn DpuQueue, command: Command, buffer: &mut [u8]) {
    let (write, read) = (command.write_len(), command.read_len());
    let part = |len: u32| usize::try_from(len).unwrap_or(usize::MAX).min(buffer.len());
    let (write_part, read_part) = (part(write), part(read));
    let moved = match asked(system, command.header()) {
        Some(Asked::Write) => {
            command.read_data(0, buffer.get_mut(..write_part).unwrap_or_default()).map(|()| write)
        }
        Some(Asked::Read) => {
            command.write_data(0, buffer.get(..read_part).unwrap_or_default()).map(|()| read)
        }
        None => return queue.complete(command, Status::Queue(QueueError::InvalidHeader), 0, &[]),
    };
    match moved {
        // FUSE answers a WRITE with its size in a body.
        Ok(len) if system != System::Nvmefs && write > 0 => {
            queue.complete(command, Status::Ok, 0, &u64::from(len).to_le_bytes());
        }
        Ok(len) => queue.complete(command, Status::Ok, u64::from(len), &[]),
        Err(_) => queue.complete(command, Status::Queue(QueueError::TransferFailed), 0, &[]),
    }
}
