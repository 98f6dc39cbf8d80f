/* What a store through a shared mapping does to mtime and ctime: they move by msync, munmap or the
 * last close at the latest, each time, and reading through a mapping moves neither.
 * mapped DIRECTORY */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LEN = 3 * 4096 };

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static int later(struct timespec a, struct timespec b) {
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

static struct stat look(const char *path) {
    struct stat found;
    if (stat(path, &found) != 0) die("stat");
    return found;
}

/* Longer than the coarsest clock steps. */
static void pause_briefly(void) {
    struct timespec pause = {0, 30 * 1000 * 1000};
    nanosleep(&pause, NULL);
}

static void moved(const char *path, const struct stat *before, const char *by) {
    struct stat after = look(path);
    if (later(after.st_mtim, before->st_mtim) && later(after.st_ctim, before->st_ctim)) return;
    fprintf(stderr, "%s: the times stand still after a store and %s\n", path, by);
    exit(1);
}

static char *map(int fd, int how) {
    char *at = mmap(NULL, LEN, how, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) die("mmap");
    return at;
}

int main(int argc, char **argv) {
    if (argc != 2 || chdir(argv[1]) != 0) die("mapped DIRECTORY");
    const char *path = "mapped";
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || ftruncate(fd, LEN) != 0 || fsync(fd) != 0) die("open");

    char *at = map(fd, PROT_READ | PROT_WRITE);
    for (int round = 0; round < 3; round++) {
        pause_briefly();
        struct stat before = look(path);
        at[4096 * round] = 'a';
        at[100] = (char)('a' + round);
        if (msync(at, LEN, MS_SYNC) != 0) die("msync");
        moved(path, &before, "msync");
    }
    pause_briefly();
    struct stat before = look(path);
    at[5000] = 'b';
    if (munmap(at, LEN) != 0) die("munmap");
    moved(path, &before, "munmap");

    at = map(fd, PROT_READ | PROT_WRITE);
    pause_briefly();
    before = look(path);
    at[6000] = 'c';
    if (close(fd) != 0) die("close");
    moved(path, &before, "close");
    if (munmap(at, LEN) != 0) die("munmap");

    /* Who only reads changes nothing. */
    fd = open(path, O_RDWR);
    at = map(fd, PROT_READ | PROT_WRITE);
    pause_briefly();
    before = look(path);
    if (at[5000] != 'b' || at[6000] != 'c' || at[100] != 'c') die("what was stored is not there");
    if (msync(at, LEN, MS_SYNC) != 0 || munmap(at, LEN) != 0 || close(fd) != 0) die("msync");
    struct stat after = look(path);
    if (later(after.st_mtim, before.st_mtim) || later(after.st_ctim, before.st_ctim)) {
        fprintf(stderr, "times move though nothing was stored\n");
        return 1;
    }
    return 0;
}
