//! readdir: entries in the order of their cookies, stable while the directory changes.
//!
//! A name gets its cookie when it is made (or takes over the one of the name it replaces) and keeps
//! it; cookies of a directory only grow. So a listing that goes on after a cookie sees every name
//! that was there all the time exactly once, whatever comes and goes meanwhile.

use outboard_base::{Errno, Fh, Ino, Result, limits};
use outboard_kv::{Key, Kv, KvError, Value};
use outboard_medium::Medium;
use outboard_wire::file::{Attr, Dirent, DirentsWriter, Reply};

use crate::context::Context;
use crate::layout::{Inode, Listed, key};
use crate::permission::READ;
use crate::{Answer, Kvfs, Payload};

/// Entries fetched at a time.
const PAGE: usize = 256;
/// The shortest entry on the wire, bytes.
const DIRENT_MIN: usize = 32;

impl<K: Kv, M: Medium> Kvfs<K, M> {
    pub(crate) async fn readdir(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        fh: Fh,
        cookie: u64,
        len: u32,
        with_attributes: bool,
    ) -> Result<Answer> {
        if fh == Fh::NONE {
            let inode = self.inode(ino).await?;
            if !inode.is_directory() {
                return Err(Errno::ENOTDIR);
            }
            self.permit(cx, &inode, READ).await?;
        } else if !self.handles.get(cx.attachment, fh, ino)?.directory {
            return Err(Errno::ENOTDIR);
        }
        if cookie == 0 {
            self.accessed(cx, ino, 0).await;
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(limits::IO_MAX);
        let mut buffer = vec![0; len];
        let mut writer = DirentsWriter::new(&mut buffer);
        let mut named = Vec::new();
        let mut after = key::listed(ino, cookie);
        loop {
            let page = PAGE.min((len - writer.len()) / DIRENT_MIN + 1);
            let pairs = self.kv.scan(&key::of(key::Tag::Listed, ino), Some(&after), page).await;
            let pairs = pairs.map_err(KvError::errno)?;
            let attrs = if with_attributes { self.attrs(ino, &pairs).await? } else { Vec::new() };
            let full = write_page(ino, &pairs, attrs, &mut writer, &mut named)?;
            match pairs.last() {
                Some((key, _)) if !full && pairs.len() == page => after = key.to_vec(),
                _ if full && writer.is_empty() => return Err(Errno::EINVAL),
                _ => break,
            }
        }
        let used = writer.len();
        buffer.truncate(used);
        if with_attributes {
            self.handles.add_interests(cx.attachment, named.into_iter());
        }
        let reply = Reply::Data(u32::try_from(used).map_err(|_| Errno::EOVERFLOW)?);
        Ok(Answer { reply, payload: Payload::Bytes(buffer) })
    }

    /// The attributes of what each pair leads to: `None` for what is gone meanwhile, or damaged.
    async fn attrs(&self, dir: Ino, pairs: &[(Key, Value)]) -> Result<Vec<Option<Attr>>> {
        let mut inos = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            inos.push(Listed::decode(dir, key::cookie(key)?, value)?.ino);
        }
        let keys: Vec<Key> = inos.iter().map(|&ino| key::inode(ino).into()).collect();
        let values = self.kv.get_many(&keys).await.map_err(KvError::errno)?;
        let attr = |(ino, value): (Ino, Option<Value>)| {
            value.and_then(|value| Inode::decode(ino, &value).ok()).map(|inode| inode.attr)
        };
        Ok(inos.into_iter().zip(values).map(attr).collect())
    }
}

/// Writes entries until one does not fit: true then.
fn write_page(
    dir: Ino,
    pairs: &[(Key, Value)],
    attrs: Vec<Option<Attr>>,
    writer: &mut DirentsWriter<'_>,
    named: &mut Vec<Ino>,
) -> Result<bool> {
    let mut attrs = attrs.into_iter();
    for (key, value) in pairs {
        let cookie = key::cookie(key)?;
        let Listed { ino, kind, name } = Listed::decode(dir, cookie, value)?;
        let attr = attrs.next().flatten();
        let with_attr = attr.is_some();
        if !writer.push(&Dirent { ino, cookie, kind, name, attr })? {
            return Ok(true);
        }
        if with_attr {
            named.push(ino);
        }
    }
    Ok(false)
}
