/* Every call of outboard_dds.h as it is meant, and as it is not: null handles, null places, names
 * that cannot be, groups and directories that are not there, lengths beyond all bounds.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "outboard_dds.h"

static int failures;

static void is(long long found, long long expected, const char *what, int line)
{
    if (found != expected) {
        fprintf(stderr, "line %d: %s is %lld, not %lld\n", line, what, found, expected);
        failures++;
    }
}
#define IS(call, expected) is((call), (expected), #call, __LINE__)

/* The result of the one operation under way in a group, asked for by `user`. */
static int64_t finish(dds_library *library, dds_poll poll, uint64_t user)
{
    struct dds_completion done = {0, 0};
    if (dds_poll_wait(library, poll, &done, 1, 10000) != 1 || done.user != user)
        return INT64_MIN;
    return done.result;
}

static unsigned listed;
static dds_library *again;

/* A callback may call the library. */
static void count(void *context, uint32_t id, uint64_t size, const char *name, size_t length)
{
    uint32_t directory;
    listed++;
    IS(id > 0 && name && length == 1 && size == *(uint64_t *)context, 1);
    IS(dds_open_directory(again, "d", &directory), 0);
}

static void without_a_library(const char *socket)
{
    int error = 0;
    uint32_t number;
    uint64_t size;
    dds_poll poll;
    char byte = 0;
    struct iovec piece = {&byte, 1};
    struct dds_completion done;
    IS(dds_attach(NULL, 10, 1, &error) == NULL && error != 0, 1);
    IS(dds_attach("/nobody/listens/here", 10, 1, &error) == NULL && error == ENOENT, 1);
    IS(dds_attach(socket, 10, 0, &error) == NULL && error == EINVAL, 1);
    IS(dds_attach(socket, 10, 64, &error) == NULL && error == EINVAL, 1);
    IS(dds_attach(socket, 10, ~0u, NULL) == NULL, 1);
    dds_detach(NULL);
    dds_close_file(NULL);
    IS(dds_create_directory(NULL, "d", &number), -EBADF);
    IS(dds_open_directory(NULL, "d", &number), -EBADF);
    IS(dds_remove_directory(NULL, 1), -EBADF);
    IS(dds_list(NULL, DDS_ROOT, count, NULL), -EBADF);
    IS(dds_create_file(NULL, 1, "f", &error) == NULL && error == EBADF, 1);
    IS(dds_open_file(NULL, 1, "f", NULL) == NULL, 1);
    IS(dds_delete_file(NULL), -EBADF);
    IS(dds_resize_file(NULL, 1), -EBADF);
    IS(dds_file_size(NULL, &size), -EBADF);
    IS(dds_create_poll(NULL, &poll), -EBADF);
    IS(dds_poll_add(NULL, DDS_POLL_DEFAULT, NULL), -EBADF);
    IS(dds_read_file(NULL, 0, &byte, 1, 0), -EBADF);
    IS(dds_read_scattered(NULL, 0, &piece, 1, 0), -EBADF);
    IS(dds_write_file(NULL, 0, &byte, 1, 0), -EBADF);
    IS(dds_write_gathered(NULL, 0, &piece, 1, 0), -EBADF);
    IS(dds_flush_file(NULL, 0), -EBADF);
    IS(dds_poll_wait(NULL, DDS_POLL_DEFAULT, &done, 1, 0), -EBADF);
}

