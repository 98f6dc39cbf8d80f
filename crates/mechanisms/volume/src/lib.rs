//! What any volume is, in words that no volume owns.
//!
//! A volume answers file operations (`outboard_wire::file`) beyond the bus. This crate holds what
//! passes between it and the rest of the DPU side, and how the host side reaches it:
//!
//! - [`Caller`], [`Payload`], [`Answer`], [`VolumeEvent`]: what a call brings, what it gives
//!   back, and what a volume says unasked;
//! - [`Volume`]: the port for requests, and for the pages of files that hosts hold in caches;
//! - [`Fill`]: what `fallocate(2)` asks for;
//! - [`Housekeeping`]: the port for its life: grace period, tidying, check, figures;
//! - [`backend`]: the host side's port, through which every front-end (a mount, a program past the
//!   kernel) reaches any volume.
//!
//! A DPU side serves at most one volume for each value of bit 10 of a submission entry;
//! [`NoVolume`] stands for the one there is not.
//!
//! A new volume is a crate that implements `Volume` and `Housekeeping`, and a line where volumes
//! are opened. Nothing between the link and the volume (dispatch, coherence of caches, the DPU
//! side's process) names which volume it is.

#![forbid(unsafe_code)]

pub mod backend;
mod call;
mod fill;
mod housekeeping;
mod none;
mod port;

pub use call::{Answer, Caller, Payload, VolumeEvent};
pub use fill::Fill;
pub use housekeeping::{Figures, Housekeeping, Report};
pub use none::NoVolume;
pub use port::Volume;
