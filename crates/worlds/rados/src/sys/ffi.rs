//! The calls of librados that are used, as `<rados/librados.h>` declares them (Octopus or later).

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(super) type RadosT = *mut c_void;
pub(super) type IoCtx = *mut c_void;
pub(super) type Completion = *mut c_void;
pub(super) type WriteOpT = *mut c_void;
pub(super) type ReadOpT = *mut c_void;
pub(super) type OmapIter = *mut c_void;
pub(super) type ListCtx = *mut c_void;
pub(super) type Callback = extern "C" fn(Completion, *mut c_void);

/// `LIBRADOS_CREATE_EXCLUSIVE`, `LIBRADOS_CREATE_IDEMPOTENT`.
pub(super) const CREATE_EXCLUSIVE: c_int = 1;
pub(super) const CREATE_IDEMPOTENT: c_int = 0;
/// `LIBRADOS_CMPXATTR_OP_EQ`.
pub(super) const EQUAL: u8 = 1;
/// `LIBRADOS_OPERATION_FULL_TRY`: a full pool is an error now, not a wait.
pub(super) const FULL_TRY: c_int = 64;
/// `LIBRADOS_OPERATION_FULL_FORCE`: done even if the pool counts as full.
pub(super) const FULL_FORCE: c_int = 128;
/// End of a listing.
pub(super) const NO_MORE: c_int = -2;

#[link(name = "rados")]
unsafe extern "C" {
    pub(super) fn rados_create2(
        cluster: *mut RadosT,
        cluster_name: *const c_char,
        name: *const c_char,
        flags: u64,
    ) -> c_int;
    pub(super) fn rados_conf_read_file(cluster: RadosT, path: *const c_char) -> c_int;
    pub(super) fn rados_conf_set(
        cluster: RadosT,
        option: *const c_char,
        value: *const c_char,
    ) -> c_int;
    pub(super) fn rados_connect(cluster: RadosT) -> c_int;
    pub(super) fn rados_shutdown(cluster: RadosT);
    pub(super) fn rados_getaddrs(cluster: RadosT, addresses: *mut *mut c_char) -> c_int;
    pub(super) fn rados_buffer_free(buffer: *mut c_char);
    pub(super) fn rados_blocklist_add(
        cluster: RadosT,
        address: *mut c_char,
        expire_seconds: u32,
    ) -> c_int;
    pub(super) fn rados_wait_for_latest_osdmap(cluster: RadosT) -> c_int;
    pub(super) fn rados_mon_command(
        cluster: RadosT,
        commands: *mut *const c_char,
        count: usize,
        input: *const c_char,
        input_len: usize,
        output: *mut *mut c_char,
        output_len: *mut usize,
        status: *mut *mut c_char,
        status_len: *mut usize,
    ) -> c_int;
    pub(super) fn rados_cluster_fsid(cluster: RadosT, buffer: *mut c_char, len: usize) -> c_int;

    pub(super) fn rados_ioctx_create(cluster: RadosT, pool: *const c_char, io: *mut IoCtx)
    -> c_int;
    pub(super) fn rados_ioctx_destroy(io: IoCtx);
    pub(super) fn rados_ioctx_set_namespace(io: IoCtx, namespace: *const c_char);
    pub(super) fn rados_aio_flush(io: IoCtx) -> c_int;

    pub(super) fn rados_aio_create_completion2(
        argument: *mut c_void,
        complete: Callback,
        completion: *mut Completion,
    ) -> c_int;
    pub(super) fn rados_aio_get_return_value(completion: Completion) -> c_int;
    pub(super) fn rados_aio_release(completion: Completion);

    pub(super) fn rados_create_write_op() -> WriteOpT;
    pub(super) fn rados_release_write_op(op: WriteOpT);
    pub(super) fn rados_write_op_assert_exists(op: WriteOpT);
    pub(super) fn rados_write_op_cmpext(
        op: WriteOpT,
        bytes: *const c_char,
        len: usize,
        offset: u64,
        result: *mut c_int,
    );
    pub(super) fn rados_write_op_omap_cmp2(
        op: WriteOpT,
        key: *const c_char,
        operator: u8,
        value: *const c_char,
        key_len: usize,
        value_len: usize,
        result: *mut c_int,
    );
    pub(super) fn rados_write_op_create(op: WriteOpT, exclusive: c_int, category: *const c_char);
    pub(super) fn rados_write_op_write(op: WriteOpT, bytes: *const c_char, len: usize, offset: u64);
    pub(super) fn rados_write_op_write_full(op: WriteOpT, bytes: *const c_char, len: usize);
    pub(super) fn rados_write_op_remove(op: WriteOpT);
    pub(super) fn rados_write_op_omap_set2(
        op: WriteOpT,
        keys: *const *const c_char,
        values: *const *const c_char,
        key_lens: *const usize,
        value_lens: *const usize,
        count: usize,
    );
    pub(super) fn rados_write_op_omap_rm_keys2(
        op: WriteOpT,
        keys: *const *const c_char,
        key_lens: *const usize,
        count: usize,
    );
    pub(super) fn rados_aio_write_op_operate(
        op: WriteOpT,
        io: IoCtx,
        completion: Completion,
        object: *const c_char,
        time: *mut i64,
        flags: c_int,
    ) -> c_int;

    pub(super) fn rados_create_read_op() -> ReadOpT;
    pub(super) fn rados_release_read_op(op: ReadOpT);
    pub(super) fn rados_read_op_stat(
        op: ReadOpT,
        size: *mut u64,
        time: *mut i64,
        result: *mut c_int,
    );
    pub(super) fn rados_read_op_read(
        op: ReadOpT,
        offset: u64,
        len: usize,
        buffer: *mut c_char,
        bytes_read: *mut usize,
        result: *mut c_int,
    );
    pub(super) fn rados_read_op_omap_get_vals2(
        op: ReadOpT,
        after: *const c_char,
        prefix: *const c_char,
        limit: u64,
        iter: *mut OmapIter,
        more: *mut u8,
        result: *mut c_int,
    );
    pub(super) fn rados_read_op_omap_get_vals_by_keys2(
        op: ReadOpT,
        keys: *const *const c_char,
        count: usize,
        key_lens: *const usize,
        iter: *mut OmapIter,
        result: *mut c_int,
    );
    pub(super) fn rados_omap_get_next2(
        iter: OmapIter,
        key: *mut *mut c_char,
        value: *mut *mut c_char,
        key_len: *mut usize,
        value_len: *mut usize,
    ) -> c_int;
    pub(super) fn rados_omap_iter_size(iter: OmapIter) -> c_uint;
    pub(super) fn rados_omap_get_end(iter: OmapIter);
    pub(super) fn rados_aio_read_op_operate(
        op: ReadOpT,
        io: IoCtx,
        completion: Completion,
        object: *const c_char,
        flags: c_int,
    ) -> c_int;

    pub(super) fn rados_nobjects_list_open(io: IoCtx, list: *mut ListCtx) -> c_int;
    pub(super) fn rados_nobjects_list_next2(
        list: ListCtx,
        object: *mut *const c_char,
        locator: *mut *const c_char,
        namespace: *mut *const c_char,
        object_len: *mut usize,
        locator_len: *mut usize,
        namespace_len: *mut usize,
    ) -> c_int;
    pub(super) fn rados_nobjects_list_close(list: ListCtx);
}
