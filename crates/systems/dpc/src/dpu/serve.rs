//! One command, from its header to its completion.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use outboard_base::{Errno, Result, limits};
use outboard_link::dma::DmaError;
use outboard_link::queue::{Command, CommandId};
use outboard_volume::Payload;
use outboard_wire::file::{Direction, Flags, Header, Op, Reply, Request};
use outboard_wire::nvmefs::{Dispatch, QueueError, Status};

use super::attachment::{Attachment, Served};
use super::beside;
use outboard_base::task::Spawn;
use outboard_cache::coherence::{Operation, Trimmed};
use outboard_volume::Volume;

/// A command that waits for something, as an abort sees it.
#[derive(Default)]
pub(super) struct Running {
    aborted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Running {
    pub(super) fn abort(&self) {
        self.aborted.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Begins a command.
pub(super) fn begin<V: Volume, S: Volume>(
    attachment: &Rc<Attachment<V, S>>,
    queue: u16,
    command: Command,
    spawn: &dyn Spawn,
) {
    if let Some((status, result)) = without_volume(attachment, &command) {
        attachment.complete(queue, command, status, result, &[]);
        return;
    }
    let held = Held::new(attachment, queue, &command);
    spawn.spawn(Box::pin(serve(Rc::clone(attachment), queue, command, held)));
}

/// What can be answered without asking the volume: no-ops, and what must not reach it.
fn without_volume<V: Volume, S: Volume>(
    attachment: &Attachment<V, S>,
    command: &Command,
) -> Option<(Status, u64)> {
    let core = &attachment.core;
    let is_served = match command.dispatch() {
        Dispatch::Kv => V::EXISTS,
        Dispatch::Shared => S::EXISTS,
    };
    if !is_served {
        core.stats.borrow_mut().misrouted += 1;
        return Some((Status::Queue(QueueError::BadDispatch), 0));
    }
    if command.header().first_chunk() != Some(&(Op::Noop as u16).to_le_bytes()) {
        return None;
    }
    let (header, _) = Request::decode(command.header()).ok()?;
    if header.flags.has(Flags::REPLAY) {
        core.collector.is_back(attachment.session());
        core.handed_in.borrow_mut().push(attachment.session());
    }
    if let Some(op) = core.stats.borrow_mut().op_mut(Op::Noop) {
        op.count += 1;
    }
    Some((Status::Ok, 0))
}

/// What a command under way occupies of its attachment, given back when it ends.
struct Held<V, S> {
    attachment: Rc<Attachment<V, S>>,
    bytes: u64,
    name: (u16, CommandId),
    running: Rc<Running>,
}

impl<V: Volume, S: Volume> Held<V, S> {
    fn new(attachment: &Rc<Attachment<V, S>>, queue: u16, command: &Command) -> Held<V, S> {
        let bytes = u64::from(command.write_len()) + u64::from(command.read_len());
        attachment.commands.set(attachment.commands.get() + 1);
        attachment.bytes.set(attachment.bytes.get() + bytes);
        let running = Rc::new(Running::default());
        Held { attachment: Rc::clone(attachment), bytes, name: (queue, command.id()), running }
    }

    /// From here on an abort ends it.
    fn abortable(&self) {
        let running = Rc::clone(&self.running);
        self.attachment.running.borrow_mut().insert(self.name, running);
    }
}

impl<V, S> Drop for Held<V, S> {
    fn drop(&mut self) {
        let attachment = &self.attachment;
        attachment.commands.set(attachment.commands.get().saturating_sub(1));
        attachment.bytes.set(attachment.bytes.get().saturating_sub(self.bytes));
        attachment.running.borrow_mut().remove(&self.name);
    }
}

/// How a command ends: its reply header beside status and result.
struct Ending {
    op: Option<Op>,
    status: Status,
    result: u64,
    header: [u8; limits::REPLY_HEADER_MAX],
    header_len: usize,
    bytes: u64,
}

impl Ending {
    fn failed(op: Option<Op>, status: Status) -> Ending {
        Ending {
            op,
            status,
            result: 0,
            header: [0; limits::REPLY_HEADER_MAX],
            header_len: 0,
            bytes: 0,
        }
    }
}

async fn serve<V: Volume, S: Volume>(
    attachment: Rc<Attachment<V, S>>,
    queue: u16,
    command: Command,
    held: Held<V, S>,
) {
    let core = Rc::clone(&attachment.core);
    let (begun, pass) = ((core.clock)(), core.passes.get());
    let ending = match command.dispatch() {
        Dispatch::Kv => answer(&core.kv, &attachment, &command, &held).await,
        Dispatch::Shared => answer(&core.shared, &attachment, &command, &held).await,
    };
    let waited = core.passes.get() != pass;
    let mut stats = core.stats.borrow_mut();
    match ending.op.and_then(|op| stats.op_mut(op)) {
        Some(op) => {
            op.count += 1;
            op.errors += u64::from(ending.status != Status::Ok);
            op.waited += u64::from(waited);
            op.bytes += ending.bytes;
            op.time.add((core.clock)().since(begun));
        }
        None => stats.malformed += 1,
    }
    stats.aborted += u64::from(ending.status == Status::Queue(QueueError::Aborted));
    drop(stats);
    if !attachment.is_gone() {
        let header = ending.header.get(..ending.header_len).unwrap_or_default();
        attachment.complete(queue, command, ending.status, ending.result, header);
    }
    drop(held);
}

async fn answer<W: Volume, V: Volume, S: Volume>(
    served: &Served<W>,
    attachment: &Attachment<V, S>,
    command: &Command,
    held: &Held<V, S>,
) -> Ending {
    let (header, request) = match Request::decode(command.header()) {
        Ok(decoded) => decoded,
        Err(Errno::EPROTO) => {
            return Ending::failed(None, Status::Queue(QueueError::InvalidHeader));
        }
        Err(errno) => return Ending::failed(None, Status::Errno(errno)),
    };
    let op = request.op();
    let failed = |status| Ending::failed(Some(op), status);
    let payload = match fetch(attachment, command, &header, op) {
        Ok(payload) => payload,
        Err(status) => return failed(status),
    };
    let core = &attachment.core;
    let (caller, now) = (&attachment.caller, (core.wall)());
    let operation = Operation { caller, header: &header, request, payload, now };
    let handle = beside::handle(&core.collector, served, operation);
    // What changes the volume runs to its end: whoever asked hears what became of it.
    let answer = if op.changes() {
        let outcome = handle.await;
        core.letting_go.after(served.take_events(), attachment.id).await;
        Some(outcome)
    } else {
        held.abortable();
        unless_aborted(handle, &held.running).await
    };
    match answer {
        None => failed(Status::Queue(QueueError::Aborted)),
        Some(Err(errno)) => failed(Status::Errno(errno)),
        Some(Ok(answer)) if attachment.is_gone() => {
            drop(answer);
            failed(Status::Queue(QueueError::Aborted))
        }
        Some(Ok(answer)) => store(command, op, &answer),
    }
}

/// Fetches a request's payload, by DMA, once.
fn fetch<V: Volume, S: Volume>(
    attachment: &Attachment<V, S>,
    command: &Command,
    header: &Header,
    op: Op,
) -> std::result::Result<Payload, Status> {
    let foreign = header.session != attachment.session();
    let unwanted = command.write_len() > 0 && op.direction() != Direction::ToDpu;
    if foreign || unwanted {
        attachment.core.stats.borrow_mut().misrouted += 1;
        return Err(Status::Queue(QueueError::InvalidHeader));
    }
    if command.write_len() == 0 {
        return Ok(Payload::None);
    }
    let len = usize::try_from(command.write_len())
        .map_err(|_| Status::Queue(QueueError::InvalidLength))?;
    let mut bytes = vec![0; len];
    command.read_data(0, &mut bytes).map_err(transfer_failed)?;
    Ok(Payload::Bytes(bytes))
}

fn transfer_failed(_: DmaError) -> Status {
    Status::Queue(QueueError::TransferFailed)
}

/// Stores an answer's payload at the host and prepares its completion.
fn store(command: &Command, op: Op, passed: &Trimmed) -> Ending {
    let Trimmed { answer, skip } = passed;
    let mut bytes = answer.payload.bytes().get(*skip..).unwrap_or_default();
    if let Reply::Data(len) = answer.reply {
        bytes = bytes.get(..len as usize).unwrap_or(bytes);
    }
    let mut ending = Ending::failed(Some(op), Status::Ok);
    ending.bytes = bytes.len() as u64 + u64::from(command.write_len());
    let fits = u32::try_from(bytes.len()).is_ok_and(|len| len <= command.read_len());
    if !fits {
        ending.status = Status::Queue(QueueError::InvalidLength);
        return ending;
    }
    debug_assert!(
        !matches!(answer.reply, Reply::Data(len) if len as usize != bytes.len()),
        "{op:?} announces another payload than it has"
    );
    let stored = if bytes.is_empty() { Ok(()) } else { command.write_data(0, bytes) };
    if let Err(error) = stored {
        ending.status = transfer_failed(error);
        return ending;
    }
    match answer.reply.encode(&mut ending.header) {
        Ok((result, header_len)) => (ending.result, ending.header_len) = (result, header_len),
        Err(errno) => ending.status = Status::Errno(errno),
    }
    ending
}

/// `None` once the command is aborted.
async fn unless_aborted(
    handle: impl Future<Output = Result<Trimmed>>,
    running: &Running,
) -> Option<Result<Trimmed>> {
    let mut handle = std::pin::pin!(handle);
    std::future::poll_fn(|context: &mut Context<'_>| {
        if running.aborted.get() {
            return Poll::Ready(None);
        }
        let handle: Pin<&mut _> = handle.as_mut();
        let polled = handle.poll(context).map(Some);
        if polled.is_pending() {
            running.waker.replace(Some(context.waker().clone()));
        }
        polled
    })
    .await
}
