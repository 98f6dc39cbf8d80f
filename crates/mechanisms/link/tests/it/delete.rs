//! C5: a queue is deleted with commands in flight, and made again.

use outboard_link::queue::{Arrival, DpuQueue, HostQueue, SlotError};
use outboard_wire::nvmefs::{QueueError, Status};

use crate::rig::{Rig, arrivals, commands, completions, ring, submission};

#[test]
fn c5_commands_in_flight_are_aborted_and_the_queue_lives_again() {
    let mut rig = Rig::new(8);
    let mut cids = Vec::new();
    for i in 0..5 {
        let cid = rig.host.acquire().unwrap();
        cids.push(cid);
        rig.host.submit(cid, &submission(&[i])).unwrap();
        if i == 2 {
            ring(&mut rig.host);
        }
    }
    let mut work = commands(&mut rig.dpu);
    assert_eq!(work.len(), 3);
    ring(&mut rig.host);
    let _asleep = rig.host.delete();
    assert_eq!(rig.host.submit(cids[0], &submission(b"")), Err(SlotError::Deleted));
    assert!(!rig.dpu.may_sleep(), "a deletion is work");
    let aborted = arrivals(&mut rig.dpu);
    assert_eq!(aborted.len(), 3, "those polled are aborted, the others never seen");
    assert!(aborted.iter().all(|a| matches!(a, Arrival::Abort(_))));
    assert!(!rig.host.is_deleted());
    rig.dpu.complete(work.pop().unwrap(), Status::Ok, 0, &[]);
    while let Some(command) = work.pop() {
        rig.dpu.complete(command, Status::Queue(QueueError::Aborted), 0, &[]);
    }
    assert!(arrivals(&mut rig.dpu).is_empty());
    assert!(rig.host.is_deleted());
    let done = completions(&mut rig.host);
    let aborted = done.iter().filter(|c| c.status == Status::Queue(QueueError::Aborted)).count();
    assert_eq!((done.len(), aborted, rig.host.in_flight()), (5, 4, 0));
    cids.into_iter().for_each(|cid| rig.host.release(cid).unwrap());
    assert!(rig.dpu.may_sleep());

    assert!(rig.host.recreate(), "the DPU sleeps and is woken");
    assert!(!rig.host.is_running());
    assert!(arrivals(&mut rig.dpu).is_empty());
    assert!(rig.host.is_running());
    for round in 0..20 {
        let cid = rig.host.acquire().unwrap();
        rig.host.submit(cid, &submission(&[round])).unwrap();
        ring(&mut rig.host);
        let command = commands(&mut rig.dpu).pop().unwrap();
        rig.dpu.complete(command, Status::Ok, u64::from(round), &[]);
        assert_eq!(completions(&mut rig.host).pop().unwrap().result, u64::from(round));
        rig.host.release(cid).unwrap();
    }
}

#[test]
fn deleting_an_idle_queue_ends_it_at_once() {
    let mut rig = Rig::new(2);
    let _asleep = rig.host.delete();
    assert!(arrivals(&mut rig.dpu).is_empty());
    assert!(rig.host.is_deleted());
}
