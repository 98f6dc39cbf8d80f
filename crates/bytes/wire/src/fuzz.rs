//! The bodies of this crate's fuzz targets, one a decoder: any bytes in, no panic out, and what is
//! accepted says the same when written again. `fuzz/` drives them with libFuzzer; the tests below
//! drive them with seeded mutations, so that every run of the suite exercises them.

mod cluster;

pub use cluster::{call, opening};
use outboard_base::limits::{IO_MAX, REQUEST_HEADER_MAX};

use crate::attach::Message;
use crate::cache;
use crate::dds;
use crate::event::{EVENT_LEN, Event};
use crate::file::{Attr, Dirents, DirentsWriter, Op, Reply, Request, Statfs};
use crate::fuse::{Call, Dialect, InHeader, Opcode, init::InitIn, translate};
use crate::nvmefs::{self, CQE_LEN, Cqe, Prp, SQE_LEN, Sqe, prp};
use crate::roce;
use crate::shared;
use crate::virtio::{self, CHAIN_MAX, Chain, Descriptor, message};

/// Submission entries.
pub fn sqe(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<SQE_LEN>() else { return };
    if let Ok(sqe) = Sqe::parse(bytes) {
        assert_eq!(Sqe::parse(&sqe.emit()), Ok(sqe));
        assert!(sqe.write_len >= u32::from(sqe.wh_len) && sqe.read_len >= u32::from(sqe.rh_len));
    }
}

/// Completion entries.
pub fn cqe(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<CQE_LEN>() else { return };
    let cqe = Cqe::parse(bytes);
    assert_eq!(Cqe::parse(&cqe.emit()), cqe);
}

/// PRP entries and lists: two entries, a length, a region length, and the list.
pub fn prp_list(data: &[u8]) {
    let Some((head, list)) = data.split_first_chunk::<32>() else { return };
    let (len, region_len) = (nvmefs::u32_at(head, 16), nvmefs::u64_at(head, 24));
    let entries = Prp { first: nvmefs::u64_at(head, 0), second: nvmefs::u64_at(head, 8) };
    let mut out = Vec::new();
    if let Ok(Some(extent)) = prp::list_of(entries, len, region_len) {
        assert!(extent.end() <= region_len && extent.len <= 4096);
    }
    if prp::walk(entries, len, list, region_len, &mut out).is_ok() {
        assert!(out.iter().all(|extent| extent.at >= 4096 && extent.end() <= region_len));
        assert_eq!(out.iter().map(|e| u64::from(e.len)).sum::<u64>(), u64::from(len));
    }
}

/// Virtqueues: a head, a region length, and a table of descriptors; then the same bytes as a
/// message.
pub fn virtqueue(data: &[u8]) {
    let Some((head, table)) = data.split_first_chunk::<16>() else { return };
    let table = table.as_chunks::<{ virtio::DESC_LEN }>().0;
    let size = u16::try_from(table.len()).unwrap_or(virtio::SIZE_MAX);
    let region_len = nvmefs::u64_at(head, 8);
    let (mut chain, mut next) = (Chain::default(), Some(nvmefs::u16_at(head, 0)));
    while let Some(raw) = next.and_then(|at| table.get(usize::from(at))) {
        let Ok(descriptor) = Descriptor::parse(raw) else { break };
        assert_eq!(Descriptor::parse(&descriptor.emit()), Ok(descriptor));
        let Ok(behind) = chain.push(&descriptor, size, region_len) else { break };
        next = behind;
    }
    assert!(chain.count() <= CHAIN_MAX);
    let both = || chain.readable.iter().chain(&chain.writable);
    assert!(both().all(|extent| extent.at >= 4096 && extent.end() <= region_len));
    let (readable, writable) = (u64::from(nvmefs::u32_at(data, 0)), nvmefs::u64_at(head, 8));
    if let Ok(frame) = message::frame(data, readable, writable) {
        let read = frame.header_at + frame.header_len;
        assert_eq!(read as u64 + u64::from(frame.data_len), readable);
        assert!(frame.header_at + frame.header_len <= message::HEAD_MAX);
    }
    if let Some(raw) = data.first_chunk() {
        let answer = message::Answer::parse(raw);
        assert_eq!(message::Answer::parse(&answer.emit()), answer);
    }
}

