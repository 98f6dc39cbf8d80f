/* The protocol of the records example, and how records lie in their file. Numbers have their least
 * significant byte first. */
#ifndef RECORDS_H
#define RECORDS_H

#include <stdint.h>
#include <string.h>

enum { GET = 1, PUT = 2, COUNT = 3 };       /* what is asked */
enum { DONE = 0, NONE = 1, FAILED = 2 };    /* what is answered */
enum { TEXT = 112, RECORDS = 1 << 20 };

/* Of a request and of an answer. A PUT, and the answer to a GET that is DONE, bring the text. */
struct head {
    uint32_t length; /* of all, this included */
    uint32_t what;
    uint64_t number; /* of the record; the answer to COUNT: how many requests the server has had */
};

/* A record in the file, at its number times its size. Its version grows with each PUT; 0: none. */
struct record {
    uint64_t number;
    uint64_t version;
    char text[TEXT];
};

#endif
