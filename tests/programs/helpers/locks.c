/* Locks between processes: every kind excludes, deadlocks are found, death and close release. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#define WRITERS 6

#define CHECK(what)                                                         \
    do {                                                                    \
        if (!(what)) {                                                      \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #what, strerror(errno)); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

static int lock_flock(int fd, int on) { return flock(fd, on ? LOCK_EX : LOCK_UN); }
static int lock_lockf(int fd, int on) { return lockf(fd, on ? F_LOCK : F_ULOCK, 0); }

static int range(int fd, int command, short type, off_t start, off_t len) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    return fcntl(fd, command, &lock);
}
static int lock_fcntl(int fd, int on) {
    return range(fd, F_SETLKW, on ? F_WRLCK : F_UNLCK, 0, 8);
}
static int lock_ofd(int fd, int on) {
    return range(fd, F_OFD_SETLKW, on ? F_WRLCK : F_UNLCK, 0, 8);
}

/* Each writer adds one to a number in the file, `rounds` times, under the lock. */
static void exclusion(const char *name, int (*lock)(int, int), int rounds) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    long sum = 0;
    CHECK(fd >= 0 && pwrite(fd, &sum, sizeof sum, 0) == sizeof sum);
    for (int i = 0; i < WRITERS; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child > 0) continue;
        int own = open(name, O_RDWR);
        CHECK(own >= 0);
        for (int round = 0; round < rounds; round++) {
            long value;
            CHECK(lock(own, 1) == 0);
            CHECK(pread(own, &value, sizeof value, 0) == sizeof value);
            value++;
            CHECK(pwrite(own, &value, sizeof value, 0) == sizeof value);
            CHECK(lock(own, 0) == 0);
        }
        _exit(0);
    }
    for (int i = 0; i < WRITERS; i++) {
        int status;
        CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK(pread(fd, &sum, sizeof sum, 0) == sizeof sum);
    if (sum != (long)WRITERS * rounds) {
        fprintf(stderr, "%s: %ld of %ld\n", name, sum, (long)WRITERS * rounds);
        exit(1);
    }
    close(fd);
}

static void signalled(int signal) { (void)signal; }

/* A child takes `lock` and waits to be killed; the pipe says when it has it. */
static pid_t holder(const char *name, int (*lock)(int, int)) {
    int ready[2];
    char byte = 0;
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int fd = open(name, O_RDWR);
        CHECK(fd >= 0 && lock(fd, 1) == 0 && write(ready[1], &byte, 1) == 1);
        pause();
        _exit(0);
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static void end(pid_t child) {
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

/* A waiting lock is interrupted by a signal, and granted when the holder dies. */
static void waiting(const char *name, int (*lock)(int, int)) {
    pid_t child = holder(name, lock);
    int fd = open(name, O_RDWR);
    CHECK(fd >= 0);
    alarm(1);
    CHECK(lock(fd, 1) == -1 && errno == EINTR);
    alarm(0);
    end(child);
    CHECK(lock(fd, 1) == 0 && lock(fd, 0) == 0);
    close(fd);
}

static void ranges(const char *name) {
    pid_t child = holder(name, lock_fcntl); /* bytes 0..8 */
    int fd = open(name, O_RDWR);
    CHECK(fd >= 0);
    CHECK(range(fd, F_SETLK, F_RDLCK, 4, 1) == -1 && (errno == EAGAIN || errno == EACCES));
    CHECK(range(fd, F_SETLK, F_WRLCK, 8, 100) == 0);
    struct flock found = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0};
    CHECK(fcntl(fd, F_GETLK, &found) == 0);
    CHECK(found.l_type == F_WRLCK && found.l_pid == child);
    CHECK(found.l_start == 0 && found.l_len == 8);
    /* Any close of the file by this process gives up its POSIX locks. */
    close(open(name, O_RDWR));
    pid_t other = fork();
    CHECK(other >= 0);
    if (other == 0) {
        int own = open(name, O_RDWR);
        CHECK(own >= 0 && range(own, F_SETLK, F_WRLCK, 8, 100) == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    end(child);
    close(fd);
}

/* Two processes wait for each other: one of them is told EDEADLK. */
static void deadlock(const char *name) {
    int fd = open(name, O_RDWR), to_child[2], to_parent[2];
    char byte = 0;
    CHECK(fd >= 0 && pipe(to_child) == 0 && pipe(to_parent) == 0);
    CHECK(range(fd, F_SETLK, F_WRLCK, 0, 1) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int own = open(name, O_RDWR);
        CHECK(own >= 0 && range(own, F_SETLK, F_WRLCK, 1, 1) == 0);
        CHECK(write(to_parent[1], &byte, 1) == 1);
        int blocked = range(own, F_SETLKW, F_WRLCK, 0, 1);
        _exit(blocked == 0 ? 0 : errno == EDEADLK ? 2 : 1);
    }
    CHECK(read(to_parent[0], &byte, 1) == 1);
    alarm(10);
    usleep(200 * 1000);
    int mine = range(fd, F_SETLKW, F_WRLCK, 1, 1), why = errno;
    alarm(0);
    CHECK(range(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK((mine == -1 && why == EDEADLK) || WEXITSTATUS(status) == 2);
    close(fd);
}

int main(int argc, char **argv) {
    CHECK(argc == 3 && chdir(argv[1]) == 0);
    int rounds = atoi(argv[2]);
    struct sigaction action = {.sa_handler = signalled};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    exclusion("by-flock", lock_flock, rounds);
    exclusion("by-lockf", lock_lockf, rounds);
    exclusion("by-fcntl", lock_fcntl, rounds);
    exclusion("by-ofd", lock_ofd, rounds);
    waiting("by-flock", lock_flock);
    waiting("by-fcntl", lock_fcntl);
    ranges("by-fcntl");
    deadlock("by-fcntl");
    return 0;
}
