//! The messages of the attach socket, one a datagram (`SOCK_SEQPACKET` keeps their borders).
//!
//! ```text
//! byte  0-3  magic "OBAT"    4-5  version    6-7  kind    8-11  bytes of body    12..  body
//!
//! kind  name             body                                             descriptors
//!  1    Hello            role, and what it asks for                       region; for rings a
//!                        (drawn in `attach/hello.rs`)                     wake socket, too
//!  2    Welcome          role, and what is granted                        pages, event
//!  3    Refused          reason u16, text
//!  4    Detach           (empty; the DPU answers with the same and closes)
//!  5    Control          request id u32, text (at most 64 KiB)
//!  6    ControlReply     request id u32, text (at most 64 KiB)
//! ```
//!
//! A connection that only sends Control needs no Hello. The version is that of these messages; each
//! role has one of its own for what its two sides share from then on: registers, entries and cache,
//! or rings.

mod hello;

use crate::nvmefs::{put, u16_at, u32_at};

pub use hello::{
    Company, Hello, QueuesHello, QueuesWelcome, RingsHello, RingsWelcome, Role, Welcome,
};

/// First bytes of a message: "OBAT".
pub const MAGIC: u32 = 0x5441_424F;
/// Version of the messages that attach: a side of another one is refused.
pub const VERSION: u16 = 5;
/// Version of all other messages, which any program may send to any: what refuses says why in words
/// that the refused can read, and a DPU side of an older program can be asked and stopped.
pub const CONTROL_VERSION: u16 = 3;
/// Bytes before the body.
pub const HEADER_LEN: usize = 12;
/// Longest text of a control message, bytes.
pub const TEXT_MAX: usize = 64 << 10;
/// Longest message, bytes.
pub const MESSAGE_MAX: usize = HEADER_LEN + 4 + TEXT_MAX;

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
    /// The role is unknown, or not one of this DPU side.
    Role = 8,
    /// Somebody has the volume alone, or it is asked for alone and others use it.
    InUse = 9,
}

impl Reason {
    const ALL: [Reason; 9] = [
        Reason::Version,
        Reason::Malformed,
        Reason::Region,
        Reason::Full,
        Reason::Permission,
        Reason::Closing,
        Reason::Busy,
        Reason::Role,
        Reason::InUse,
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
    /// A role nobody knows, or one whose number is only reserved.
    Role(u16),
    /// Another version of a role.
    RoleVersion(Role, u16),
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
            AttachError::Version(_) | AttachError::RoleVersion(..) => Reason::Version,
            AttachError::Role(_) => Reason::Role,
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
            AttachError::Role(number) => match Role::named(*number) {
                Some(role) => write!(f, "role {number}, {role}, is reserved: nobody serves it yet"),
                None => write!(f, "unknown role {number}"),
            },
            AttachError::RoleVersion(role, v) => {
                let spoken = role.version().unwrap_or(0);
                write!(f, "{role}, version {v}; this program speaks version {spoken}")
            }
            AttachError::Unknown => write!(f, "unknown kind of link message"),
            AttachError::OutOfRange => write!(f, "a field of the link message is out of range"),
        }
    }
}

impl std::error::Error for AttachError {}

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
            Message::Hello(hello) => hello.emit(&mut body),
            Message::Welcome(welcome) => welcome.emit(&mut body),
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
        put(&mut out, 4, &version_of(self.kind()).to_le_bytes());
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
        let (version, kind) = (u16_at(bytes, 4), u16_at(bytes, 6));
        if version != version_of(kind) {
            return Err(AttachError::Version(version));
        }
        let body = bytes.get(HEADER_LEN..).unwrap_or_default();
        if usize::try_from(u32_at(bytes, 8)) != Ok(body.len()) {
            return Err(AttachError::Malformed);
        }
        match kind {
            1 => Hello::parse(body),
            2 => Welcome::parse(body),
            3 => refused(body),
            4 if body.is_empty() => Ok(Message::Detach),
            4 => Err(AttachError::Malformed),
            5 => text(body, 4).map(|text| Message::Control { id: u32_at(body, 0), text }),
            6 => text(body, 4).map(|text| Message::ControlReply { id: u32_at(body, 0), text }),
            _ => Err(AttachError::Unknown),
        }
    }
}

/// The version of messages of a kind.
fn version_of(kind: u16) -> u16 {
    if kind <= 2 { VERSION } else { CONTROL_VERSION }
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
    fn what_is_wrong_is_said() {
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
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        let text = "é".repeat(TEXT_MAX);
        let bytes = Message::Control { id: 1, text }.emit();
        assert!(bytes.len() <= MESSAGE_MAX);
        assert!(matches!(Message::parse(&bytes), Ok(Message::Control { id: 1, .. })));
    }

    fn messages() -> impl Strategy<Value = Message> {
        prop_oneof![
            super::hello::tests::hellos().prop_map(Message::Hello),
            super::hello::tests::welcomes().prop_map(Message::Welcome),
            (0usize..8, ".*")
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