const ROUTE: roce::Route =
    roce::Route { source: [127, 0, 0, 1], source_port: 1, destination: [127, 0, 0, 2] };

/// Packets of shared volumes (their checksum is looked at last), and the messages in them.
pub fn packet(data: &[u8]) {
    if let Ok(packet) = roce::Packet::parse(data, ROUTE) {
        let mut again = Vec::new();
        assert_eq!(packet.emit(ROUTE, &mut again), Ok(()));
        assert_eq!(again, data);
        message(packet.payload);
    }
    message(data);
}

fn message(data: &[u8]) {
    if let Ok(request) = shared::Request::parse(data) {
        let mut again = Vec::new();
        assert_eq!(request.heads.emit(&mut again), Ok(()));
        assert!(again.len() <= shared::HEADS_MAX);
        again.extend_from_slice(request.data);
        assert_eq!(again, data);
    }
    if let Ok((answer, rest)) = shared::Answer::split(data) {
        assert_eq!([&answer.emit()[..], rest].concat(), data);
    }
    if let Ok(capability) = shared::Capability::parse(data) {
        assert_eq!(Some(&capability.emit()), data.first_chunk());
    }
}

/// Event entries.
pub fn event(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<EVENT_LEN>() else { return };
    if let Ok(event) = Event::parse(bytes) {
        assert_eq!(Event::parse(&event.emit(Event::sequence_of(bytes))), Ok(event));
    }
}

/// Attach messages.
pub fn attach(data: &[u8]) {
    if let Ok(message) = Message::parse(data) {
        assert_eq!(Message::parse(&message.emit()), Ok(message));
    }
}

/// The hybrid cache: a header, an entry and a record in a row.
pub fn cache(data: &[u8]) {
    if let Some(bytes) = data.first_chunk::<{ cache::Header::LEN }>()
        && let Ok(header) = cache::Header::parse(bytes)
    {
        assert_eq!(cache::Header::parse(&header.emit()), Ok(header));
    }
    if let Some(bytes) = data.first_chunk::<{ cache::ENTRY_LEN }>()
        && let Ok(entry) = cache::Entry::parse(bytes)
    {
        assert_eq!(cache::Entry::parse(&entry.emit()), Ok(entry));
        let (alone, gone) = (entry.word.void(true), entry.word.void(false));
        assert_eq!(alone.void(false).lock, cache::Lock::None);
        assert!(!gone.void(true).by_dpu);
    }
    if let Some(bytes) = data.first_chunk::<{ cache::RECORD_LEN }>()
        && let Ok(record) = cache::Record::parse(bytes)
    {
        assert_eq!(cache::Record::parse(&record.emit()), Ok(record));
    }
}

/// The page server's rings: a run of frames, and each message as a request, as a response and as a
/// listing.
pub fn ring(data: &[u8]) {
    let mut taken = 0;
    for (position, message) in dds::frames(data, 64).flatten() {
        taken += dds::frame_len(message.len());
        assert!(position.is_multiple_of(8) && taken <= data.len());
        ring_message(message);
    }
    ring_message(data);
}

fn ring_message(message: &[u8]) {
    if let Ok((id, request)) = dds::Request::parse(message) {
        let at = message.len() - request.data().len();
        let head = request.head(id, at, request.data().len());
        let mut again = message.to_vec();
        again[..head.len()].copy_from_slice(&head);
        assert_eq!(dds::Request::parse(&again), Ok((id, request)));
    }
    if let Ok(response) = dds::Response::parse(message) {
        assert!(response.data.len() <= message.len());
    }
    let listed = dds::Listing::new(message).map_while(Result::ok);
    let mut out = Vec::new();
    for entry in listed {
        assert!(dds::put_listed(&mut out, &entry, message.len()));
    }
}

