//! The page server's file library for C: `liboutboard_ddslib.so` and `include/outboard_dds.h`,
//! whose words say what each call does. Behind them is `outboard_dds::host`, over an attachment of
//! `outboard_pageserver`; reads end in the memory C lends. The page is `docs/internals/rings.md`.

#![deny(unsafe_code)]

#[allow(unsafe_code, unreachable_pub, reason = "C programs call it, and hand in pointers")]
pub mod sys;