static void names(dds_library *library)
{
    int error = 0;
    uint32_t d, e;
    char name[300];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    IS(dds_create_directory(library, "d", &d), 0);
    IS(dds_create_directory(library, "d", &e), -EEXIST);
    IS(dds_create_directory(library, "", &e), -EINVAL);
    IS(dds_create_directory(library, NULL, &e), -EINVAL);
    IS(dds_create_directory(library, name, &e), -ENAMETOOLONG);
    /* Nothing is made that nobody could be told of. */
    IS(dds_create_directory(library, "untold", NULL), -EINVAL);
    IS(dds_open_directory(library, "untold", &e), -ENOENT);
    IS(dds_open_directory(library, "d", &e), 0);
    IS(e, d);
    IS(dds_open_directory(library, "d", NULL), -EINVAL);
    IS(dds_open_directory(library, "none", &e), -ENOENT);
    IS(dds_remove_directory(library, 999), -ENOENT);
    IS(dds_create_file(library, 999, "f", &error) == NULL && error == ENOENT, 1);
    IS(dds_create_file(library, d, name, &error) == NULL && error == ENAMETOOLONG, 1);
    IS(dds_create_file(library, d, NULL, &error) == NULL && error == EINVAL, 1);
    IS(dds_open_file(library, d, "f", &error) == NULL && error == ENOENT, 1);
    dds_file *file = dds_create_file(library, d, "f", &error);
    IS(file != NULL && error == 0, 1);
    IS(dds_create_file(library, d, "f", &error) == NULL && error == EEXIST, 1);
    IS(dds_remove_directory(library, d), -ENOTEMPTY);
    uint64_t size = 3;
    IS(dds_resize_file(file, size), 0);
    IS(dds_resize_file(file, UINT64_MAX), -EFBIG);
    IS(dds_file_size(file, NULL), -EINVAL);
    again = library;
    IS(dds_list(library, d, count, &size), 1);
    IS(listed, 1);
    IS(dds_list(library, d, NULL, NULL), -EINVAL);
    IS(dds_list(library, 999, count, NULL), -ENOENT);
    dds_file *same = dds_open_file(library, d, "f", NULL);
    IS(dds_delete_file(file), 0);
    /* Ids that are gone: by this handle, and by another. */
    IS(dds_delete_file(file), -ENOENT);
    IS(dds_file_size(same, &size), -ENOENT);
    IS(dds_flush_file(same, 7), 0);
    IS(finish(library, DDS_POLL_DEFAULT, 7), -ENOENT);
    dds_close_file(same);
    dds_close_file(file);
    IS(dds_remove_directory(library, d), 0);
    IS(dds_remove_directory(library, d), -ENOENT);
}

static void data(dds_library *library)
{
    uint32_t d;
    dds_poll poll = 0, more = 0;
    char out[100], in[100];
    struct dds_completion done[2];
    IS(dds_create_directory(library, "data", &d), 0);
    dds_file *file = dds_create_file(library, d, "f", NULL);
    for (unsigned i = 0; i < sizeof out; i++)
        out[i] = (char)i;
    IS(dds_write_file(file, 0, out, sizeof out, 1), 0);
    IS(finish(library, DDS_POLL_DEFAULT, 1), sizeof out);
    /* Another group, and those that are none. */
    IS(dds_poll_add(library, 2, file), -EINVAL);
    IS(dds_create_poll(library, NULL), -EINVAL);
    IS(dds_poll_add(library, 0, file), -EINVAL);
    IS(dds_poll_add(library, DDS_POLL_DEFAULT, NULL), -EBADF);
    IS(dds_create_poll(library, &poll), 0);
    IS(dds_create_poll(library, &more), -EMFILE);
    IS(dds_poll_add(library, poll, file), 0);
    IS(dds_poll_wait(library, 0, done, 1, 0), -EINVAL);
    IS(dds_poll_wait(library, 99, done, 1, 0), -EINVAL);
    IS(dds_poll_wait(library, poll, NULL, 1, 0), -EINVAL);
    IS(dds_poll_wait(library, poll, done, 0, -1), 0);
    IS(dds_poll_wait(library, poll, done, 2, 0), 0);
    IS(dds_poll_wait(library, poll, done, 2, 20), 0);
    /* Scattered and gathered, with pieces of nothing, short at the end. */
    struct iovec gather[3] = {{out, 10}, {NULL, 0}, {out + 50, 50}};
    IS(dds_write_gathered(file, 200, gather, 3, 2), 0);
    IS(finish(library, poll, 2), 60);
    struct iovec scatter[3] = {{in, 5}, {NULL, 0}, {in + 5, 95}};
    memset(in, 99, sizeof in);
    IS(dds_read_scattered(file, 200, scatter, 3, 3), 0);
    IS(finish(library, poll, 3), 60);
    IS(memcmp(in, out, 10) || memcmp(in + 10, out + 50, 50) || in[60] != 99, 0);
    IS(dds_read_file(file, 1000, in, sizeof in, 4), 0);
    IS(finish(library, poll, 4), 0);
    IS(dds_read_file(file, UINT64_MAX, in, sizeof in, 5), 0);
    IS(finish(library, poll, 5), 0);
    IS(dds_write_file(file, UINT64_MAX - 5, out, sizeof out, 6), 0);
    IS(finish(library, poll, 6), -EFBIG);
    IS(dds_write_file(file, 0, NULL, 0, 7), 0);
    IS(finish(library, poll, 7), 0);
    IS(dds_read_file(file, 0, NULL, 0, 8), 0);
    IS(finish(library, poll, 8), 0);
    /* Memory that cannot be, and more than there can be of it. */
    IS(dds_read_file(file, 0, NULL, 1, 0), -EINVAL);
    IS(dds_write_file(file, 0, NULL, 1, 0), -EINVAL);
    IS(dds_write_file(file, 0, out, SIZE_MAX, 0), -EINVAL);
    IS(dds_read_file(file, 0, in, SIZE_MAX, 0), -EINVAL);
    IS(dds_read_file(file, 0, in, (size_t)1 << 40, 0), -E2BIG);
    IS(dds_read_scattered(file, 0, NULL, 1, 0), -EINVAL);
    IS(dds_read_scattered(file, 0, scatter, -1, 0), -EINVAL);
    IS(dds_read_scattered(file, 0, scatter, 100000, 0), -EINVAL);
    IS(dds_read_scattered(file, 0, NULL, 0, 9), 0);
    IS(finish(library, poll, 9), 0);
    IS(dds_write_gathered(file, 0, NULL, 2, 0), -EINVAL);
    IS(dds_write_gathered(file, 0, (const struct iovec *)1, 2, 0), -EINVAL);
    IS(dds_write_gathered(file, 0, gather, 100000, 0), -EINVAL);
    IS(dds_flush_file(file, 10), 0);
    IS(finish(library, poll, 10), 0);
    /* What one group asked for does not complete in another. */
    IS(dds_poll_wait(library, DDS_POLL_DEFAULT, done, 2, 0), 0);
    /* The library lives on until its files are closed, whatever the order. */
    IS(dds_delete_file(file), 0);
    IS(dds_remove_directory(library, d), 0);
    dds_detach(library);
    dds_close_file(file);
}

