//! What a host asks for when it attaches, and what it is granted: one message for every role a
//! host's memory can have, so that there is one place where an attachment begins.
//!
//! ```text
//! Hello    0 role u16   2 its version u16   4 region bytes u64
//!   queues 12 session u64   20 queues u16   22 depth u16   24 cache: place u64   32 bytes u64
//!          40 bits: 0, 2, 3 beside whom it may be ([`Company`]), 1 it outlives its process; all
//!             others zeros
//!   rings  12 groups u16    14 align u32    18 bytes of requests u64   26 bytes of responses u64
//! Welcome  0 role u16   2 its version u16   4 instance u64   12 bytes of pages u64
//!   queues 20 queues u16    22 depth u16    24 most bytes of one payload u32
//!          28 volume u32: 0 a kv volume, 1 a shared one
//!   rings  (nothing more)
//! ```
//!
//! The pages are memory of the DPU side that the host maps: registers, or the words by which sides
//! say that they sleep. A role's version is that of everything its two sides share from then on.

use outboard_base::SessionId;
use outboard_base::limits::PAGE;

use super::{AttachError, Message};
use crate::dds::{ALIGN_MAX, GROUPS_MAX, GROUPS_MIN, RING_MAX, RING_MIN};
use crate::nvmefs::{DEPTH_MAX, DEPTH_MIN, Dispatch, QUEUES_MAX, u16_at, u32_at, u64_at};

/// What a host's memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Role {
    /// Queue pairs of a volume, and its hybrid cache.
    Queues = 1,
    /// Rings of messages of a page server.
    Rings = 2,
    /// Reserved: a log of operations. Nobody serves it.
    Log = 3,
    /// Reserved: a storage node. Nobody serves it.
    Node = 4,
}

impl Role {
    const ALL: [Role; 4] = [Role::Queues, Role::Rings, Role::Log, Role::Node];

    /// The role of this number.
    #[must_use]
    pub fn named(number: u16) -> Option<Role> {
        Role::ALL.into_iter().find(|role| *role as u16 == number)
    }

    /// The version of it that this program speaks; `None`: the number is reserved.
    #[must_use]
    pub const fn version(self) -> Option<u16> {
        match self {
            // 2: the Welcome says which volume it is.
            Role::Queues => Some(2),
            Role::Rings => Some(1),
            Role::Log | Role::Node => None,
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Queues => "queues of a volume",
            Role::Rings => "rings of a page server",
            Role::Log => "a log",
            Role::Node => "a node",
        })
    }
}

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Queue pairs.
    Queues(QueuesHello),
    /// Rings.
    Rings(RingsHello),
}

/// Of a host that brings queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuesHello {
    /// The same across re-attachments of one host-side process.
    pub session: SessionId,
    /// Bytes of the region handed over with this message.
    pub region_len: u64,
    /// Queue pairs wanted, 1..=[`QUEUES_MAX`].
    pub queues: u16,
    /// Depth wanted: a power of two, [`DEPTH_MIN`]..=[`DEPTH_MAX`].
    pub depth: u16,
    /// Where in the region the hybrid cache begins: at a page, and within the region.
    pub cache_at: u64,
    /// Bytes of the hybrid cache; 0: there is none.
    pub cache_len: u64,
    /// Beside whom it may be attached.
    pub company: Company,
    /// Somebody keeps its memory when the process that connects dies: another may take it up.
    pub outlives: bool,
}

/// The bit beside a [`Company`]'s that says that a host outlives its process.
const OUTLIVES: u32 = 2;

/// Beside whom a host may be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Company {
    /// Beside anybody who agrees.
    #[default]
    Anybody,
    /// The same, and it keeps nothing of what others write.
    Modest,
    /// Beside nobody: it keeps what nobody could ask it for.
    Nobody,
    /// Only beside those who are modest: it keeps what is written, and can be asked for it.
    TheModest,
}

impl Company {
    /// The bits that say so.
    #[must_use]
    pub fn raw(self) -> u32 {
        match self {
            Company::Anybody => 0,
            Company::Nobody => 1,
            Company::TheModest => 5,
            Company::Modest => 8,
        }
    }

