//! Two threads, real memory order: every command is answered once and nobody sleeps through its
//! wake-up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use outboard_base::Rng;
use outboard_link::queue::{Arrival, DpuQueue, HostQueue, Span, Submission};
use outboard_wire::nvmefs::Status;

use crate::rig::{Dpfs, Nvmefs, Transport, Tuned, submission};

/// A wakeup that remembers one ring. Waiting a long time means that a wake-up was lost.
#[derive(Default)]
struct TestWakeup(Mutex<bool>, Condvar);

impl TestWakeup {
    fn ring(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn wait(&self, who: &str) {
        let guard = self.0.lock().unwrap();
        let limit = Duration::from_secs(120);
        let (mut rung, timed_out) = self.1.wait_timeout_while(guard, limit, |rung| !*rung).unwrap();
        assert!(!timed_out.timed_out(), "{who}: a wake-up was lost");
        *rung = false;
    }
}

#[test]
fn every_answer_arrives_and_no_wake_up_is_lost() {
    exchange::<Nvmefs>(30_000);
}

#[test]
fn every_answer_arrives_and_no_wake_up_is_lost_by_virtio_fs() {
    exchange::<Dpfs>(15_000);
    exchange::<Tuned>(15_000);
}

fn exchange<T: Transport<Dpu: Send + 'static>>(commands: u64) {
    let (host, dpu) = T::pair(8);
    let (to_dpu, to_host) = (Arc::new(TestWakeup::default()), Arc::new(TestWakeup::default()));
    let stop = Arc::new(AtomicBool::new(false));
    let (wakeup, wake, stopped) = (Arc::clone(&to_dpu), Arc::clone(&to_host), Arc::clone(&stop));
    let server = std::thread::spawn(move || serve(dpu, &wakeup, &wake, &stopped));
    ask(host, commands, &to_host, &to_dpu);
    stop.store(true, Ordering::Release);
    to_dpu.ring();
    server.join().unwrap();
}

/// The DPU side: answers what is there in random order, and sleeps.
fn serve(mut dpu: impl DpuQueue, own: &TestWakeup, to_host: &TestWakeup, stopped: &AtomicBool) {
    let mut rng = Rng::new(1);
    let (mut arrivals, mut held) = (Vec::new(), Vec::new());
    while !stopped.load(Ordering::Acquire) {
        dpu.poll(4, &mut arrivals);
        for arrival in arrivals.drain(..) {
            let Arrival::Command(command) = arrival else { continue };
            held.push(command);
        }
        let had = !held.is_empty();
        while !held.is_empty() {
            let pick = usize::try_from(rng.below(held.len() as u64)).unwrap();
            let command = held.swap_remove(pick);
            let mut data = [0; 64];
            command.read_data(0, &mut data).unwrap();
            let mark = u64::from_le_bytes(command.header().try_into().unwrap());
            assert_eq!(data, [mark.to_le_bytes()[0]; 64]);
            command.write_data(0, &data.map(|b| !b)).unwrap();
            dpu.complete(command, Status::Ok, !mark, &mark.to_le_bytes());
        }
        if dpu.flush() {
            to_host.ring();
        }
        if !had && dpu.may_sleep() {
            own.wait("DPU");
            dpu.awake();
        }
    }
}

/// The host: asks `commands` times, some at once, and looks at each answer.
fn ask(mut host: impl HostQueue, commands: u64, own: &TestWakeup, to_dpu: &TestWakeup) {
    let mut rng = Rng::new(2);
    let (mut sent, mut answered, mut marks) = (0, 0, vec![0; 8]);
    let mut done = Vec::new();
    while answered < commands {
        for _ in 0..=rng.below(4) {
            if sent == commands {
                break;
            }
            let Some(cid) = host.acquire() else { break };
            host.write_buffer(cid, 0, &[sent.to_le_bytes()[0]; 64]).unwrap();
            let span = Span::first(64);
            let header = u64::to_le_bytes(sent);
            let sub =
                Submission { write: span, read: span, reply_header: 8, ..submission(&header) };
            host.submit(cid, &sub).unwrap();
            marks[usize::from(cid.0)] = sent;
            sent += 1;
        }
        if host.ring() {
            to_dpu.ring();
        }
        if host.poll(16, &mut done) == 0 && host.in_flight() > 0 {
            if host.may_sleep().is_some() {
                own.wait("host");
            }
            host.awake();
        }
        for completion in done.drain(..) {
            let mark = marks[usize::from(completion.cid.0)];
            assert_eq!((completion.status, completion.result), (Status::Ok, !mark));
            let (mut reply, mut data) = ([0; 8], [0; 64]);
            host.reply_header(completion.cid, &mut reply).unwrap();
            host.read_buffer(completion.cid, 0, &mut data).unwrap();
            assert_eq!((u64::from_le_bytes(reply), data), (mark, [!mark.to_le_bytes()[0]; 64]));
            host.release(completion.cid).unwrap();
            answered += 1;
        }
    }
}
