/* A server of records of a fixed size, whose file is beyond the bus.
 *
 *   cc server.c -I../../include -loutboard_ddslib -o server && ./server SOCKET PORT
 *
 * It listens at 127.0.0.1:PORT, says which port if that is 0, and knows nothing of the plug-in: the
 * DPU side is its client, with those requests it does not answer itself.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "outboard_dds.h"
#include "records.h"

enum { CLIENTS = 64 };

struct client {
    size_t have;
    char bytes[sizeof(struct head) + TEXT];
};

static dds_library *library;
static dds_file *file;
static uint64_t served;

static void must(int done, const char *what)
{
    if (done < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(-done));
        exit(1);
    }
}

/* What was begun, ended: bytes moved, or a negative errno. */
static int64_t finish(int begun)
{
    struct dds_completion done;
    if (begun < 0)
        return begun;
    int count = dds_poll_wait(library, DDS_POLL_DEFAULT, &done, 1, 30000);
    if (count < 1) {
        /* The record may still be written to: it cannot be given up. */
        fprintf(stderr, "the DPU side does not answer\n");
        exit(1);
    }
    return done.result;
}

/* Reads a record: 1 if it is there, 0 if not, or a negative errno. */
static int64_t fetch(uint64_t number, struct record *record)
{
    if (number >= RECORDS)
        return 0;
    memset(record, 0, sizeof *record);
    int64_t got = finish(dds_read_file(file, number * sizeof *record, record, sizeof *record, 0));
    return got < 0 ? got : got == sizeof *record && record->version > 0;
}

static int64_t store(const struct head *head, const char *text)
{
    struct record record;
    int64_t there = head->number < RECORDS ? fetch(head->number, &record) : -EFBIG;
    if (there < 0)
        return there;
    record.number = head->number;
    record.version++;
    memcpy(record.text, text, TEXT);
    return finish(dds_write_file(file, head->number * sizeof record, &record, sizeof record, 0));
}

/* Answers one request. */
static void serve(int to, const struct head *head, const char *text)
{
    struct record record;
    char bytes[sizeof *head + TEXT];
    struct head answer = {sizeof *head, DONE, head->number};
    int64_t done = 0;
    served++;
    if (head->what == GET) {
        done = fetch(head->number, &record);
        if (done == 0)
            answer.what = NONE;
        if (done > 0) {
            answer.length += TEXT;
            memcpy(bytes + sizeof answer, record.text, TEXT);
        }
    } else if (head->what == PUT && head->length == sizeof *head + TEXT) {
        done = store(head, text);
    } else if (head->what == COUNT) {
        answer.number = served;
    } else {
        done = -EINVAL;
    }
    if (done < 0)
        answer.what = FAILED;
    memcpy(bytes, &answer, sizeof answer);
    size_t sent = 0;
    while (sent < answer.length) {
        ssize_t n = send(to, bytes + sent, answer.length - sent, MSG_NOSIGNAL);
        if (n <= 0)
            return; /* it is gone; the next read says so */
        sent += (size_t)n;
    }
}

/* Takes what a client sent; whether it is still there. */
static int hear(int from, struct client *client)
{
    ssize_t n = recv(from, client->bytes + client->have, sizeof client->bytes - client->have, 0);
    if (n <= 0)
        return 0;
    client->have += (size_t)n;
    for (;;) {
        struct head head;
        if (client->have < sizeof head)
            return 1;
        memcpy(&head, client->bytes, sizeof head);
        if (head.length < sizeof head || head.length > sizeof client->bytes)
            return 0;
        if (client->have < head.length)
            return 1;
        serve(from, &head, client->bytes + sizeof head);
        client->have -= head.length;
        memmove(client->bytes, client->bytes + head.length, client->have);
    }
}

static int listen_at(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t length = sizeof at;
    int yes = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    must(bind(fd, (struct sockaddr *)&at, sizeof at) ? -errno : 0, "bind");
    must(listen(fd, CLIENTS) ? -errno : 0, "listen");
    must(getsockname(fd, (struct sockaddr *)&at, &length) ? -errno : 0, "getsockname");
    printf("records at 127.0.0.1:%d\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv)
{
    static struct client clients[CLIENTS + 1];
    struct pollfd fds[CLIENTS + 1];
    nfds_t count = 1;
    uint32_t directory;
    int error = 0;
    if (argc != 3) {
        fprintf(stderr, "usage: %s SOCKET PORT\n", argv[0]);
        return 2;
    }
    library = dds_attach(argv[1], 5000, 1, &error);
    must(library ? 0 : -error, "dds_attach");
    int made = dds_create_directory(library, "records", &directory);
    if (made == -EEXIST)
        made = dds_open_directory(library, "records", &directory);
    must(made, "the directory");
    file = dds_create_file(library, directory, "records", &error);
    if (!file && error == EEXIST)
        file = dds_open_file(library, directory, "records", &error);
    must(file ? 0 : -error, "the file");
    fds[0] = (struct pollfd){.fd = listen_at(atoi(argv[2])), .events = POLLIN};
    for (;;) {
        if (poll(fds, count, -1) < 0)
            continue;
        for (nfds_t at = count; at-- > 1;) {
            if (fds[at].revents && !hear(fds[at].fd, &clients[at])) {
                close(fds[at].fd);
                fds[at] = fds[--count];
                clients[at] = clients[count];
            }
        }
        if (fds[0].revents && count <= CLIENTS) {
            int fd = accept(fds[0].fd, NULL, NULL);
            if (fd >= 0) {
                int yes = 1; /* an answer does not wait for the one before to arrive */
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
                clients[count].have = 0;
                fds[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
            }
        }
    }
}