    /// What bits say; `None` for those that say nothing.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Company> {
        let all = [Company::Anybody, Company::Modest, Company::Nobody, Company::TheModest];
        all.into_iter().find(|company| company.raw() == raw)
    }

    /// Whether a host keeps what was written there and the volume has not heard of.
    #[must_use]
    pub fn collects(self) -> bool {
        matches!(self, Company::Nobody | Company::TheModest)
    }

    /// Whether two hosts may be attached side by side.
    #[must_use]
    pub fn goes_with(self, other: Company) -> bool {
        match (self, other) {
            (Company::TheModest, other) | (other, Company::TheModest) => other == Company::Modest,
            (one, other) => one != Company::Nobody && other != Company::Nobody,
        }
    }
}

/// Of a host that brings rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingsHello {
    /// Bytes of the region handed over with this message.
    pub region_len: u64,
    /// Notification groups, [`GROUPS_MIN`]..=[`GROUPS_MAX`].
    pub groups: u16,
    /// Alignment of data that is written: a power of two, 8..=[`ALIGN_MAX`].
    pub align: u32,
    /// Bytes of a ring of requests: a power of two, [`RING_MIN`]..=[`RING_MAX`].
    pub requests: u64,
    /// Bytes of a ring of responses: the same.
    pub responses: u64,
}

/// What the DPU grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Welcome {
    /// Queue pairs.
    Queues(QueuesWelcome),
    /// Rings, as they were asked for.
    Rings(RingsWelcome),
}

/// To a host that brings queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuesWelcome {
    /// Which life of the DPU side this is: another number after each restart.
    pub instance: u64,
    /// Bytes of the registers handed over with this message.
    pub registers_len: u64,
    /// Queue pairs granted.
    pub queues: u16,
    /// Depth granted.
    pub depth: u16,
    /// Most payload bytes of one command in one direction.
    pub io_max: u32,
    /// Which volume answers: bit 10 of every command.
    pub volume: Dispatch,
}

/// To a host that brings rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingsWelcome {
    /// Which life of the DPU side this is.
    pub instance: u64,
    /// Bytes of the wake-up words handed over with this message.
    pub wakeups_len: u64,
}

const HEAD: usize = 12;
const QUEUES_HELLO: usize = 44;
const RINGS_HELLO: usize = 34;
const QUEUES_WELCOME: usize = 32;
const RINGS_WELCOME: usize = 20;

fn grid_ok(queues: u16, depth: u16) -> bool {
    (1..=QUEUES_MAX).contains(&queues)
        && (DEPTH_MIN..=DEPTH_MAX).contains(&depth)
        && depth.is_power_of_two()
}

fn cache_ok(hello: &QueuesHello) -> bool {
    let end = hello.cache_at.checked_add(hello.cache_len);
    hello.cache_len == 0
        || hello.cache_at.is_multiple_of(PAGE as u64)
            && end.is_some_and(|end| end <= hello.region_len)
}

fn rings_ok(hello: &RingsHello) -> bool {
    let ring = |bytes: u64| (RING_MIN..=RING_MAX).contains(&bytes) && bytes.is_power_of_two();
    (GROUPS_MIN..=GROUPS_MAX).contains(&hello.groups)
        && (8..=ALIGN_MAX).contains(&(hello.align as usize))
        && hello.align.is_power_of_two()
        && ring(hello.requests)
        && ring(hello.responses)
}

fn emit_role(body: &mut Vec<u8>, role: Role) {
    body.extend((role as u16).to_le_bytes());
    body.extend(role.version().unwrap_or(0).to_le_bytes());
}

/// The role a body begins with, if this program speaks it in that version.
fn role(body: &[u8]) -> Result<Role, AttachError> {
    if body.len() < HEAD {
        return Err(AttachError::Malformed);
    }
    let (number, version) = (u16_at(body, 0), u16_at(body, 2));
    match Role::named(number).and_then(|role| Some((role, role.version()?))) {
        None => Err(AttachError::Role(number)),
        Some((role, spoken)) if spoken == version => Ok(role),
        Some((role, _)) => Err(AttachError::RoleVersion(role, version)),
    }
}