/* Reads lent memory that is taken back by detaching: nobody writes to it after that. */
static void left_behind(const char *socket)
{
    uint32_t d;
    static char in[32][4096];
    dds_library *library = dds_attach(socket, 5000, 1, NULL);
    dds_library *other = dds_attach(socket, 5000, 1, NULL);
    IS(library && other, 1);
    IS(dds_create_directory(library, "left", &d), 0);
    dds_file *file = dds_create_file(library, d, "f", NULL);
    IS(dds_poll_add(other, DDS_POLL_DEFAULT, file), -EINVAL);
    IS(dds_write_file(file, 0, in, sizeof in, 1), 0);
    IS(finish(library, DDS_POLL_DEFAULT, 1), sizeof in);
    for (int i = 0; i < 32; i++)
        IS(dds_read_file(file, 0, in[i], sizeof in[i], 2), 0);
    dds_close_file(file);
    dds_detach(library);
    memset(in, 7, sizeof in);
    IS(dds_open_directory(other, "left", &d), 0);
    file = dds_open_file(other, d, "f", NULL);
    IS(dds_delete_file(file), 0);
    dds_close_file(file);
    IS(dds_remove_directory(other, d), 0);
    dds_detach(other);
    for (unsigned i = 0; i < sizeof in; i++)
        if (in[i / 4096][i % 4096] != 7) {
            fprintf(stderr, "lent memory was written after the library had left\n");
            failures++;
            break;
        }
}

int main(int argc, char **argv)
{
    int error = 0;
    if (argc != 2)
        return 2;
    without_a_library(argv[1]);
    dds_library *library = dds_attach(argv[1], 5000, 2, &error);
    if (!library) {
        fprintf(stderr, "dds_attach: %s\n", strerror(error));
        return 1;
    }
    names(library);
    data(library);
    left_behind(argv[1]);
    printf("%d failures\n", failures);
    return failures != 0;
}
