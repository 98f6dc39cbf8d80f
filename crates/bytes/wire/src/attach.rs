//! The messages of the attach socket, one a datagram (`SOCK_SEQPACKET` keeps their borders).
//!
//! ```text
//! byte  0-3  magic "OBAT"    4-5  version    6-7  kind    8-11  bytes of body    12..  body
//!
//! kind  name             body                                             descriptors
//!  1    Hello            session u64, region bytes u64, queues u16, depth u16,
//!                        cache: place u64, bytes u64 (0: none)          region
//!  2    Welcome          instance u64, register bytes u64, queues u16, depth u16,
//!                        most bytes of one payload u32                  registers, event
//!  3    Refused          reason u16, text
//!  4    Detach           (empty; the DPU answers with the same and closes)
//!  5    Control          request id u32, text (at most 64 KiB)
//!  6    ControlReply     request id u32, text (at most 64 KiB)
//! ```
//!
//! A connection that only sends Control needs no Hello. The version is that of everything shared:
//! these messages, the registers, the rings, the entries and the cache.

use outboard_base::SessionId;
use outboard_base::limits::PAGE;

use crate::nvmefs::{DEPTH_MAX, DEPTH_MIN, QUEUES_MAX, put, u16_at, u32_at, u64_at};

/// First bytes of a message: "OBAT".
pub const MAGIC: u32 = 0x5441_424F;
/// Version of all that is shared over a link.
pub const VERSION: u16 = 3;
/// Bytes before the body.
pub const HEADER_LEN: usize = 12;
/// Longest text of a control message, bytes.
pub const TEXT_MAX: usize = 64 << 10;
/// Longest message, bytes.
pub const MESSAGE_MAX: usize = HEADER_LEN + 4 + TEXT_MAX;

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
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
}

/// What the DPU grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
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
}

/// Why an attachment was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reason {
    /// The versions differ.
    Version = 1,
    /// The first message was not a Hello, or a field is out of its range.
    Malformed = 2,
    /// The region is not shared memory sealed against shrinking, or too small.
    Region = 3,
    /// No room for another attachment.
    Full = 4,
    /// This user may not attach.
    Permission = 5,
    /// The DPU is shutting down.
    Closing = 6,
    /// The session is attached already.
    Busy = 7,
}

impl Reason {
    const ALL: [Reason; 7] = [
        Reason::Version,
        Reason::Malformed,
        Reason::Region,
        Reason::Full,
        Reason::Permission,
        Reason::Closing,
        Reason::Busy,
    ];
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Host: attach me.
    Hello(Hello),
    /// DPU: attached.
    Welcome(Welcome),
    /// DPU: no.
    Refused {
        /// Why, for the program.
        reason: Reason,
        /// Why, for the reader.
        text: String,
    },
    /// Host: nothing of mine is in flight, let me go. DPU: done.
    Detach,
    /// A request outside the queues (status, fsck, shutdown): text, by convention JSON.
    Control {
        /// Chosen by the asker, repeated in the answer.
        id: u32,
        /// The request.
        text: String,
    },
    /// The answer to a control request.
    ControlReply {
        /// The request's id.
        id: u32,
        /// The answer.
        text: String,
    },
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// Not from this protocol, cut short, or with trailing bytes.
    Malformed,
    /// Another version of it.
    Version(u16),
    /// An unknown kind or reason.
    Unknown,
    /// A field out of its range.
    OutOfRange,
}

impl AttachError {
    /// What a sender of such bytes is told.
    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            AttachError::Version(_) => Reason::Version,
            AttachError::Malformed | AttachError::Unknown | AttachError::OutOfRange => {
                Reason::Malformed
            }
        }
    }
}

impl std::fmt::Display for AttachError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AttachError::Malformed => write!(f, "not a link message"),
            AttachError::Version(v) => {
                write!(f, "link protocol version {v}, this program speaks {VERSION}")
            }
            AttachError::Unknown => write!(f, "unknown kind of link message"),
            AttachError::OutOfRange => write!(f, "a field of the link message is out of range"),
        }
    }
}

impl std::error::Error for AttachError {}

fn grid_ok(queues: u16, depth: u16) -> bool {
    (1..=QUEUES_MAX).contains(&queues)
        && (DEPTH_MIN..=DEPTH_MAX).contains(&depth)
        && depth.is_power_of_two()
}

