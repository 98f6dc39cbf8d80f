//! The engines: each does what it adds and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outboard_base::ledger::{Ledger, Tally};

use super::*;
use crate::Region;

#[test]
fn counted_charges_one_operation_a_call() {
    let ledger = Arc::new(Ledger::new());
    let dma = Counted::new(Direct::new(Region::anonymous(8192)), Arc::clone(&ledger));
    let before = ledger.snapshot();
    dma.write(Kind::DataOut, 100, &[7; 300]).unwrap();
    let mut out = [0; 300];
    dma.read(Kind::DataIn, 100, &mut out).unwrap();
    assert_eq!(out, [7; 300]);
    assert_eq!(dma.fetch_add(8, 2), Ok(0));
    assert_eq!(dma.compare_and_swap(8, 2, 5), Ok(2));
    assert_eq!(dma.compare_and_swap(8, 2, 6), Ok(5));
    assert_eq!(dma.read(Kind::DataIn, 8000, &mut out), Err(DmaError::OutOfRegion));
    let spent = ledger.snapshot().since(&before);
    assert_eq!(spent.dma(Kind::DataOut), Tally { ops: 1, bytes: 300 });
    assert_eq!(spent.dma(Kind::DataIn), Tally { ops: 2, bytes: 600 });
    assert_eq!(spent.dma(Kind::Atomic), Tally { ops: 3, bytes: 24 });
    assert_eq!(spent.total(), Tally { ops: 6, bytes: 924 });
}

#[test]
fn delayed_asks_for_the_price() {
    let spent = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&spent);
    let pause = Arc::new(move |d: std::time::Duration| {
        clock.fetch_add(u64::try_from(d.as_nanos()).unwrap(), Ordering::Relaxed);
    });
    let price = Price { round_trip_ns: 1000, posted_ns: 10, bytes_per_us: 1000 };
    let dma = Delayed::new(Direct::new(Region::anonymous(8192)), price, pause);
    dma.read(Kind::DataIn, 0, &mut [0; 4000]).unwrap();
    assert_eq!(spent.load(Ordering::Relaxed), 1000 + 4000);
    dma.write(Kind::Cqe, 0, &[0; 16]).unwrap();
    assert_eq!(spent.load(Ordering::Relaxed), 5000 + 26);
    dma.fetch_add(0, 1).unwrap();
    assert_eq!(spent.load(Ordering::Relaxed), 5026 + 1008);
}

#[test]
fn faults_repeat_with_their_seed() {
    let run = |seed| {
        let faults = Faults { fail: 8192, tear: 8192, corrupt: 8192 };
        let region = Region::anonymous(4096);
        let dma = Faulty::new(Direct::new(Arc::clone(&region)), faults, seed);
        let mut log = Vec::new();
        for i in 0..200u8 {
            let wrote = dma.write(Kind::DataOut, 0, &[i; 40]).is_ok();
            let mut out = [0; 40];
            let read = dma.read(Kind::DataIn, 0, &mut out).is_ok();
            log.push((wrote, read, out.iter().filter(|b| **b != i).count()));
        }
        log
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let log = run(3);
    assert!(log.iter().any(|l| !l.0) && log.iter().any(|l| !l.1));
    assert!(log.iter().any(|l| l.0 && l.1 && l.2 == 1), "a corrupted read");
    assert!(log.iter().any(|l| !l.0 && l.1 && (1..40).contains(&l.2)), "a torn write");
}
