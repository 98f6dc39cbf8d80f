//! The page server's [`Application`]: GetPage is answered beyond the bus if the page in the file is
//! new enough.
//!
//! The cache table maps a page to `[file, offset, LSN, 0]`, put there when the host writes it
//! ([`Application::cache`]): a page says its number itself, so it may lie anywhere. What is read is
//! looked at again, its own number and LSN decide. Nothing is forgotten when the host reads a page
//! to apply records to it ([`Application::invalidate`]): who needs them asks for their LSN.

use outboard_dds::dpu::offload::{
    Answer, Application, Cursor, Division, Framing, Head, Item, Key, Lookup, ReadOp, Span, Touches,
    WriteOp,
};

use super::wire::{self, Framed, PAGE, Request, Status};

/// The application object.
#[derive(Clone, Copy, Debug, Default)]
pub struct PagesApplication;

fn framing(bytes: &[u8]) -> Framing {
    match wire::frame(bytes) {
        Framed::Whole(len) => Framing::Whole(len),
        Framed::More(needs) => Framing::More(needs),
        Framed::Invalid => Framing::Foreign,
    }
}

impl Application for PagesApplication {
    fn frame(&self, stream: &[u8], _: &mut Cursor) -> Framing {
        framing(stream)
    }

    fn frame_answer(&self, stream: &[u8], _: &mut Cursor) -> Framing {
        framing(stream)
    }

    fn refusal(&self) -> &'static [u8] {
        &wire::BUSY
    }

    fn off_pred(&self, message: &[u8], table: &dyn Lookup, division: &mut Division) {
        let whole = || Span::Message(0..message.len());
        match Request::parse(message) {
            Some(Request::GetPage { page, lsn }) => match table.get(page) {
                Some([_, _, cached, _]) if cached >= lsn => division.dpu(whole(), page),
                _ => division.host(whole(), Touches::One(page)),
            },
            Some(Request::Apply { page, .. }) => division.host(whole(), Touches::One(page)),
            Some(Request::Sync) => division.host(whole(), Touches::Nothing),
            None => division.host(whole(), Touches::Everything),
        }
    }

    fn off_func(&self, request: &[u8], table: &dyn Lookup) -> Option<ReadOp> {
        let Request::GetPage { page, .. } = Request::parse(request)? else { return None };
        let [file, offset, ..] = table.get(page)?;
        let bytes = u32::try_from(PAGE).ok()?;
        Some(ReadOp { file: u32::try_from(file).ok()?, offset, bytes })
    }

    fn answer(&self, request: &[u8], _: ReadOp, bytes: &[u8]) -> Option<Answer> {
        let Request::GetPage { page, lsn } = Request::parse(request)? else { return None };
        let own = wire::lsn_of(bytes, page).filter(|own| *own >= lsn)?;
        let head = Head::new(&wire::answer_head(Status::Done, page, own, PAGE))?;
        Some(Answer { head, payload: 0..PAGE })
    }

    fn cache(&self, write: WriteOp<'_>, items: &mut Vec<(Key, Item)>) {
        for (bytes, offset) in write.bytes.chunks_exact(PAGE).zip((write.offset..).step_by(PAGE)) {
            if let Some((page, lsn)) = wire::whole(bytes) {
                items.push((page, [u64::from(write.file), offset, lsn, 0]));
            }
        }
    }

    fn invalidate(&self, _: ReadOp, _: &mut Vec<Key>) {}

    fn invalidates(&self) -> bool {
        false
    }
}