fn cache_ok(hello: &Hello) -> bool {
    let end = hello.cache_at.checked_add(hello.cache_len);
    hello.cache_len == 0
        || hello.cache_at.is_multiple_of(PAGE as u64)
            && end.is_some_and(|end| end <= hello.region_len)
}

impl Message {
    fn kind(&self) -> u16 {
        match self {
            Message::Hello(_) => 1,
            Message::Welcome(_) => 2,
            Message::Refused { .. } => 3,
            Message::Detach => 4,
            Message::Control { .. } => 5,
            Message::ControlReply { .. } => 6,
        }
    }

    /// The message's bytes. Text beyond [`TEXT_MAX`] is cut at a character border.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut body = Vec::new();
        match self {
            Message::Hello(hello) => {
                body.extend(hello.session.0.to_le_bytes());
                body.extend(hello.region_len.to_le_bytes());
                body.extend(hello.queues.to_le_bytes());
                body.extend(hello.depth.to_le_bytes());
                body.extend(hello.cache_at.to_le_bytes());
                body.extend(hello.cache_len.to_le_bytes());
            }
            Message::Welcome(welcome) => {
                body.extend(welcome.instance.to_le_bytes());
                body.extend(welcome.registers_len.to_le_bytes());
                body.extend(welcome.queues.to_le_bytes());
                body.extend(welcome.depth.to_le_bytes());
                body.extend(welcome.io_max.to_le_bytes());
            }
            Message::Refused { reason, text } => {
                body.extend((*reason as u16).to_le_bytes());
                body.extend(cut(text).as_bytes());
            }
            Message::Detach => {}
            Message::Control { id, text } | Message::ControlReply { id, text } => {
                body.extend(id.to_le_bytes());
                body.extend(cut(text).as_bytes());
            }
        }
        let mut out = vec![0; HEADER_LEN];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        put(&mut out, 4, &VERSION.to_le_bytes());
        put(&mut out, 6, &self.kind().to_le_bytes());
        put(&mut out, 8, &u32::try_from(body.len()).unwrap_or(0).to_le_bytes());
        out.extend(body);
        out
    }

    /// Reads one datagram.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn parse(bytes: &[u8]) -> Result<Message, AttachError> {
        if bytes.len() < HEADER_LEN || bytes.len() > MESSAGE_MAX || u32_at(bytes, 0) != MAGIC {
            return Err(AttachError::Malformed);
        }
        let version = u16_at(bytes, 4);
        if version != VERSION {
            return Err(AttachError::Version(version));
        }
        let body = bytes.get(HEADER_LEN..).unwrap_or_default();
        if usize::try_from(u32_at(bytes, 8)) != Ok(body.len()) {
            return Err(AttachError::Malformed);
        }
        let sized =
            |len: usize| if body.len() == len { Ok(()) } else { Err(AttachError::Malformed) };
        match u16_at(bytes, 6) {
            1 => sized(36).and_then(|()| hello(body)),
            2 => sized(24).and_then(|()| welcome(body)),
            3 => refused(body),
            4 => sized(0).map(|()| Message::Detach),
            5 => text(body, 4).map(|text| Message::Control { id: u32_at(body, 0), text }),
            6 => text(body, 4).map(|text| Message::ControlReply { id: u32_at(body, 0), text }),
            _ => Err(AttachError::Unknown),
        }
    }
}

fn hello(body: &[u8]) -> Result<Message, AttachError> {
    let hello = Hello {
        session: SessionId(u64_at(body, 0)),
        region_len: u64_at(body, 8),
        queues: u16_at(body, 16),
        depth: u16_at(body, 18),
        cache_at: u64_at(body, 20),
        cache_len: u64_at(body, 28),
    };
    if !grid_ok(hello.queues, hello.depth) || !cache_ok(&hello) {
        return Err(AttachError::OutOfRange);
    }
    Ok(Message::Hello(hello))
}

fn welcome(body: &[u8]) -> Result<Message, AttachError> {
    let welcome = Welcome {
        instance: u64_at(body, 0),
        registers_len: u64_at(body, 8),
        queues: u16_at(body, 16),
        depth: u16_at(body, 18),
        io_max: u32_at(body, 20),
    };
    if !grid_ok(welcome.queues, welcome.depth) {
        return Err(AttachError::OutOfRange);
    }
    Ok(Message::Welcome(welcome))
}

