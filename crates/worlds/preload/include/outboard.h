/* A kv volume from inside a C program: file calls through nvme-fs queue pairs of its own.
 *
 * Link with -loutboard_preload. Every call may be made from any thread and blocks until it is
 * answered; while the DPU side is lost, calls wait until it is back. A call that fails returns a
 * negative errno (or NULL where a pointer is returned, with the errno in *error); errno itself is
 * not touched. Paths begin at the volume's root, with or without a slash; symbolic links are
 * followed inside the volume, absolute ones from its root.
 *
 * A process that was forked off must not use what its parent connected; it connects for itself.
 */
#ifndef OUTBOARD_H
#define OUTBOARD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An attachment to a volume; an open file; an open directory. Owned by the caller, ended by
 * ob_disconnect, ob_close and ob_closedir, each once. */
typedef struct ob_volume ob_volume;
typedef struct ob_file ob_file;
typedef struct ob_dir ob_dir;

/* One name of a directory. "." and ".." are never among them. */
struct ob_entry {
    uint64_t inode;
    unsigned char kind; /* DT_REG and the like, of <dirent.h> */
    char name[256];     /* with its terminator */
};

/* Attaches to the DPU side that listens at `socket`, waiting up to `wait_ms` for it to be there. */
ob_volume *ob_connect(const char *socket, unsigned wait_ms, int *error);

/* Leaves in order. Files and directories must have been closed. */
int ob_disconnect(ob_volume *volume);

/* Opens a file with flags of open(2); `mode` are the permissions of a file it makes, to which no
 * umask is applied. */
ob_file *ob_open(ob_volume *volume, const char *path, int flags, mode_t mode, int *error);

/* Closes a file. It is gone also if this fails. */
int ob_close(ob_file *file);

/* Read or write at a place; how many bytes. Fewer are read only at the end of the file, fewer
 * written only if the rest could not be. `bytes` is not used after the call. A file opened with
 * O_APPEND is written at its end. */
ssize_t ob_pread(ob_file *file, void *bytes, size_t count, uint64_t offset);
ssize_t ob_pwrite(ob_file *file, const void *bytes, size_t count, uint64_t offset);

/* Makes what was written durable; without attributes that no read needs if `data_only`. */
int ob_fsync(ob_file *file, int data_only);

/* Sets the length of an open file. */
int ob_ftruncate(ob_file *file, uint64_t size);

/* Attributes of what is open, or of what a path leads to; ob_lstat does not follow a link. */
int ob_fstat(ob_file *file, struct stat *into);
int ob_stat(ob_volume *volume, const char *path, struct stat *into);
int ob_lstat(ob_volume *volume, const char *path, struct stat *into);

/* Lists a directory: ob_readdir returns 1 with the next name, 0 at the end. */
ob_dir *ob_opendir(ob_volume *volume, const char *path, int *error);
int ob_readdir(ob_dir *dir, struct ob_entry *into);
int ob_closedir(ob_dir *dir);

/* Names. Each is whole or not there, whatever happens. */
int ob_mkdir(ob_volume *volume, const char *path, mode_t mode);
int ob_rmdir(ob_volume *volume, const char *path);
int ob_unlink(ob_volume *volume, const char *path);
int ob_rename(ob_volume *volume, const char *from, const char *to);
int ob_link(ob_volume *volume, const char *from, const char *to);
int ob_symlink(ob_volume *volume, const char *target, const char *path);

/* The target of a symbolic link: its length, of which at most `room` bytes are copied, without a
 * terminator. */
ssize_t ob_readlink(ob_volume *volume, const char *path, char *into, size_t room);

/* Makes everything answered so far durable. */
int ob_sync(ob_volume *volume);

#ifdef __cplusplus
}
#endif

#endif
