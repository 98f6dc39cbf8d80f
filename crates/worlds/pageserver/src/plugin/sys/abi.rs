//! `outboard_offload.h`, as Rust sees it.

use std::ffi::{c_char, c_int, c_void};

use outboard_dds::dpu::offload::Head;
use outboard_dds::dpu::offload::ReadOp;
use outboard_dds::dpu::offload::plugin::{Answering, Counted, EXPECT_MAX, Expect, Frames, Plan};

/// Version of the header.
pub(in crate::plugin) const ABI: u32 = 1;
/// Names of what the object gives.
pub(in crate::plugin) const ENTRY: &std::ffi::CStr = c"outboard_offload";

/// `struct ofl_frames`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::plugin) struct CFrames {
    pub(in crate::plugin) kind: u32,
    pub(in crate::plugin) bytes: u32,
    pub(in crate::plugin) at: u32,
    pub(in crate::plugin) width: u32,
    pub(in crate::plugin) big_endian: u32,
    pub(in crate::plugin) beyond: u32,
    pub(in crate::plugin) end: u32,
}

impl CFrames {
    /// Words of one.
    pub(in crate::plugin) const WORDS: usize = 7;

    pub(in crate::plugin) fn words(&self) -> [u32; CFrames::WORDS] {
        [self.kind, self.bytes, self.at, self.width, self.big_endian, self.beyond, self.end]
    }

    pub(in crate::plugin) fn of(
        [kind, bytes, at, width, big_endian, beyond, end]: [u32; 7],
    ) -> CFrames {
        CFrames { kind, bytes, at, width, big_endian, beyond, end }
    }

    /// `None` if it makes no sense.
    pub(in crate::plugin) fn frames(&self) -> Option<Frames> {
        match self.kind {
            1 => Frames::Fixed(self.bytes),
            2 => Frames::Counted(Counted {
                header: self.bytes,
                at: self.at,
                width: self.width,
                big_endian: self.big_endian != 0,
                beyond: self.beyond,
            }),
            3 => Frames::Ended(u8::try_from(self.end).ok()?),
            _ => return None,
        }
        .checked()
    }
}

/// `struct ofl_expect`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(in crate::plugin) struct CExpect {
    kind: u32,
    at: u32,
    length: u32,
    reserved: u32,
    least: u64,
    bytes: [u8; Expect::BYTES_MAX],
}

/// `struct ofl_read`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(in crate::plugin) struct CRead {
    file: u32,
    bytes: u32,
    offset: u64,
    payload_at: u32,
    payload_length: u32,
    head_length: u32,
    expects: u32,
    head: [u8; Head::MAX],
    expect: [CExpect; EXPECT_MAX],
}

impl CRead {
    pub(in crate::plugin) const EMPTY: CRead = CRead {
        file: 0,
        bytes: 0,
        offset: 0,
        payload_at: 0,
        payload_length: 0,
        head_length: 0,
        expects: 0,
        head: [0; Head::MAX],
        expect: [CExpect { kind: 0, at: 0, length: 0, reserved: 0, least: 0, bytes: [0; 64] };
            EXPECT_MAX],
    };

    /// `None` if it makes no sense.
    pub(in crate::plugin) fn plan(&self) -> Option<Plan> {
        let size = |value: u32| usize::try_from(value).ok();
        let head = Head::new(self.head.get(..size(self.head_length)?)?)?;
        let from = size(self.payload_at)?;
        let payload = from..from.checked_add(size(self.payload_length)?)?;
        let expect = self.expect.get(..size(self.expects)?)?;
        let expect = expect.iter().map(CExpect::expect).collect::<Option<Vec<_>>>()?;
        let read = ReadOp { file: self.file, offset: self.offset, bytes: self.bytes };
        Some(Plan { read, answering: Answering { head, payload, expect } })
    }
}

impl CExpect {
    fn expect(&self) -> Option<Expect> {
        let at = usize::try_from(self.at).ok()?;
        match self.kind {
            1 => {
                let bytes = self.bytes.get(..usize::try_from(self.length).ok()?)?.to_vec();
                Some(Expect::Equal { at, bytes })
            }
            2 => Some(Expect::AtLeast { at, least: self.least }),
            _ => None,
        }
    }
}

/// `struct ofl_write`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(in crate::plugin) struct CWrite {
    pub(in crate::plugin) file: u32,
    pub(in crate::plugin) reserved: u32,
    pub(in crate::plugin) offset: u64,
    pub(in crate::plugin) bytes: *const u8,
    pub(in crate::plugin) length: usize,
}

/// `struct ofl_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(in crate::plugin) struct CRange {
    pub(in crate::plugin) file: u32,
    pub(in crate::plugin) bytes: u32,
    pub(in crate::plugin) offset: u64,
}

/// `struct ofl_calls`: what a plug-in may call while it is called. The first argument of each is
/// what it was given.
#[repr(C)]
pub(in crate::plugin) struct CCalls {
    pub(in crate::plugin) abi: u32,
    pub(in crate::plugin) size: u32,
    pub(in crate::plugin) get: unsafe extern "C" fn(*mut c_void, u64, *mut [u64; 4]) -> c_int,
    pub(in crate::plugin) literal: unsafe extern "C" fn(*mut c_void, *const u8, usize),
    pub(in crate::plugin) host: unsafe extern "C" fn(*mut c_void, *const u8, usize, u32, u64),
    pub(in crate::plugin) dpu: unsafe extern "C" fn(*mut c_void, *const u8, usize, u64),
    pub(in crate::plugin) item: unsafe extern "C" fn(*mut c_void, u64, *const [u64; 4]),
    pub(in crate::plugin) key: unsafe extern "C" fn(*mut c_void, u64),
}

/// `struct ofl_application`: what a plug-in gives.
#[repr(C)]
pub(in crate::plugin) struct CApplication {
    pub(in crate::plugin) abi: u32,
    pub(in crate::plugin) size: u32,
    pub(in crate::plugin) name: *const c_char,
    pub(in crate::plugin) messages: CFrames,
    pub(in crate::plugin) answers: CFrames,
    pub(in crate::plugin) off_pred:
        Option<unsafe extern "C" fn(*const u8, usize, *mut c_void, *mut c_void)>,
    pub(in crate::plugin) off_func:
        Option<unsafe extern "C" fn(*const u8, usize, *mut c_void, *mut CRead) -> c_int>,
    pub(in crate::plugin) cache: Option<unsafe extern "C" fn(*const CWrite, *mut c_void)>,
    pub(in crate::plugin) invalidate: Option<unsafe extern "C" fn(*const CRange, *mut c_void)>,
}

/// `outboard_offload`.
pub(in crate::plugin) type Entry = unsafe extern "C" fn(*const CCalls) -> *const CApplication;
