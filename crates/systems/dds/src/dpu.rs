//! The DPU's side: files, the pump, and offloading (sections 4.3, 5 and 6).

pub mod director;
pub mod files;
pub mod offload;
pub mod pump;
