/* Holes, as the man pages of fallocate, lseek and copy_file_range describe them. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1 << 20)

#define CHECK(what)                                                         \
    do {                                                                    \
        if (!(what)) {                                                      \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #what, strerror(errno)); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

static int all(int fd, off_t from, off_t to, char wanted) {
    char bytes[4096];
    while (from < to) {
        size_t len = to - from < 4096 ? to - from : 4096;
        ssize_t got = pread(fd, bytes, len, from);
        if (got <= 0) return 0;
        for (ssize_t i = 0; i < got; i++)
            if (bytes[i] != wanted) return 0;
        from += got;
    }
    return 1;
}

static off_t size_of(int fd) {
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0);
    return stat.st_size;
}

static long blocks_of(int fd) {
    struct stat stat;
    CHECK(fsync(fd) == 0 && fstat(fd, &stat) == 0);
    return stat.st_blocks;
}

int main(int argc, char **argv) {
    static char ones[4 * MIB];
    CHECK(argc == 2);
    memset(ones, 1, sizeof ones);
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    CHECK(pwrite(fd, ones, sizeof ones, 0) == sizeof ones);
    long full = blocks_of(fd);

    /* A punched hole reads as zeros, keeps the size, and gives space back. */
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, MIB, MIB) == 0);
    CHECK(all(fd, 0, MIB, 1) && all(fd, MIB, 2 * MIB, 0) && all(fd, 2 * MIB, 4 * MIB, 1));
    CHECK(size_of(fd) == 4 * MIB);
    CHECK(blocks_of(fd) < full);
    /* A kernel that collects writes takes the whole file for data. */
    const char *front = getenv("OUTBOARD_FRONT");
    if (!front || strcmp(front, "write-back") != 0) {
        CHECK(lseek(fd, 0, SEEK_HOLE) == MIB);
        CHECK(lseek(fd, MIB, SEEK_DATA) == 2 * MIB);
    }
    CHECK(lseek(fd, 3 * MIB, SEEK_HOLE) == 4 * MIB);
    CHECK(lseek(fd, 4 * MIB, SEEK_DATA) == -1 && errno == ENXIO);

    /* Unaligned: only the bytes asked for become zero. */
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 * MIB + 100, 20000) == 0);
    CHECK(all(fd, 2 * MIB, 3 * MIB + 100, 1) && all(fd, 3 * MIB + 100, 3 * MIB + 20100, 0));
    CHECK(all(fd, 3 * MIB + 20100, 4 * MIB, 1));

    CHECK(fallocate(fd, FALLOC_FL_ZERO_RANGE, 10, 5000) == 0);
    CHECK(all(fd, 0, 10, 1) && all(fd, 10, 5010, 0) && all(fd, 5010, MIB, 1));

    /* Allocation: with keep-size the size stays, without it grows; the bytes are zeros. */
    CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 4 * MIB, MIB) == 0 && size_of(fd) == 4 * MIB);
    CHECK(fallocate(fd, 0, 4 * MIB, MIB) == 0 && size_of(fd) == 5 * MIB);
    CHECK(all(fd, 4 * MIB, 5 * MIB, 0) && all(fd, 5010, MIB, 1));
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 10) == -1 && errno == EOPNOTSUPP);
    CHECK(fallocate(fd, 0, 0, 0) == -1 && errno == EINVAL);
    CHECK(fallocate(fd, 0, -1, 10) == -1 && errno == EINVAL);

    /* copy_file_range, into another file and within one. */
    char name[4096];
    CHECK(snprintf(name, sizeof name, "%s.copy", argv[1]) < (int)sizeof name);
    int to = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(to >= 0);
    off_t in = 3 * MIB, out = 12345;
    size_t left = MIB;
    while (left > 0) {
        ssize_t done = copy_file_range(fd, &in, to, &out, left, 0);
        CHECK(done > 0);
        left -= done;
    }
    CHECK(all(to, 0, 12345, 0) && all(to, 12345, 12345 + 100, 1));
    CHECK(all(to, 12445, 12345 + 20100, 0) && size_of(to) == 12345 + MIB);

    /* Past the end there is nothing, and truncating up makes a hole. */
    char byte;
    CHECK(pread(fd, &byte, 1, 5 * MIB) == 0);
    CHECK(ftruncate(fd, 8 * MIB) == 0 && all(fd, 5 * MIB, 8 * MIB, 0));
    CHECK(ftruncate(fd, -1) == -1 && errno == EINVAL);
    return 0;
}
