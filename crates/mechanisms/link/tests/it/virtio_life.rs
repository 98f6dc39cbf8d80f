//! What virtio does not have and the virtio-fs queues do: deletion, a second life, and commands
//! that outlive their DPU. The rules are those of `delete.rs` and `loss.rs`.

use outboard_link::queue::{Arrival, DpuQueue, HostQueue, SlotError, Span, Submission};
use outboard_wire::nvmefs::{QueueError, Status};

use crate::rig::{
    DpfsRig, Mortal, TunedRig, VirtioRig, arrivals, commands, completions, engine, ring, submission,
};

fn deleting_aborts_what_runs_and_refuses_the_rest<const TUNED: bool>(mut rig: VirtioRig<TUNED>) {
    let running = rig.host.acquire().unwrap();
    let id = rig.host.submit(running, &submission(b"running")).unwrap();
    ring(&mut rig.host);
    let command = commands(&mut rig.dpu).pop().unwrap();
    let waiting = rig.host.acquire().unwrap();
    rig.host.submit(waiting, &submission(b"waiting")).unwrap();
    ring(&mut rig.host);
    let _asleep = rig.host.delete();
    assert_eq!(rig.host.submit(waiting, &submission(b"late")), Err(SlotError::Deleted));
    let told = arrivals(&mut rig.dpu);
    assert!(matches!(told[..], [Arrival::Abort(aborted)] if aborted == id), "{told:?}");
    assert!(!rig.host.is_deleted(), "one is still worked on");
    rig.dpu.complete(command, Status::Queue(QueueError::Aborted), 0, &[]);
    let _interrupt = rig.dpu.flush();
    assert!(!rig.dpu.may_sleep(), "the end is still to be said");
    assert!(arrivals(&mut rig.dpu).is_empty());
    assert!(rig.host.is_deleted());
    let ends: Vec<_> = completions(&mut rig.host).iter().map(|done| done.status).collect();
    assert_eq!(ends, [Status::Queue(QueueError::Aborted); 2]);
    rig.host.release(running).unwrap();
    rig.host.release(waiting).unwrap();
    assert!(rig.dpu.may_sleep());

    assert!(rig.host.recreate(), "it sleeps");
    rig.dpu.awake();
    assert!(arrivals(&mut rig.dpu).is_empty());
    assert!(rig.host.is_running());
    for round in 0..40 {
        let cid = rig.host.acquire().unwrap();
        rig.host.submit(cid, &submission(&[round])).unwrap();
        ring(&mut rig.host);
        let command = commands(&mut rig.dpu).pop().unwrap();
        assert_eq!(command.header(), [round]);
        rig.dpu.complete(command, Status::Ok, u64::from(round), &[]);
        let _interrupt = rig.dpu.flush();
        assert_eq!(completions(&mut rig.host).pop().unwrap().result, u64::from(round));
        rig.host.release(cid).unwrap();
    }
}

fn what_was_not_answered_is_asked_again_in_its_first_order<const TUNED: bool>(
    mut rig: VirtioRig<TUNED>,
) {
    for i in 0..7u8 {
        let cid = rig.host.acquire().unwrap();
        rig.host.write_buffer(cid, 0, &[i; 5000]).unwrap();
        let header = [i];
        let sub = Submission { write: Span::first(5000), reply_header: 16, ..submission(&header) };
        rig.host.submit(cid, &sub).unwrap();
    }
    ring(&mut rig.host);
    let mut work = commands(&mut rig.dpu);
    for answered in [5, 2] {
        rig.dpu.complete(work.remove(answered), Status::Ok, 0, &[]);
    }
    let _interrupt = rig.dpu.flush();
    for done in completions(&mut rig.host) {
        rig.host.release(done.cid).unwrap();
    }
    drop(work);
    rig.lose(2, |region, ledger| engine(&region, ledger));
    assert_eq!(rig.host.resubmit(), 5);
    assert_eq!(rig.host.resubmit(), 0, "once");
    ring(&mut rig.host);
    let work = commands(&mut rig.dpu);
    let order: Vec<u8> = work.iter().map(|command| command.header()[0]).collect();
    assert_eq!(order, [0, 1, 3, 4, 6]);
    for command in work {
        let mut data = vec![0; command.write_len() as usize];
        command.read_data(0, &mut data).unwrap();
        assert_eq!(data, [command.header()[0]; 5000]);
        rig.dpu.complete(command, Status::Ok, 0, &[]);
    }
    let _interrupt = rig.dpu.flush();
    assert_eq!((completions(&mut rig.host).len(), rig.host.in_flight()), (5, 0));
}

fn what_is_given_up_is_its_callers_again<const TUNED: bool>(mut rig: VirtioRig<TUNED>) {
    let cid = rig.host.acquire().unwrap();
    rig.host.submit(cid, &submission(b"x")).unwrap();
    ring(&mut rig.host);
    rig.lose(2, |region, ledger| engine(&region, ledger));
    assert_eq!(rig.host.abandon(), [cid]);
    assert_eq!((rig.host.resubmit(), rig.host.in_flight()), (0, 0));
    rig.host.release(cid).unwrap();
}

macro_rules! each_device {
    ($($test:ident)*) => {
        mod dpfs {
            $(#[test] fn $test() { super::$test(super::DpfsRig::new(8)); })*
        }
        mod tuned {
            $(#[test] fn $test() { super::$test(super::TunedRig::new(8)); })*
        }
    };
}

each_device! {
    deleting_aborts_what_runs_and_refuses_the_rest
    what_was_not_answered_is_asked_again_in_its_first_order
    what_is_given_up_is_its_callers_again
}
