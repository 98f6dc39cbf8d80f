/* The page server's file library: files a DPU side owns, from inside a C program.
 *
 * Link with -loutboard_ddslib. Every call may be made from any thread at any time, but for ending a
 * handle others still use. A call that fails returns a negative errno, or NULL with the errno in
 * *error; errno itself is not touched.
 *
 * Blocking.  Reads, writes, flushes and changes of the cache table never block: they return 0 once
 *            they have begun, and -EAGAIN if the group's ring is full (poll first, then try again).
 *            dds_poll_wait blocks as long as it is told. Everything about directories, names and
 *            sizes blocks until it is answered, 30 seconds at most, then -EIO.
 * Buffers.   What is written is copied within the call. Memory that is read into is lent to the
 *            library from a call that returned 0 until its completion was taken by dds_poll_wait,
 *            or dds_detach has returned; nobody else may touch it so long.
 * Order.     None is promised between what is under way at once: who needs an order waits for the
 *            completion. Each completion is handed out once, to whichever thread polls the group.
 * Errors.    What has begun always completes: with what the file service said, or with -EIO when
 *            the DPU side is gone (a sleeping caller learns that within 100 ms). Then every other
 *            call answers -EIO too: detach, and attach again.
 *
 * A process that was forked off must not use what its parent attached; it attaches for itself.
 */
#ifndef OUTBOARD_DDS_H
#define OUTBOARD_DDS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An attachment; a file. Owned by the caller, ended by dds_detach and dds_close_file. */
typedef struct dds_library dds_library;
typedef struct dds_file dds_file;

/* A notification group of an attachment: a number. Group 1 is there from the beginning, and every
 * file belongs to it until it is added to another. */
typedef uint16_t dds_poll;
#define DDS_POLL_DEFAULT ((dds_poll)1)

/* What lists all directories. */
#define DDS_ROOT ((uint32_t)0)

/* What was asked for and has ended: `result` is the bytes read (fewer than asked for only at the
 * end of the file) or written, 0 for a flush, or a negative errno. */
struct dds_completion {
    uint64_t user; /* as given to the call */
    int64_t result;
};

/* Attaches to the DPU side that listens at `socket`, with room for `polls` groups (1 to 63) of the
 * application. Blocks for its answer, up to `wait_ms`. The handle is the caller's. NULL: EINVAL
 * for other numbers of groups, ENOENT or ECONNREFUSED where nobody listens, ETIMEDOUT, EACCES if
 * it was refused, or EIO for another end that is none. */
dds_library *dds_attach(const char *socket, unsigned wait_ms, unsigned polls, int *error);

/* Leaves: `library` is used no more. What is under way ends or not, and nobody is told; memory that
 * was lent is the caller's again. Files are to be closed before or after. NULL is nothing to end.
 * Does not block. */
void dds_detach(dds_library *library);

/* In what follows a handle that is NULL is answered with -EBADF, and a place for a result that is
 * NULL with -EINVAL before anything is done. After the loss of the DPU side each call says -EIO. */

/* Directories are flat: they hold files and nothing else. A name is 1 to 255 bytes, read within the
 * call: -EINVAL for none, -ENAMETOOLONG beyond. Each of the calls blocks until it is answered. */
int dds_create_directory(dds_library *library, const char *name, uint32_t *directory);
/* -EEXIST: the name is taken; -ENOSPC: no room for another name. */
int dds_open_directory(dds_library *library, const char *name, uint32_t *directory);
/* -ENOENT: there is none. */
int dds_remove_directory(dds_library *library, uint32_t directory);
/* -ENOENT: there is none; -ENOTEMPTY: it holds files. */

/* Calls `each` for every file of a directory, or every directory (DDS_ROOT), by ascending ids, with
 * its size (of a directory, the number of its files). `name` has no terminator and is `each`'s for
 * the call; `each` may call the library. How many there were; those that come or go meanwhile may
 * be among them or not. Blocks until all are known, and then for `each`. -ENOENT: no such
 * directory; -EINVAL: no `each`. */
typedef void dds_each(void *context, uint32_t id, uint64_t size, const char *name, size_t length);
int dds_list(dds_library *library, uint32_t directory, dds_each *each, void *context);

/* Files. Each call blocks until it is answered, but for dds_close_file. Handles are the caller's; a
 * file may have many. NULL: ENOENT without the directory or the file, EEXIST, and as above. */
dds_file *dds_create_file(dds_library *library, uint32_t directory, const char *name, int *error);
dds_file *dds_open_file(dds_library *library, uint32_t directory, const char *name, int *error);
/* Ends the handle, not the file; `file` is used no more. What was begun with it completes all the
 * same. NULL is nothing to end. Never blocks. */
void dds_close_file(dds_file *file);
/* Name and space go, at once. The handle stays, as do others, and answers -ENOENT; what is under
 * way ends as it may. */
int dds_delete_file(dds_file *file);
/* Cut, or filled with zeros. -ENOENT, -EFBIG beyond 2^50 bytes, -ENOSPC. Waits for what is under
 * way on the file, and what is begun later waits for it. */
int dds_resize_file(dds_file *file, uint64_t size);
/* Its bytes, all writes that completed among them. -ENOENT. */
int dds_file_size(dds_file *file, uint64_t *size);

/* Notification groups. What is asked of a file completes in the group it was in when it was asked.
 * Never blocking. A group lasts as long as its library. -EMFILE when there are no more; -EINVAL for
 * a group, or a file, of another attachment. */
int dds_create_poll(dds_library *library, dds_poll *poll);
int dds_poll_add(dds_library *library, dds_poll poll, dds_file *file);

/* Data. Never blocking: 0 once it has begun. -EAGAIN: the ring is full; take completions, then try
 * again. -E2BIG: a read takes up to about half a MiB, a write up to half of that. -EINVAL: memory
 * that cannot be, or other than 0 to 1024 pieces. Then nothing was begun and no memory is lent.
 * Scattered reads and gathered writes are one operation each, on pieces one after another; of the
 * array of pieces itself the library keeps nothing. A write is seen whole or not at all by any
 * read. Completions: -ENOENT, -EFBIG and -ENOSPC for writes (nothing has changed then), and what
 * the device said. */
int dds_read_file(dds_file *file, uint64_t offset, void *bytes, size_t count, uint64_t user);
int dds_read_scattered(dds_file *file, uint64_t offset, const struct iovec *pieces, int count,
                       uint64_t user);
int dds_write_file(dds_file *file, uint64_t offset, const void *bytes, size_t count, uint64_t user);
int dds_write_gathered(dds_file *file, uint64_t offset, const struct iovec *pieces, int count,
                       uint64_t user);

/* Never blocking, as above. What was answered of the file before the call survives power loss once
 * this has completed with 0. A flush that failed is final: so does each after it. */
int dds_flush_file(dds_file *file, uint64_t user);

/* Takes up to `most` completions (4096 a call); how many. If there are none it waits for one: not
 * at all for 0 (never sleeping), so many milliseconds, or for ever if negative. Completions come in
 * any order; of threads that poll one group each gets others. -EINVAL: no such group, or no
 * `into`. */
int dds_poll_wait(dds_library *library, dds_poll poll, struct dds_completion *into, unsigned most,
                  int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
