//! The connection to a cluster, and one pool of it.

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::Arc;

use super::{Code, ffi};

/// `-EINVAL`: a name with a NUL in it.
const INVALID: Code = Code(-22);

pub(super) fn c_string(text: &str) -> Result<CString, Code> {
    CString::new(text).map_err(|_| INVALID)
}

/// A connection. Shut down when dropped, after every [`Handle`] to it.
#[derive(Debug)]
pub(crate) struct Cluster {
    raw: ffi::RadosT,
}

// SAFETY: librados' connections may be used from any thread.
unsafe impl Send for Cluster {}
// SAFETY: and from several at once.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// A connection as `user`, not yet made.
    pub(crate) fn new(user: &str) -> Result<Cluster, Code> {
        let user = c_string(user)?;
        let mut raw = ptr::null_mut();
        // SAFETY: two strings that outlive the call, and a place for the handle.
        Code::check(unsafe { ffi::rados_create2(&mut raw, c"ceph".as_ptr(), user.as_ptr(), 0) })?;
        Ok(Cluster { raw })
    }

    /// Takes settings from a configuration file.
    pub(crate) fn read_conf(&self, path: &str) -> Result<(), Code> {
        let path = c_string(path)?;
        // SAFETY: the handle is open, the string outlives the call.
        Code::check(unsafe { ffi::rados_conf_read_file(self.raw, path.as_ptr()) }).map(drop)
    }

    /// Sets one option.
    pub(crate) fn set(&self, option: &str, value: &str) -> Result<(), Code> {
        let (option, value) = (c_string(option)?, c_string(value)?);
        // SAFETY: the handle is open, the strings outlive the call.
        let set = unsafe { ffi::rados_conf_set(self.raw, option.as_ptr(), value.as_ptr()) };
        Code::check(set).map(drop)
    }

    /// Connects; blocks, within `client_mount_timeout`.
    pub(crate) fn connect(&self) -> Result<(), Code> {
        // SAFETY: the handle is open.
        Code::check(unsafe { ffi::rados_connect(self.raw) }).map(drop)
    }

    /// The cluster's id.
    pub(crate) fn fsid(&self) -> Result<String, Code> {
        let mut text = [0u8; 64];
        let at = text.as_mut_ptr().cast::<c_char>();
        // SAFETY: the buffer's length is told.
        Code::check(unsafe { ffi::rados_cluster_fsid(self.raw, at, text.len()) })?;
        let text = CStr::from_bytes_until_nul(&text).map_err(|_| INVALID)?;
        Ok(text.to_string_lossy().into_owned())
    }

    /// This client's address, which no other client of the cluster has: what a block list names.
    pub(crate) fn address(&self) -> Result<String, Code> {
        let mut text = ptr::null_mut();
        // SAFETY: a place for a string that librados allocates.
        Code::check(unsafe { ffi::rados_getaddrs(self.raw, &mut text) })?;
        if text.is_null() {
            return Err(INVALID);
        }
        // SAFETY: librados returned a string, which is freed once, here.
        unsafe {
            let address = CStr::from_ptr(text).to_string_lossy().into_owned();
            ffi::rados_buffer_free(text);
            Ok(address)
        }
    }

    /// Has the cluster refuse the client of that address for so long; blocks until the monitors
    /// have agreed and this client has the map that says so.
    pub(crate) fn blocklist(&self, address: &str, seconds: u32) -> Result<(), Code> {
        let address = c_string(address)?.into_raw();
        // SAFETY: a string of our own, which librados does not keep (nor change).
        unsafe {
            let added = ffi::rados_blocklist_add(self.raw, address, seconds);
            drop(CString::from_raw(address));
            Code::check(added)
                .and_then(|_| Code::check(ffi::rados_wait_for_latest_osdmap(self.raw)).map(drop))
        }
    }

    /// A monitor's command (JSON), and its answer; blocks, within `rados_mon_op_timeout`.
    pub(crate) fn command(&self, command: &str) -> Result<Vec<u8>, Code> {
        let command = c_string(command)?;
        let mut commands = [command.as_ptr()];
        let (mut out, mut out_len) = (ptr::null_mut(), 0);
        // SAFETY: one command, no input, a place for the output, none for the status text.
        let done = unsafe {
            ffi::rados_mon_command(
                self.raw,
                commands.as_mut_ptr(),
                commands.len(),
                ptr::null(),
                0,
                &mut out,
                &mut out_len,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let mut answer = Vec::new();
        if !out.is_null() {
            // SAFETY: librados allocated `out_len` bytes, freed once, here.
            unsafe {
                answer.extend_from_slice(std::slice::from_raw_parts(out.cast::<u8>(), out_len));
                ffi::rados_buffer_free(out);
            }
        }
        Code::check(done).map(|_| answer)
    }

    /// A pool of it, in which only the objects of `namespace` are seen. Blocks for the map of the
    /// cluster.
    pub(crate) fn pool(self: &Arc<Self>, name: &str, namespace: &str) -> Result<Handle, Code> {
        let (name, namespace) = (c_string(name)?, c_string(namespace)?);
        let mut io = ptr::null_mut();
        // SAFETY: the connection is made; strings and the place for the handle outlive the call.
        Code::check(unsafe { ffi::rados_ioctx_create(self.raw, name.as_ptr(), &mut io) })?;
        // SAFETY: opened just now; nobody else has it yet.
        unsafe { ffi::rados_ioctx_set_namespace(io, namespace.as_ptr()) };
        Ok(Handle { io, _cluster: Arc::clone(self) })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: every handle holds a reference, so none is left.
        unsafe { ffi::rados_shutdown(self.raw) };
    }
}

/// A pool that is open. Dropping it waits for its operations, which their time limit bounds.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(super) io: ffi::IoCtx,
    _cluster: Arc<Cluster>,
}

// SAFETY: operations may be started on one from any thread.
unsafe impl Send for Handle {}
// SAFETY: and from several at once; what changes the handle is done before it is shared.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: nobody else uses it any more. What is under way ends first, so that its callbacks
        // find librados alive.
        unsafe {
            ffi::rados_aio_flush(self.io);
            ffi::rados_ioctx_destroy(self.io);
        }
    }
}
