/* A plug-in of outboard: which requests of remote clients the DPU side answers, and how.
 *
 * A plug-in is a shared object with one function, outboard_offload. `outboard serve plugin` loads
 * it into processes of its own: one for each thread that asks it. So its functions are called by
 * one thread at a time, know nothing of each other's calls, and keep nothing between them; what is
 * to be known is in the cache table.
 *
 * A function that does not return within a second, or ends its process, costs its offloading: the
 * process is killed, the host answers what it was asked about, and another is started after a
 * pause. Once it is loaded a plug-in has no files, no sockets and no threads: a system call for one
 * ends its process. stdout and stderr go nowhere.
 *
 * Nothing here blocks, and no pointer is to be kept after the call it was given for.
 *
 *   cc -shared -fPIC -o offload.so offload.c
 *   outboard serve plugin --plugin ./offload.so --host 127.0.0.1:9000 --listen 127.0.0.1:9001
 */
#ifndef OUTBOARD_OFFLOAD_H
#define OUTBOARD_OFFLOAD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header. Another one is refused when the plug-in is loaded. */
#define OUTBOARD_OFFLOAD_ABI 1

/* The cache table, as the call may look at it; what becomes of a message; what is to be kept; what
 * is to be forgotten. */
struct ofl_table;
struct ofl_division;
struct ofl_items;
struct ofl_keys;

/* How messages in a stream are told apart. That is declared, and done by the DPU side. */
#define OFL_FIXED 1   /* each has `bytes` bytes */
#define OFL_COUNTED 2 /* a header of `bytes` bytes (256 at most) has the length */
#define OFL_ENDED 3   /* each ends with the byte `end`; it has 64 KiB at most */
struct ofl_frames {
    uint32_t kind;
    uint32_t bytes;
    uint32_t at;         /* OFL_COUNTED: where in the header the length lies */
    uint32_t width;      /* its bytes: 1, 2, 4 or 8 */
    uint32_t big_endian; /* 1: the most significant first */
    uint32_t beyond;     /* a message has so many bytes more than the number says */
    uint32_t end;
};

/* What a request of the host reads or changes. Until it is answered, requests of the same client
 * for that go to the host, too: a client sees its own writes. */
#define OFL_NOTHING 0
#define OFL_ONE 1        /* the object `key` */
#define OFL_EVERYTHING 2 /* perhaps anything */

/* Something that must be so of the bytes that were read, or the host answers. */
#define OFL_EQUAL 1    /* at `at` are the first `length` of `bytes` */
#define OFL_AT_LEAST 2 /* at `at` is a number not below `least`: 8 bytes, least significant first */
struct ofl_expect {
    uint32_t kind;
    uint32_t at;
    uint32_t length;
    uint32_t reserved;
    uint64_t least;
    uint8_t bytes[64];
};

/* A read of a file that answers a request: the answer is `head`, then `payload_length` of the bytes
 * read from `payload_at` on, sent from where the device put them. All is zero when off_func gets
 * it. */
struct ofl_read {
    uint32_t file;  /* as ofl_write had it */
    uint32_t bytes; /* 2 MiB at most */
    uint64_t offset;
    uint32_t payload_at;
    uint32_t payload_length;
    uint32_t head_length; /* 32 at most */
    uint32_t expects;     /* 4 at most */
    uint8_t head[32];
    struct ofl_expect expect[4];
};

/* What the host wrote. */
struct ofl_write {
    uint32_t file;
    uint32_t reserved;
    uint64_t offset;
    const uint8_t *bytes;
    size_t length;
};

/* What the host reads. */
struct ofl_range {
    uint32_t file;
    uint32_t bytes;
    uint64_t offset;
};

/* What a plug-in calls while it is called. */
struct ofl_calls {
    uint32_t abi;
    uint32_t size;
    /* The item of a key: 1, and the item; or 0. A key that was not looked for before makes the DPU
     * side call once more, with what the table has: so look for all that is needed, and do nothing
     * else with what is 0 than leave the request to the host. 256 keys a message at most. */
    int (*get)(struct ofl_table *table, uint64_t key, uint64_t item[4]);

    /* The parts of a message, in the order of the answers; 256 at most, a message of 64 KiB at
     * most. Bytes of the message are referred to, others are copied.
     *
     * literal: bytes of the answer that are known.
     * host:    a request of the host: one message of the application, answered by one.
     * dpu:     a request of the DPU side. It changes nothing, and is a message for the host if it
     *          cannot be answered here. off_func is called for each. */
    void (*literal)(struct ofl_division *division, const void *bytes, size_t length);
    void (*host)(struct ofl_division *division, const void *request, size_t length,
                 uint32_t touches, uint64_t key);
    void (*dpu)(struct ofl_division *division, const void *request, size_t length, uint64_t key);

    /* One more item to keep, one more key to forget; 65536 a call at most. */
    void (*item)(struct ofl_items *items, uint64_t key, const uint64_t item[4]);
    void (*key)(struct ofl_keys *keys, uint64_t key);
};

/* What a plug-in gives. */
struct ofl_application {
    uint32_t abi;  /* OUTBOARD_OFFLOAD_ABI */
    uint32_t size; /* sizeof(struct ofl_application) */
    const char *name;
    struct ofl_frames messages; /* of clients */
    struct ofl_frames answers;  /* of the host */

    /* Divides one message. One that is left without parts is the host's, whole, and may touch
     * everything. */
    void (*off_pred)(const uint8_t *message, size_t length, struct ofl_table *table,
                     struct ofl_division *division);

    /* The read that answers a request of the DPU side: 1; or 0, and the host answers. */
    int (*off_func)(const uint8_t *request, size_t length, struct ofl_table *table,
                    struct ofl_read *read);

    /* What the table is to keep of a write. Called when it is done, before it is answered. May be
     * NULL: the host tells the table itself, or requests say where their objects lie. */
    void (*cache)(const struct ofl_write *write, struct ofl_items *items);

    /* What it is to forget because the host reads, as it may be about to change that. Called before
     * the read. May be NULL. */
    void (*invalidate)(const struct ofl_range *read, struct ofl_keys *keys);
};

/* What the shared object has. NULL: it will not work with `calls`. Both live as long as the
 * process. */
const struct ofl_application *outboard_offload(const struct ofl_calls *calls);

#ifdef __cplusplus
}
#endif

#endif