/// Request headers of file operations.
pub fn request(data: &[u8]) {
    if let Ok((header, request)) = Request::decode(data) {
        let mut again = [0; REQUEST_HEADER_MAX];
        let len = request.encode(&header, &mut again).unwrap_or(0);
        assert_eq!(Request::decode(&again[..len]), Ok((header, request)));
    }
}

/// Replies: an operation, a result, and the reply header.
pub fn reply(data: &[u8]) {
    let Some((head, header)) = data.split_first_chunk::<10>() else { return };
    let Ok(op) = Op::from_raw(nvmefs::u16_at(head, 0)) else { return };
    let result = nvmefs::u64_at(head, 2);
    if let Ok(reply) = Reply::decode(op, result, header) {
        let mut again = [0; 256];
        let (result, _) = reply.encode(&mut again).unwrap_or((!result, 0));
        assert_eq!(Reply::decode(op, result, &again), Ok(reply));
    }
    let mut again = [0; 256];
    if let Ok(attr) = Attr::decode(header) {
        assert_eq!(attr.encode(&mut again).and_then(|()| Attr::decode(&again)), Ok(attr));
    }
    if let Ok(figures) = Statfs::decode(header) {
        assert_eq!(figures.encode(&mut again).and_then(|()| Statfs::decode(&again)), Ok(figures));
    }
}

/// Directory entries.
pub fn dirents(data: &[u8]) {
    let mut again = vec![0; data.len().min(IO_MAX)];
    let mut writer = DirentsWriter::new(&mut again);
    let entries: Vec<_> = Dirents::new(data).map_while(Result::ok).collect();
    for entry in &entries {
        assert!(writer.push(entry).unwrap_or(false), "what was read fits again");
    }
    let len = writer.len();
    let back: Vec<_> = Dirents::new(&again[..len]).map_while(Result::ok).collect();
    assert_eq!(entries, back);
}

