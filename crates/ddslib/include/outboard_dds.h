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

/* Attaches to the DPU side that listens at `socket`, waiting up to `wait_ms` for its answer, with
 * room for `polls` groups (1 to 63) of the application. */
dds_library *dds_attach(const char *socket, unsigned wait_ms, unsigned polls, int *error);

/* Leaves. Files must have been closed; what is under way ends or not, and nobody is told. */
void dds_detach(dds_library *library);

/* Directories. They are flat: they hold files and nothing else. Names are 1 to 255 bytes. Blocking.
 * -EEXIST, -ENOENT, -ENOTEMPTY, -EINVAL, -ENAMETOOLONG, -ENOSPC, -EIO. */
int dds_create_directory(dds_library *library, const char *name, uint32_t *directory);
int dds_open_directory(dds_library *library, const char *name, uint32_t *directory);
int dds_remove_directory(dds_library *library, uint32_t directory);

/* Calls `each` for every file of a directory, or every directory (DDS_ROOT), by ascending ids, with
 * its size (of a directory, the number of its files). `name` has no terminator and is `each`'s for
 * the call. How many there were. Blocking. */
typedef void dds_each(void *context, uint32_t id, uint64_t size, const char *name, size_t length);
int dds_list(dds_library *library, uint32_t directory, dds_each *each, void *context);

/* Files. Blocking, but for dds_close_file, which ends the handle and not the file. */
dds_file *dds_create_file(dds_library *library, uint32_t directory, const char *name, int *error);
dds_file *dds_open_file(dds_library *library, uint32_t directory, const char *name, int *error);
void dds_close_file(dds_file *file);
int dds_delete_file(dds_file *file); /* the handle stays, and answers -ENOENT */
int dds_resize_file(dds_file *file, uint64_t size);
int dds_file_size(dds_file *file, uint64_t *size);

/* Notification groups. What is asked of a file completes in the group it was in when it was asked.
 * Never blocking. -EMFILE when there are no more; -EINVAL for a group of another attachment. */
int dds_create_poll(dds_library *library, dds_poll *poll);
int dds_poll_add(dds_library *library, dds_poll poll, dds_file *file);

/* Data. Never blocking. A read takes up to about half a MiB, a write up to half of that; -E2BIG
 * beyond. Scattered reads and gathered writes are one operation each, on up to 1024 pieces. */
int dds_read_file(dds_file *file, uint64_t offset, void *bytes, size_t count, uint64_t user);
int dds_read_scattered(dds_file *file, uint64_t offset, const struct iovec *pieces, int count,
                       uint64_t user);
int dds_write_file(dds_file *file, uint64_t offset, const void *bytes, size_t count, uint64_t user);
int dds_write_gathered(dds_file *file, uint64_t offset, const struct iovec *pieces, int count,
                       uint64_t user);

/* What was answered of the file before survives power loss once this has completed. */
int dds_flush_file(dds_file *file, uint64_t user);

/* Takes up to `most` completions; how many. If there are none it waits for one: not at all for 0
 * (never sleeping), so many milliseconds, or for ever if negative. */
int dds_poll_wait(dds_library *library, dds_poll poll, struct dds_completion *into, unsigned most,
                  int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
