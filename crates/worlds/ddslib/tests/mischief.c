/* The records example's plug-in, gone wrong: some numbers of records make it misbehave. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define outboard_offload records_offload
#include "../examples/records/offload.c"
#undef outboard_offload

#ifndef ABI
#define ABI OUTBOARD_OFFLOAD_ABI
#endif

enum { LOOPS = 900001, WRITES = 900002, WIDE = 900003, NOWHERE = 900004, ABORTS = 900005,
       OPENS = 900006, SCRIBBLES = 900007, SLOW_CACHE = 900008, LIES = 900009,
       SIGNALS = 900010 };

static struct ofl_application mischief;
static pid_t parent;
static char *area;
static size_t area_length;

/* Where the memory lies that the DPU side reads answers from. */
static void find_area(void)
{
    char line[512];
    unsigned long from, to;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "outboard-plugin") && sscanf(line, "%lx-%lx", &from, &to) == 2) {
            area = (char *)from;
            area_length = to - from;
        }
    if (maps)
        fclose(maps);
}

static uint64_t number_of(const uint8_t *message)
{
    struct head head;
    memcpy(&head, message, sizeof head);
    return head.what == GET ? head.number : 0;
}

static void wrong_pred(const uint8_t *message, size_t length, struct ofl_table *table,
                       struct ofl_division *division)
{
    volatile int zero = 0;
    switch (number_of(message)) {
    case LOOPS:
        while (!zero)
            ;
        break;
    case WRITES:
        *(volatile char *)(uintptr_t)zero = 1;
        break;
    case ABORTS:
        abort();
    case OPENS:
        open("/dev/null", O_RDONLY);
        break;
    case SIGNALS: /* it has the rights, as the same user */
        syscall(SYS_tgkill, parent, parent, 0);
        break;
    case SCRIBBLES:
        for (size_t at = 0; at < area_length; at++)
            area[at] = (char)(0xA5 + at);
        break;
    }
    off_pred(message, length, table, division);
}

static int wrong_func(const uint8_t *request, size_t length, struct ofl_table *table,
                      struct ofl_read *read)
{
    int done = off_func(request, length, table, read);
    switch (number_of(request)) {
    case WIDE:
        read->payload_length = 1 << 20;
        break;
    case NOWHERE:
        read->file = 4000000000u;
        read->offset = UINT64_MAX - 5;
        break;
    case LIES: /* another record */
        read->offset = 0;
        break;
    }
    return done;
}

static void slow_cache(const struct ofl_write *write, struct ofl_items *items)
{
    volatile int zero = 0;
    while (write->offset == SLOW_CACHE * sizeof(struct record) && !zero)
        ;
    cache(write, items);
}

const struct ofl_application *outboard_offload(const struct ofl_calls *calls)
{
    find_area();
    parent = getppid();
    mischief = *records_offload(calls);
    mischief.abi = ABI;
    mischief.off_pred = wrong_pred;
    mischief.off_func = wrong_func;
    mischief.cache = slow_cache;
#ifdef NO_FRAMES
    mischief.answers.width = 3;
#endif
#ifdef DIES
    abort();
#endif
    return &mischief;
}
