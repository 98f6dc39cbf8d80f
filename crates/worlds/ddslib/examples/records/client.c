/* A client of the records server.
 *
 *   cc client.c -o client
 *   ./client PORT put 7 "some text";  ./client PORT get 7;  ./client PORT count
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "records.h"

/* All of it, or the program ends. */
static void take(int fd, void *into, size_t length)
{
    for (size_t have = 0; have < length;) {
        ssize_t n = recv(fd, (char *)into + have, length - have, 0);
        if (n <= 0) {
            fprintf(stderr, "the server is gone\n");
            exit(1);
        }
        have += (size_t)n;
    }
}

int main(int argc, char **argv)
{
    struct { struct head head; char text[TEXT]; } message = {{sizeof(struct head), 0, 0}, {0}};
    const char *what = argc > 2 ? argv[2] : "";
    if (!strcmp(what, "get") && argc == 4) {
        message.head.what = GET;
    } else if (!strcmp(what, "put") && argc == 5) {
        message.head.what = PUT;
        message.head.length += TEXT;
        snprintf(message.text, TEXT, "%s", argv[4]);
    } else if (!strcmp(what, "count") && argc == 3) {
        message.head.what = COUNT;
    } else {
        fprintf(stderr, "usage: %s PORT get NUMBER | put NUMBER TEXT | count\n", argv[0]);
        return 2;
    }
    message.head.number = argc > 3 ? strtoull(argv[3], NULL, 0) : 0;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at)) {
        perror("connect");
        return 1;
    }
    if (send(fd, &message, message.head.length, 0) != (ssize_t)message.head.length)
        return 1;
    take(fd, &message.head, sizeof message.head);
    if (message.head.length == sizeof message)
        take(fd, message.text, TEXT);
    if (message.head.what == NONE)
        printf("no such record\n");
    else if (message.head.what != DONE)
        printf("failed\n");
    else if (!strcmp(what, "get"))
        printf("%.*s\n", TEXT, message.text);
    else if (!strcmp(what, "count"))
        printf("%llu\n", (unsigned long long)message.head.number);
    close(fd);
    return message.head.what == DONE ? 0 : 1;
}
