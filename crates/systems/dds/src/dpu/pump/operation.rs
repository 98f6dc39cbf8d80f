//! One request of the host, done.

use std::ops::Range;
use std::sync::Arc;

use outboard_base::Errno;
use outboard_base::ledger::{Count, Ledger};
use outboard_medium::{Buf, Medium};
use outboard_wire::dds::{DirectoryId, FileId, Listed, Request, put_listed};

use super::summary::Summary;
use crate::dpu::files::{self, FileError, FileService, ReadOp};
use crate::dpu::offload::plugin::Written;

/// What a response carries beside its value.
pub(super) enum Data {
    None,
    /// Where the device put it.
    Read(Buf, Range<usize>),
    /// Made here.
    Bytes(Vec<u8>),
}

impl Data {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Data::None => &[],
            Data::Read(buf, range) => buf.get(range.clone()).unwrap_or_default(),
            Data::Bytes(bytes) => bytes,
        }
    }
}

/// How an operation ended.
pub(super) struct Outcome {
    pub(super) result: Result<u64, Errno>,
    pub(super) data: Data,
}

impl Outcome {
    pub(super) fn failed(errno: Errno) -> Outcome {
        Outcome { result: Err(errno), data: Data::None }
    }

    /// Moves the data read to a buffer of its own.
    pub(super) fn copy(&mut self, ledger: &Ledger) {
        if let Data::Read(..) = self.data {
            let bytes = self.data.bytes().to_vec();
            ledger.count(Count::Copied, bytes.len() as u64);
            self.data = Data::Bytes(bytes);
        }
    }

    fn valued(result: Result<u64, FileError>) -> Outcome {
        Outcome { result: result.map_err(FileError::errno), data: Data::None }
    }
}

/// Reads into `buf`.
pub(super) async fn read<M: Medium>(
    service: &FileService<M>,
    summary: &Summary,
    op: ReadOp,
    buf: Buf,
) -> Outcome {
    summary.will_read(op).await;
    let (range, buf) = service.read(op, buf).await;
    match range {
        Ok(range) => Outcome { result: Ok(0), data: Data::Read(buf, range) },
        Err(error) => Outcome { result: Err(error.errno()), data: Data::Read(buf, 0..0) },
    }
}

/// Does what a message asks for that is no read. The batch is whole for as long.
pub(super) async fn run<M: Medium>(
    service: &FileService<M>,
    summary: &Summary,
    batch: &Arc<Buf>,
    message: Range<usize>,
) -> Outcome {
    let bytes = batch.get(message.clone()).unwrap_or_default();
    let Ok((_, request)) = Request::parse(bytes) else { return Outcome::failed(Errno::EINVAL) };
    match request {
        Request::Write { file, offset, data } => {
            // The data is the end of the message.
            let range = message.end - data.len()..message.end;
            let lying = files::Data::Lying(batch, range.clone());
            let written = Written { file: file.0, offset, batch: Arc::clone(batch), range };
            let done = async || summary.wrote(written).await;
            Outcome::valued(service.write(file, offset, lying, done).await.map(|()| 0))
        }
        Request::Table { changes } => Outcome { result: summary.change(changes), data: Data::None },
        Request::List { directory, after, bytes } => list(service, directory, after, bytes),
        other => Outcome::valued(control(service, other).await),
    }
}

/// What answers with a value and no data.
async fn control<M: Medium>(
    service: &FileService<M>,
    request: Request<'_>,
) -> Result<u64, FileError> {
    let id = |id: u32| u64::from(id);
    match request {
        Request::Flush { file } => service.flush(file).await.map(|()| 0),
        Request::CreateDirectory { name } => {
            service.create_directory(name).await.map(|directory| id(directory.0))
        }
        Request::OpenDirectory { name } => service.directory(name).map(|found| id(found.0)),
        Request::RemoveDirectory { directory } => {
            service.remove_directory(directory).await.map(|()| 0)
        }
        Request::CreateFile { directory, name } => {
            service.create(directory, name).await.map(|file| id(file.0))
        }
        Request::OpenFile { directory, name } => {
            service.file(directory, name).map(|FileId(file)| id(file))
        }
        Request::DeleteFile { file } => service.delete(file).await.map(|()| 0),
        Request::Resize { file, size } => service.resize(file, size).await.map(|()| 0),
        Request::Size { file } => service.size(file),
        // These carry data, and are done elsewhere.
        Request::Read { .. }
        | Request::Write { .. }
        | Request::List { .. }
        | Request::Table { .. } => Ok(0),
    }
}

fn list<M: Medium>(
    service: &FileService<M>,
    directory: DirectoryId,
    after: u32,
    room: u32,
) -> Outcome {
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    let (mut bytes, mut last) = (Vec::new(), after);
    let all = service.list(directory, after, |id, size, name| {
        let fits = put_listed(&mut bytes, &Listed { id, size, name }, room);
        if fits {
            last = id;
        }
        fits
    });
    match all {
        // Room for not even one would be asked again for ever.
        Ok(false) if bytes.is_empty() => Outcome::failed(Errno::ERANGE),
        Ok(true) => Outcome { result: Ok(0), data: Data::Bytes(bytes) },
        Ok(false) => Outcome { result: Ok(u64::from(last)), data: Data::Bytes(bytes) },
        Err(error) => Outcome::failed(error.errno()),
    }
}