fn sized(body: &[u8], len: usize) -> Result<(), AttachError> {
    if body.len() == len { Ok(()) } else { Err(AttachError::Malformed) }
}

fn when<T>(ok: bool, value: T) -> Result<T, AttachError> {
    if ok { Ok(value) } else { Err(AttachError::OutOfRange) }
}

impl Hello {
    /// What the memory is for.
    #[must_use]
    pub fn role(&self) -> Role {
        match self {
            Hello::Queues(_) => Role::Queues,
            Hello::Rings(_) => Role::Rings,
        }
    }

    pub(super) fn emit(&self, body: &mut Vec<u8>) {
        emit_role(body, self.role());
        match self {
            Hello::Queues(hello) => {
                body.extend(hello.region_len.to_le_bytes());
                body.extend(hello.session.0.to_le_bytes());
                body.extend(hello.queues.to_le_bytes());
                body.extend(hello.depth.to_le_bytes());
                body.extend(hello.cache_at.to_le_bytes());
                body.extend(hello.cache_len.to_le_bytes());
                let outlives = if hello.outlives { OUTLIVES } else { 0 };
                let wishes = hello.company.raw() | outlives;
                body.extend(wishes.to_le_bytes());
            }
            Hello::Rings(hello) => {
                body.extend(hello.region_len.to_le_bytes());
                body.extend(hello.groups.to_le_bytes());
                body.extend(hello.align.to_le_bytes());
                body.extend(hello.requests.to_le_bytes());
                body.extend(hello.responses.to_le_bytes());
            }
        }
    }

    pub(super) fn parse(body: &[u8]) -> Result<Message, AttachError> {
        let region_len = u64_at(body, 4);
        let hello = match role(body)? {
            Role::Queues => {
                sized(body, QUEUES_HELLO)?;
                let wishes = u32_at(body, 40);
                let company = Company::from_raw(wishes & !OUTLIVES);
                let hello = QueuesHello {
                    region_len,
                    session: SessionId(u64_at(body, HEAD)),
                    queues: u16_at(body, 20),
                    depth: u16_at(body, 22),
                    cache_at: u64_at(body, 24),
                    cache_len: u64_at(body, 32),
                    company: company.ok_or(AttachError::OutOfRange)?,
                    outlives: wishes & OUTLIVES != 0,
                };
                let ok = grid_ok(hello.queues, hello.depth) && cache_ok(&hello);
                when(ok, Hello::Queues(hello))
            }
            Role::Rings => {
                sized(body, RINGS_HELLO)?;
                let hello = RingsHello {
                    region_len,
                    groups: u16_at(body, HEAD),
                    align: u32_at(body, 14),
                    requests: u64_at(body, 18),
                    responses: u64_at(body, 26),
                };
                when(rings_ok(&hello), Hello::Rings(hello))
            }
            other => Err(AttachError::Role(other as u16)),
        };
        hello.map(Message::Hello)
    }
}

impl Welcome {
    /// What was asked for.
    #[must_use]
    pub fn role(&self) -> Role {
        match self {
            Welcome::Queues(_) => Role::Queues,
            Welcome::Rings(_) => Role::Rings,
        }
    }

    pub(super) fn emit(&self, body: &mut Vec<u8>) {
        emit_role(body, self.role());
        match self {
            Welcome::Queues(welcome) => {
                body.extend(welcome.instance.to_le_bytes());
                body.extend(welcome.registers_len.to_le_bytes());
                body.extend(welcome.queues.to_le_bytes());
                body.extend(welcome.depth.to_le_bytes());
                body.extend(welcome.io_max.to_le_bytes());
                let volume = u32::from(welcome.volume == Dispatch::Shared);
                body.extend(volume.to_le_bytes());
            }
            Welcome::Rings(welcome) => {
                body.extend(welcome.instance.to_le_bytes());
                body.extend(welcome.wakeups_len.to_le_bytes());
            }
        }
    }