fn refused(body: &[u8]) -> Result<Message, AttachError> {
    let text = text(body, 2)?;
    let raw = u16_at(body, 0);
    let reason =
        Reason::ALL.into_iter().find(|reason| *reason as u16 == raw).ok_or(AttachError::Unknown)?;
    Ok(Message::Refused { reason, text })
}

fn text(body: &[u8], at: usize) -> Result<String, AttachError> {
    let bytes = body.get(at..).ok_or(AttachError::Malformed)?;
    if bytes.len() > TEXT_MAX {
        return Err(AttachError::Malformed);
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| AttachError::Malformed)
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes() {
        let hello = Message::Hello(Hello {
            session: SessionId(0x0807_0605_0403_0201),
            region_len: 0x10_0000,
            queues: 4,
            depth: 128,
            cache_at: 0x8_0000,
            cache_len: 0x8_0000,
        });
        #[rustfmt::skip]
        let golden = [
            b'O', b'B', b'A', b'T', 3, 0, 1, 0, 36, 0, 0, 0,
            1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x10, 0, 0, 0, 0, 0, 4, 0, 128, 0,
            0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0,
        ];
        assert_eq!(hello.emit(), golden);
        assert_eq!(Message::parse(&golden), Ok(hello));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let session = SessionId(1);
        let (queues, depth) = (1, 2);
        let plain = Hello { session, region_len: 1, queues, depth, cache_at: 0, cache_len: 0 };
        let good = Message::Detach.emit();
        assert_eq!(Message::parse(&good[..11]), Err(AttachError::Malformed));
        let mut other = good.clone();
        other[4] = 9;
        assert_eq!(Message::parse(&other), Err(AttachError::Version(9)));
        other = good.clone();
        other[6] = 99;
        assert_eq!(Message::parse(&other), Err(AttachError::Unknown));
        other = good;
        other.push(0);
        assert_eq!(Message::parse(&other), Err(AttachError::Malformed));
        for (queues, depth) in [(0, 2), (1, 0), (1, 3), (1, 2048), (65, 2)] {
            let hello = Hello { queues, depth, ..plain };
            assert_eq!(Message::parse(&Message::Hello(hello).emit()), Err(AttachError::OutOfRange));
        }
        let region_len = 1 << 20;
        for (cache_at, cache_len) in
            [(4096, 1 << 20), (100, 4096), (1 << 20, 1), (u64::MAX - 4095, 8192)]
        {
            let hello = Hello { region_len, cache_at, cache_len, ..plain };
            assert_eq!(Message::parse(&Message::Hello(hello).emit()), Err(AttachError::OutOfRange));
        }
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        let text = "é".repeat(TEXT_MAX);
        let bytes = Message::Control { id: 1, text }.emit();
        assert!(bytes.len() <= MESSAGE_MAX);
        assert!(matches!(Message::parse(&bytes), Ok(Message::Control { id: 1, .. })));
    }

    fn messages() -> impl Strategy<Value = Message> {
        let depth = (1u32..=10).prop_map(|shift| 1u16 << shift);
        prop_oneof![
            (any::<[u64; 2]>(), 1u16..=64, depth.clone()).prop_map(
                |([s, region_len], queues, depth)| {
                    let (cache_at, cache_len) = (region_len / 8192 * 4096, region_len / 2);
                    let session = SessionId(s);
                    Message::Hello(Hello {
                        session,
                        region_len,
                        queues,
                        depth,
                        cache_at,
                        cache_len,
                    })
                }
            ),
            (any::<[u64; 2]>(), 1u16..=64, depth, any::<u32>()).prop_map(
                |([instance, registers_len], queues, depth, io_max)| Message::Welcome(Welcome {
                    instance,
                    registers_len,
                    queues,
                    depth,
                    io_max
                })
            ),
            (0usize..7, ".*")
                .prop_map(|(i, text)| Message::Refused { reason: Reason::ALL[i], text }),
            Just(Message::Detach),
            (any::<u32>(), ".*").prop_map(|(id, text)| Message::Control { id, text }),
            (any::<u32>(), ".*").prop_map(|(id, text)| Message::ControlReply { id, text }),
        ]
    }

    proptest! {
        #[test]
        fn parse_undoes_emit(message in messages()) {
            prop_assert_eq!(Message::parse(&message.emit()), Ok(message));
        }
    }
}
