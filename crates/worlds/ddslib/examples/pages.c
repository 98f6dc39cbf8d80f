/* Writes a file of numbered pages through the page server's file library, reads it back in another
 * order with many reads under way, and says what a directory holds.
 *
 *   cc pages.c -loutboard_ddslib -o pages && ./pages SOCKET
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "outboard_dds.h"

enum { PAGE = 8192, PAGES = 200, BATCH = 32 };

static void must(int done, const char *what)
{
    if (done < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(-done));
        exit(1);
    }
}

/* Takes completions until none is left, each of PAGE bytes. */
static void finish(dds_library *library, dds_poll poll, int left)
{
    struct dds_completion done[BATCH];
    while (left > 0) {
        int count = dds_poll_wait(library, poll, done, BATCH, 5000);
        must(count == 0 ? -ETIMEDOUT : count, "dds_poll_wait");
        for (int i = 0; i < count; i++) {
            must(done[i].result < 0 ? (int)done[i].result : 0, "a completion");
            if (done[i].result != PAGE) {
                fprintf(stderr, "operation %llu moved %lld bytes\n",
                        (unsigned long long)done[i].user, (long long)done[i].result);
                exit(1);
            }
        }
        left -= count;
    }
}

static void print(void *context, uint32_t id, uint64_t size, const char *name, size_t length)
{
    (void)context;
    printf("%.*s: id %u, %llu bytes\n", (int)length, name, id != 0, (unsigned long long)size);
}

int main(int argc, char **argv)
{
    int error = 0;
    uint32_t directory = 0;
    uint64_t size = 0;
    dds_poll poll;
    if (argc != 2) {
        fprintf(stderr, "usage: %s SOCKET\n", argv[0]);
        return 2;
    }
    dds_library *library = dds_attach(argv[1], 5000, 2, &error);
    must(library ? 0 : -error, "dds_attach");
    must(dds_create_directory(library, "example", &directory), "dds_create_directory");
    dds_file *file = dds_create_file(library, directory, "pages", &error);
    must(file ? 0 : -error, "dds_create_file");
    must(dds_create_poll(library, &poll), "dds_create_poll");
    must(dds_poll_add(library, poll, file), "dds_poll_add");

    /* One gathered write a page: its number, and the rest. */
    int begun = 0;
    for (uint32_t page = 0; page < PAGES; page++) {
        char rest[PAGE - sizeof page];
        memset(rest, (int)(page & 0x7f), sizeof rest);
        struct iovec pieces[2] = {{&page, sizeof page}, {rest, sizeof rest}};
        for (;;) {
            int done = dds_write_gathered(file, (uint64_t)page * PAGE, pieces, 2, page);
            if (done != -EAGAIN) {
                must(done, "dds_write_gathered");
                begun++;
                break;
            }
            finish(library, poll, begun); /* the ring is full */
            begun = 0;
        }
    }
    finish(library, poll, begun);
    must(dds_flush_file(file, PAGES), "dds_flush_file");
    struct dds_completion flushed;
    must(dds_poll_wait(library, poll, &flushed, 1, 5000) == 1 ? (int)flushed.result : -EIO,
         "the flush");

    /* Many reads under way, the last page first; every number in a place of its own. */
    static uint32_t numbers[PAGES];
    static char bytes[BATCH][PAGE];
    for (int from = PAGES; from > 0; from -= BATCH) {
        int count = from < BATCH ? from : BATCH;
        for (int i = 0; i < count; i++) {
            int page = from - 1 - i;
            struct iovec pieces[2] = {{&numbers[page], sizeof numbers[page]},
                                      {bytes[i], PAGE - sizeof numbers[page]}};
            must(dds_read_scattered(file, (uint64_t)page * PAGE, pieces, 2, (uint64_t)page),
                 "dds_read_scattered");
        }
        finish(library, poll, count);
        for (int i = 0; i < count; i++) {
            int page = from - 1 - i;
            if (numbers[page] != (uint32_t)page || bytes[i][100] != (page & 0x7f)) {
                fprintf(stderr, "page %d holds %u\n", page, numbers[page]);
                return 1;
            }
        }
    }
    must(dds_file_size(file, &size), "dds_file_size");
    must(dds_list(library, directory, print, NULL), "dds_list");
    must(dds_resize_file(file, 0), "dds_resize_file");
    must(dds_delete_file(file), "dds_delete_file");
    if (dds_file_size(file, &size) != -ENOENT || dds_poll_add(library, 99, file) != -EINVAL) {
        fprintf(stderr, "a wrong call was not refused\n");
        return 1;
    }
    dds_close_file(file);
    must(dds_remove_directory(library, directory), "dds_remove_directory");
    dds_detach(library);
    return 0;
}