    pub(super) fn parse(body: &[u8]) -> Result<Message, AttachError> {
        let (instance, pages_len) = (u64_at(body, 4), u64_at(body, HEAD));
        let welcome = match role(body)? {
            Role::Queues => {
                sized(body, QUEUES_WELCOME)?;
                let (queues, depth, io_max) =
                    (u16_at(body, 20), u16_at(body, 22), u32_at(body, 24));
                let registers_len = pages_len;
                let volume = match u32_at(body, 28) {
                    0 => Dispatch::Kv,
                    1 => Dispatch::Shared,
                    _ => return Err(AttachError::OutOfRange),
                };
                let welcome =
                    QueuesWelcome { instance, registers_len, queues, depth, io_max, volume };
                when(grid_ok(queues, depth), Welcome::Queues(welcome))
            }
            Role::Rings => {
                sized(body, RINGS_WELCOME)?;
                Ok(Welcome::Rings(RingsWelcome { instance, wakeups_len: pages_len }))
            }
            other => Err(AttachError::Role(other as u16)),
        };
        welcome.map(Message::Welcome)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn hellos() -> impl Strategy<Value = Hello> {
        let depth = (1u32..=10).prop_map(|shift| 1u16 << shift);
        let ring = || (12u32..=30).prop_map(|shift| 1u64 << shift);
        let align = (3u32..=12).prop_map(|shift| 1u32 << shift);
        prop_oneof![
            (any::<[u64; 2]>(), 1u16..=64, depth).prop_map(
                |([session, region_len], queues, depth)| {
                    let (cache_at, cache_len) = (region_len / 8192 * 4096, region_len / 2);
                    let session = SessionId(session);
                    Hello::Queues(QueuesHello {
                        session,
                        region_len,
                        queues,
                        depth,
                        cache_at,
                        cache_len,
                        company: [
                            Company::Anybody,
                            Company::Modest,
                            Company::Nobody,
                            Company::TheModest,
                        ][usize::try_from(session.0 % 4).unwrap()],
                        outlives: session.0 % 8 > 3,
                    })
                }
            ),
            (any::<u64>(), 2u16..=64, align, ring(), ring()).prop_map(
                |(region_len, groups, align, requests, responses)| {
                    Hello::Rings(RingsHello { region_len, groups, align, requests, responses })
                }
            ),
        ]
    }

    pub(crate) fn welcomes() -> impl Strategy<Value = Welcome> {
        let depth = (1u32..=10).prop_map(|shift| 1u16 << shift);
        prop_oneof![
            (any::<[u64; 2]>(), 1u16..=64, depth, any::<u32>(), any::<bool>()).prop_map(
                |([instance, registers_len], queues, depth, io_max, shared)| {
                    Welcome::Queues(QueuesWelcome {
                        instance,
                        registers_len,
                        queues,
                        depth,
                        io_max,
                        volume: if shared { Dispatch::Shared } else { Dispatch::Kv },
                    })
                }
            ),
            any::<[u64; 2]>().prop_map(|[instance, wakeups_len]| {
                Welcome::Rings(RingsWelcome { instance, wakeups_len })
            }),
        ]
    }

    const QUEUES: QueuesHello = QueuesHello {
        session: SessionId(0x0807_0605_0403_0201),
        region_len: 0x10_0000,
        queues: 4,
        depth: 128,
        cache_at: 0x8_0000,
        cache_len: 0x8_0000,
        company: Company::Nobody,
        outlives: false,
    };
    const RINGS: RingsHello = RingsHello {
        region_len: 0x10_0000,
        groups: 3,
        align: 512,
        requests: 4096,
        responses: 8192,
    };

    fn parse(hello: Hello) -> Result<Message, AttachError> {
        Message::parse(&Message::Hello(hello).emit())
    }

    #[test]
    fn golden_bytes() {
        #[rustfmt::skip]
        let queues = [
            b'O', b'B', b'A', b'T', 5, 0, 1, 0, 44, 0, 0, 0,
            1, 0, 2, 0, 0, 0, 0x10, 0, 0, 0, 0, 0,
            1, 2, 3, 4, 5, 6, 7, 8, 4, 0, 128, 0,
            0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0, 0, 0,
        ];
        #[rustfmt::skip]
        let rings = [
            b'O', b'B', b'A', b'T', 5, 0, 1, 0, 34, 0, 0, 0,
            2, 0, 1, 0, 0, 0, 0x10, 0, 0, 0, 0, 0,
            3, 0, 0, 2, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0,
        ];
        for (hello, golden) in
            [(Hello::Queues(QUEUES), &queues[..]), (Hello::Rings(RINGS), &rings[..])]
        {
            assert_eq!(Message::Hello(hello).emit(), golden);
            assert_eq!(Message::parse(golden), Ok(Message::Hello(hello)));
        }
    }

    /// A host learns from the Welcome which volume its commands are to name.
    #[test]
    fn golden_bytes_of_a_welcome() {
        #[rustfmt::skip]
        let mut golden = [
            b'O', b'B', b'A', b'T', 5, 0, 2, 0, 32, 0, 0, 0,
            1, 0, 2, 0, 7, 0, 0, 0, 0, 0, 0, 0,
            0, 0x20, 0, 0, 0, 0, 0, 0, 4, 0, 128, 0, 0, 0, 0x10, 0, 0, 0, 0, 0,
        ];
        for (number, volume) in [(0, Dispatch::Kv), (1, Dispatch::Shared)] {
            golden[40] = number;
            let welcome = Message::Welcome(Welcome::Queues(QueuesWelcome {
                instance: 7,
                registers_len: 0x2000,
                queues: 4,
                depth: 128,
                io_max: 0x10_0000,
                volume,
            }));
            assert_eq!(welcome.emit(), golden);
            assert_eq!(Message::parse(&golden), Ok(welcome));
        }
        golden[40] = 2;
        assert_eq!(Message::parse(&golden), Err(AttachError::OutOfRange));
    }

    #[test]
    fn what_is_out_of_range_is_no_hello() {
        for (queues, depth) in [(0, 2), (1, 0), (1, 3), (1, 2048), (65, 2)] {
            let hello = Hello::Queues(QueuesHello { queues, depth, ..QUEUES });
            assert_eq!(parse(hello), Err(AttachError::OutOfRange));
        }
        for (cache_at, cache_len) in
            [(4096, 1 << 20), (100, 4096), (1 << 20, 1), (u64::MAX - 4095, 8192)]
        {
            let hello = Hello::Queues(QueuesHello { cache_at, cache_len, ..QUEUES });
            assert_eq!(parse(hello), Err(AttachError::OutOfRange));
        }
        for rings in [
            RingsHello { groups: 1, ..RINGS },
            RingsHello { groups: 65, ..RINGS },
            RingsHello { align: 4, ..RINGS },
            RingsHello { align: 24, ..RINGS },
            RingsHello { align: 8192, ..RINGS },
            RingsHello { requests: 0, ..RINGS },
            RingsHello { requests: 2048, ..RINGS },
            RingsHello { responses: 12288, ..RINGS },
            RingsHello { responses: 1 << 31, ..RINGS },
        ] {
            assert_eq!(parse(Hello::Rings(rings)), Err(AttachError::OutOfRange), "{rings:?}");
        }
    }

    /// A role nobody knows, one whose number is only reserved, and one in another version: each is
    /// refused with a reason that says which it was.
    #[test]
    fn a_role_that_is_not_spoken_is_refused_with_a_reason() {
        use crate::attach::Reason;
        let good = Message::Hello(Hello::Rings(RINGS)).emit();
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Message::parse(&bytes).unwrap_err()
        };
        for (number, says) in [(0, "unknown role 0"), (3, "a log"), (4, "a node"), (99, "role 99")]
        {
            let error = with(12, number);
            assert_eq!((error, error.reason()), (AttachError::Role(number.into()), Reason::Role));
            assert!(error.to_string().contains(says), "{error}");
        }
        let error = with(14, 7);
        assert_eq!(error, AttachError::RoleVersion(Role::Rings, 7));
        assert_eq!(error.reason(), Reason::Version);
        assert!(error.to_string().contains("rings of a page server, version 7"), "{error}");
        // The length of one role under the number of another.
        let mut bytes = good.clone();
        (bytes[12], bytes[14]) = (1, 2);
        assert_eq!(Message::parse(&bytes), Err(AttachError::Malformed));
        for len in 0..good.len() {
            assert!(Message::parse(&good[..len]).is_err(), "cut short to {len}");
        }
    }
}
