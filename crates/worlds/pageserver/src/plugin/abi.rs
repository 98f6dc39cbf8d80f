//! `outboard_offload.h`, as Rust sees it.

use std::ffi::{c_char, c_int, c_void};

use outboard_dds::dpu::offload::Head;
use outboard_dds::dpu::offload::ReadOp;
use outboard_dds::dpu::offload::plugin::{Answering, Counted, EXPECT_MAX, Expect, Frames, Plan};

/// Version of the header.
pub(super) const ABI: u32 = 1;
/// Names of what the object gives.
pub(super) const ENTRY: &std::ffi::CStr = c"outboard_offload";

/// `struct ofl_frames`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CFrames {
    pub(super) kind: u32,
    pub(super) bytes: u32,
    pub(super) at: u32,
    pub(super) width: u32,
    pub(super) big_endian: u32,
    pub(super) beyond: u32,
    pub(super) end: u32,
}

impl CFrames {
    /// Words of one.
    pub(super) const WORDS: usize = 7;

    pub(super) fn words(&self) -> [u32; CFrames::WORDS] {
        [self.kind, self.bytes, self.at, self.width, self.big_endian, self.beyond, self.end]
    }

    pub(super) fn of([kind, bytes, at, width, big_endian, beyond, end]: [u32; 7]) -> CFrames {
        CFrames { kind, bytes, at, width, big_endian, beyond, end }
    }

    /// `None` if it makes no sense.
    pub(super) fn frames(&self) -> Option<Frames> {
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
pub(super) struct CExpect {
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
pub(super) struct CRead {
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
    pub(super) const EMPTY: CRead = CRead {
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
    pub(super) fn plan(&self) -> Option<Plan> {
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
pub(super) struct CWrite {
    pub(super) file: u32,
    pub(super) reserved: u32,
    pub(super) offset: u64,
    pub(super) bytes: *const u8,
    pub(super) length: usize,
}

/// `struct ofl_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CRange {
    pub(super) file: u32,
    pub(super) bytes: u32,
    pub(super) offset: u64,
}

/// `struct ofl_calls`: what a plug-in may call while it is called. The first argument of each is
/// what it was given.
#[repr(C)]
pub(super) struct CCalls {
    pub(super) abi: u32,
    pub(super) size: u32,
    pub(super) get: unsafe extern "C" fn(*mut c_void, u64, *mut [u64; 4]) -> c_int,
    pub(super) literal: unsafe extern "C" fn(*mut c_void, *const u8, usize),
    pub(super) host: unsafe extern "C" fn(*mut c_void, *const u8, usize, u32, u64),
    pub(super) dpu: unsafe extern "C" fn(*mut c_void, *const u8, usize, u64),
    pub(super) item: unsafe extern "C" fn(*mut c_void, u64, *const [u64; 4]),
    pub(super) key: unsafe extern "C" fn(*mut c_void, u64),
}

/// `struct ofl_application`: what a plug-in gives.
#[repr(C)]
pub(super) struct CApplication {
    pub(super) abi: u32,
    pub(super) size: u32,
    pub(super) name: *const c_char,
    pub(super) messages: CFrames,
    pub(super) answers: CFrames,
    pub(super) off_pred: Option<unsafe extern "C" fn(*const u8, usize, *mut c_void, *mut c_void)>,
    pub(super) off_func:
        Option<unsafe extern "C" fn(*const u8, usize, *mut c_void, *mut CRead) -> c_int>,
    pub(super) cache: Option<unsafe extern "C" fn(*const CWrite, *mut c_void)>,
    pub(super) invalidate: Option<unsafe extern "C" fn(*const CRange, *mut c_void)>,
}

/// `outboard_offload`.
pub(super) type Entry = unsafe extern "C" fn(*const CCalls) -> *const CApplication;