/// Messages of the FUSE kernel interface.
pub fn fuse(data: &[u8]) {
    let Ok(header) = InHeader::parse(data) else { return };
    assert_eq!(InHeader::parse(&header.emit()), Ok(header));
    let Some(rest) = data.get(header.emit().len()..) else { return };
    let Ok((body, extensions)) = header.split(rest) else { return };
    if let Ok(cred) = header.cred(extensions) {
        assert!(cred.groups.len() <= outboard_base::limits::GROUPS_MAX);
    }
    let Ok(opcode) = Opcode::from_raw(header.opcode) else { return };
    if InitIn::parse(body).is_ok() {
        assert!(body.len() >= 8);
    }
    for setxattr_ext in [false, true] {
        let Ok(call) = Call::parse(opcode, body, Dialect { setxattr_ext }) else { continue };
        if let Ok(Some(translated)) = translate::request(header.node, &call) {
            let mut header = [0; REQUEST_HEADER_MAX];
            let asked = translated.request.encode(&crate::file::Header::default(), &mut header);
            assert!(asked.is_err() || translated.payload.len() <= data.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use outboard_base::{Ino, Rng, SessionId};

    use super::*;
    use crate::attach::{Hello, QueuesHello, Reason, RingsHello, RingsWelcome, Welcome};
    use crate::file::{Dirent, FileKind, Header};
    use crate::nvmefs::{Dispatch, Status};

    /// Seeds of every format, mutated: bits flipped, bytes replaced, cut and grown.
    fn mutate(name: &str, body: fn(&[u8]), seeds: &[Vec<u8>]) {
        let seed = 0x5EED_0001;
        let mut rng = Rng::new(seed);
        for round in 0..20_000 {
            let pick = usize::try_from(rng.below(seeds.len() as u64)).unwrap();
            let mut data = seeds[pick].clone();
            for _ in 0..rng.below(6) {
                let at = usize::try_from(rng.below(data.len().max(1) as u64)).unwrap();
                match (rng.below(4), data.get_mut(at)) {
                    (0, Some(byte)) => *byte ^= 1 << rng.below(8),
                    (1, Some(byte)) => rng.fill(std::slice::from_mut(byte)),
                    (2, _) => data.truncate(at),
                    _ => data.extend([0xFF; 5]),
                }
            }
            let run = std::panic::catch_unwind(|| body(&data));
            assert!(run.is_ok(), "{name}: seed {seed:#x} round {round}: {data:02x?}");
        }
    }

    #[test]
    fn mutated_rings() {
        let request = dds::Request::CreateFile { directory: dds::DirectoryId(3), name: b"pages" };
        let mut message = request.head(7, 32, 5).to_vec();
        message.extend(b"pages");
        let mut head = dds::ResponseHead::pending(7, 32, 40);
        (head.status, head.data_len) = (0, 24);
        let mut answer = head.emit().to_vec();
        dds::put_listed(&mut answer, &dds::Listed { id: 4, size: 5, name: b"log" }, 4096);
        answer.resize(head.message_len(), 0);
        let mut frames = Vec::new();
        for bytes in [&message, &answer] {
            let position = 64 + frames.len() as u64;
            let stamp = dds::Stamp { position, is_nothing: false };
            frames.extend(stamp.head(u32::try_from(bytes.len()).unwrap()).to_le_bytes());
            frames.extend(bytes);
            frames.resize(frames.len().next_multiple_of(8), 0);
        }
        mutate("ring", ring, &[message, answer, frames]);
    }

    #[test]
    fn mutated_entries() {
        let good = Sqe {
            cid: 3,
            tag: 9,
            dispatch: Dispatch::Kv,
            write: Prp { first: 0x1F80, second: 0x3000 },
            read: Prp::default(),
            write_len: 0x80 + 8192,
            read_len: 0,
            rh_len: 0,
            wh_len: 0x80,
        };
        mutate("sqe", sqe, &[good.emit().to_vec(), vec![0; 64], vec![0xFF; 64]]);
        let answer =
            Cqe { result: 8, sq_head: 1, queue: 0, cid: 3, phase: true, status: Status::Ok };
        mutate("cqe", cqe, &[answer.emit().to_vec()]);
        let inval = Event::invalidate_entry(Ino(7), b"name").emit(3).to_vec();
        mutate("event", event, &[inval, Event::Overflow.emit(1).to_vec()]);
    }

    fn written(opcode: roce::Opcode, heads: &shared::Heads) -> [Vec<u8>; 2] {
        let (mut message, mut whole) = (Vec::new(), Vec::new());
        heads.emit(&mut message).unwrap();
        let packet = roce::Packet {
            opcode,
            solicited: false,
            asks: true,
            queue: 3,
            psn: roce::Psn::new(4),
            extension: roce::Extension::Write { address: 0, key: 0, bytes: heads.head.data },
            payload: &message,
        };
        packet.emit(ROUTE, &mut whole).unwrap();
        [message, whole]
    }

    #[test]
    fn mutated_packets() {
        mutate("packet", packet, &packet_seeds());
    }

    /// Requests and answers, alone and in packets.
    pub(super) fn packet_seeds() -> Vec<Vec<u8>> {
        let strategy = shared::Strategy::Ring;
        let (role, address, port) = (shared::Role::Data, [10, 0, 0, 8], roce::PORT);
        #[rustfmt::skip]
        let capability = shared::Capability {
            key: 1, rights: shared::Rights::WRITE, volume: 1, object: 2, first: 0, end: 1 << 20,
            client: 3, fence: 4, group: 5, strategy, k: 2, m: 0, expires: 6,
            mac: [7; shared::MAC_LEN],
        };
        let at = |node| shared::Coordinate { address, port, node, unit: 0, role };
        let coordinates = shared::Coordinates::new(&[8, 9].map(at)).unwrap();
        #[rustfmt::skip]
        let write = shared::WriteHead {
            strategy, rank: 0, k: 2, unit: 0, role, brings: shared::Brings::Bytes,
            offset: 8192, bytes: 64, sequence: 2, previous: 1, crc: 3, session: 4, number: 5,
            lane: 6, coordinates,
        };
        let unit = |node: u16, unit, role| shared::Coordinate { unit, role, ..at(node) };
        let all = [unit(8, 0, role), unit(9, 1, role), unit(7, 2, shared::Role::Parity)];
        #[rustfmt::skip]
        let part = shared::WriteHead {
            strategy: shared::Strategy::Parity, rank: 2, unit: 1, role: shared::Role::Parity,
            coordinates: shared::Coordinates::new(&all).unwrap(), ..write
        };
        let read = shared::ReadHead { offset: 8192, bytes: 64, unit: 0, map: false };
        let heads = |data, target| {
            let head = shared::Head { request: 9, data, epoch: 1, settled: 0, hop: 0 };
            shared::Heads { head, capability, target }
        };
        let hole = shared::HoleHead {
            offset: 8192,
            end: u64::MAX,
            sequence: 2,
            previous: 1,
            session: 4,
            number: 5,
            lane: 6,
            share: None,
        };
        let share = Some(shared::Share { count: 2, place: 1, strip: 1 << 16 });
        let aside = shared::HoleHead { share, end: 1 << 20, ..hole };
        let aside = heads(0, shared::Target::Hole(aside));
        let hole = heads(0, shared::Target::Hole(hole));
        let write = heads(64, shared::Target::Write(write));
        let part = heads(64, shared::Target::Write(part));
        let read = heads(0, shared::Target::Read(read));
        let outcome = Err(shared::Reason::Busy);
        let (data, request, sequence, epoch) = (0, 9, 2, 1);
        #[rustfmt::skip]
        let answer = shared::Answer {
            data, request, rank: 1, outcome, sequence, epoch, credit: 8, fence: 4,
            held: 8192, boot: 6,
        };
        let with_data = shared::Answer { data: 3, outcome: Ok(()), ..answer };
        let mut seeds = vec![answer.emit().to_vec(), [&with_data.emit()[..], b"abc"].concat()];
        seeds.extend(written(roce::Opcode::WriteOnly, &write));
        seeds.extend(written(roce::Opcode::WriteOnly, &part));
        seeds.extend(written(roce::Opcode::ReadRequest, &read));
        seeds.extend(written(roce::Opcode::WriteOnly, &hole));
        seeds.extend(written(roce::Opcode::WriteOnly, &aside));
        seeds
    }

    #[test]
    fn mutated_lists() {
        let mut seed = Vec::new();
        for word in [0x1F80u64, 0x3000, 8192 + 0x80, 1 << 20, 0x4000, 0x5000, 0x7000] {
            seed.extend(word.to_le_bytes());
        }
        mutate("prp_list", prp_list, &[seed]);
    }

    #[test]
    fn mutated_virtqueues() {
        let mut chain = [0u64, 1 << 20].map(u64::to_le_bytes).concat();
        for (at, len, writable, next) in
            [(0x2000, 80, false, Some(1)), (0x4000, 4096, false, Some(2)), (0x3000, 24, true, None)]
        {
            chain.extend(Descriptor { at, len, writable, next }.emit());
        }
        let header = InHeader {
            len: 80 + 4096,
            opcode: Opcode::Write as u32,
            unique: message::unique(1, 1),
            ..InHeader::default()
        };
        let call = [&header.emit()[..], &[0; 40]].concat();
        let header = InHeader { opcode: message::ENVELOPE, ..header };
        let lengths = message::Lengths { header: 64, reply_room: 8, dispatch: Dispatch::Kv };
        let envelope = [&header.emit()[..], &lengths.emit(), &[0; 64]].concat();
        mutate("virtqueue", virtqueue, &[chain, call, envelope]);
    }

    #[test]
    fn mutated_messages() {
        let queues = QueuesHello {
            session: SessionId(1),
            region_len: 1 << 20,
            queues: 2,
            depth: 64,
            cache_at: 1 << 19,
            cache_len: 1 << 16,
            company: crate::attach::Company::Nobody,
            outlives: true,
        };
        let (align, requests, responses) = (512, 4096, 8192);
        let rings = RingsHello { region_len: 1 << 20, groups: 2, align, requests, responses };
        let welcome = RingsWelcome { instance: 7, wakeups_len: 4096 };
        let seeds = [
            Message::Hello(Hello::Queues(queues)).emit(),
            Message::Hello(Hello::Rings(rings)).emit(),
            Message::Welcome(Welcome::Rings(welcome)).emit(),
            Message::Refused { reason: Reason::Full, text: "full".into() }.emit(),
            Message::Control { id: 1, text: "{}".into() }.emit(),
        ];
        mutate("attach", attach, &seeds);
    }

    #[test]
    fn mutated_caches() {
        let mode = cache::CacheMode::Write;
        let wishes = cache::Wishes::default();
        let (page_size, total, ways, records) = (8192, 64, 8, 64);
        let header = cache::Header { chained: true, page_size, mode, total, ways, records, wishes };
        let dirty = cache::Word { status: cache::Status::Dirty, ..cache::Word::FREE };
        let seeds = [
            [&header.emit()[..], &[0; 64]].concat(),
            [&dirty.emit().to_le_bytes()[..], &[3; 56]].concat(),
            vec![0; 64],
        ];
        mutate("cache", super::cache, &seeds);
    }

    #[test]
    fn mutated_requests_and_replies() {
        let parent = Ino(9);
        let asked = [
            Request::Lookup { parent, name: b"name" },
            Request::Readlink { ino: parent },
            Request::Unlink { parent, name: b"gone" },
        ];
        let seeds = asked.map(|request| {
            let mut raw = vec![0; REQUEST_HEADER_MAX];
            let len = request.encode(&Header::default(), &mut raw).unwrap();
            raw.truncate(len);
            raw
        });
        mutate("request", request, &seeds);
        let replies: Vec<Vec<u8>> = Op::ALL
            .iter()
            .map(|op| [&(*op as u16).to_le_bytes()[..], &[1; 8], &[0; 200]].concat())
            .collect();
        mutate("reply", reply, &replies);
    }

    #[test]
    fn mutated_directories() {
        let mut raw = vec![0; 4096];
        let mut writer = DirentsWriter::new(&mut raw);
        for cookie in 1..20 {
            let name = &b"0123456789abcdefghij"[..usize::try_from(cookie).unwrap()];
            let entry =
                Dirent { ino: Ino(cookie), cookie, kind: FileKind::Regular, name, attr: None };
            assert!(writer.push(&entry).unwrap());
        }
        let len = writer.len();
        raw.truncate(len);
        mutate("dirents", dirents, &[raw]);
    }

    #[test]
    fn mutated_kernel_messages() {
        let seeds: Vec<Vec<u8>> = (1..=60u32)
            .map(|opcode| {
                let body = b"name\0other\0".repeat(12);
                let header = InHeader {
                    len: u32::try_from(40 + body.len()).unwrap(),
                    opcode,
                    unique: 2,
                    node: 1,
                    uid: 0,
                    gid: 0,
                    pid: 1,
                    extensions: 0,
                };
                [&header.emit()[..], &body].concat()
            })
            .collect();
        mutate("fuse", fuse, &seeds);
    }
}
