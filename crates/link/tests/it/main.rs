//! The link from outside: what every transport must do, and what nvme-fs does beyond that.

mod conformance;
mod delete;
mod dma_count;
mod hostile;
mod loss;
mod rig;
mod simulation;
mod threads;
