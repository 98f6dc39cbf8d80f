//! The DPU dies and another takes over: nothing answered is asked again, everything else is, in
//! order.

use std::sync::Arc;

use outboard_link::queue::nvmefs::Target;
use outboard_link::queue::{DpuQueue, HostQueue, Span, Submission};
use outboard_wire::nvmefs::Status;

use crate::rig::{Rig, commands, completions, engine, registers, ring, submission};

#[test]
fn what_was_not_answered_is_asked_again_in_its_first_order() {
    let mut rig = Rig::new(8);
    let mut cids = Vec::new();
    for i in 0..7u8 {
        let cid = rig.host.acquire().unwrap();
        rig.host.write_buffer(cid, 0, &[i; 5000]).unwrap();
        let header = [i];
        let sub = Submission { write: Span::first(5000), reply_header: 16, ..submission(&header) };
        rig.host.submit(cid, &sub).unwrap();
        cids.push(cid);
    }
    ring(&mut rig.host);
    let mut work = commands(&mut rig.dpu);
    for answered in [5, 2] {
        rig.dpu.complete(work.remove(answered), Status::Ok, 0, &[]);
    }
    for done in completions(&mut rig.host) {
        rig.host.release(done.cid).unwrap();
    }
    // One answered slot is used again and submitted late, after commands with higher ids.
    let late = rig.host.acquire().unwrap();
    rig.host.submit(late, &submission(b"late")).unwrap();
    ring(&mut rig.host);
    drop((rig.dpu, work));

    let next = registers(rig.layout, 2);
    rig.host.reattach(&next).unwrap();
    let mut dpu =
        Target::new(engine(&rig.region, &rig.ledger), &next, 0, Arc::clone(&rig.ledger)).unwrap();
    // Something else may go first: the open files are handed in again.
    let first = rig.host.acquire().unwrap();
    rig.host.submit(first, &submission(b"reopen")).unwrap();
    ring(&mut rig.host);
    let reopen = commands(&mut dpu).pop().unwrap();
    assert_eq!(reopen.header(), b"reopen");
    dpu.complete(reopen, Status::Ok, 0, &[]);
    assert_eq!(completions(&mut rig.host).len(), 1);
    rig.host.release(first).unwrap();

    assert_eq!(rig.host.resubmit(), 6);
    assert_eq!(rig.host.resubmit(), 0, "once");
    ring(&mut rig.host);
    let work = commands(&mut dpu);
    let order: Vec<&[u8]> = work.iter().map(|c| c.header()).collect();
    assert_eq!(order, [&[0][..], &[1], &[3], &[4], &[6], b"late"]);
    for command in work {
        let mut data = vec![0; command.write_len() as usize];
        command.read_data(0, &mut data).unwrap();
        assert!(command.header() == b"late" || data == [command.header()[0]; 5000]);
        dpu.complete(command, Status::Ok, 0, &[]);
    }
    assert_eq!(completions(&mut rig.host).len(), 6);
    assert_eq!(rig.host.in_flight(), 0);
}

#[test]
fn what_is_given_up_is_its_callers_again() {
    let mut rig = Rig::new(4);
    let cid = rig.host.acquire().unwrap();
    rig.host.submit(cid, &submission(b"x")).unwrap();
    ring(&mut rig.host);
    let next = registers(rig.layout, 2);
    rig.host.reattach(&next).unwrap();
    assert_eq!(rig.host.abandon(), [cid]);
    assert_eq!((rig.host.resubmit(), rig.host.in_flight()), (0, 0));
    rig.host.release(cid).unwrap();
}

/// A late completion of the old life, written into the rings of the new one, answers nothing.
#[test]
fn a_dead_dpu_answers_nothing() {
    let mut rig = Rig::new(4);
    let cid = rig.host.acquire().unwrap();
    rig.host.submit(cid, &submission(b"x")).unwrap();
    ring(&mut rig.host);
    let command = commands(&mut rig.dpu).pop().unwrap();
    rig.host.reattach(&registers(rig.layout, 2)).unwrap();
    rig.dpu.complete(command, Status::Ok, 0, &[]);
    assert_eq!(completions(&mut rig.host), []);
    assert_eq!(rig.host.in_flight(), 1);
}
