/* The records server's plug-in: the DPU side answers GETs of what lies in the file.
 *
 * The cache table maps the number of a record to [file, offset, version, 0]. A write by the server
 * puts it there; its read before that takes it away, as a newer one is to come.
 *
 *   cc -shared -fPIC -I../../include -o offload.so offload.c
 */
#include "outboard_offload.h"
#include "records.h"

static const struct ofl_calls *ofl;

static void off_pred(const uint8_t *message, size_t length, struct ofl_table *table,
                     struct ofl_division *division)
{
    struct head head;
    uint64_t item[4];
    memcpy(&head, message, sizeof head);
    if (head.what == GET && length == sizeof head && ofl->get(table, head.number, item))
        ofl->dpu(division, message, length, head.number);
    else if (head.what == GET || head.what == PUT)
        ofl->host(division, message, length, OFL_ONE, head.number);
    else
        ofl->host(division, message, length, OFL_NOTHING, 0);
}

static int off_func(const uint8_t *request, size_t length, struct ofl_table *table,
                    struct ofl_read *read)
{
    struct head head;
    uint64_t item[4];
    (void)length;
    memcpy(&head, request, sizeof head);
    if (!ofl->get(table, head.number, item))
        return 0;
    read->file = (uint32_t)item[0];
    read->offset = item[1];
    read->bytes = sizeof(struct record);
    /* The answer: a head, and the text from where the device puts it. */
    struct head answer = {sizeof head + TEXT, DONE, head.number};
    memcpy(read->head, &answer, sizeof answer);
    read->head_length = sizeof answer;
    read->payload_at = offsetof(struct record, text);
    read->payload_length = TEXT;
    /* If it is that record, no older than the table says. */
    read->expects = 2;
    read->expect[0].kind = OFL_EQUAL;
    read->expect[0].at = offsetof(struct record, number);
    read->expect[0].length = sizeof head.number;
    memcpy(read->expect[0].bytes, &head.number, sizeof head.number);
    read->expect[1].kind = OFL_AT_LEAST;
    read->expect[1].at = offsetof(struct record, version);
    read->expect[1].least = item[2];
    return 1;
}

static void cache(const struct ofl_write *write, struct ofl_items *items)
{
    for (size_t at = 0; at + sizeof(struct record) <= write->length; at += sizeof(struct record)) {
        struct record record;
        memcpy(&record, write->bytes + at, sizeof record);
        uint64_t item[4] = {write->file, write->offset + at, record.version, 0};
        if (record.number * sizeof record == item[1])
            ofl->item(items, record.number, item);
    }
}

static void invalidate(const struct ofl_range *read, struct ofl_keys *keys)
{
    uint64_t end = read->offset + read->bytes;
    for (uint64_t at = read->offset; at < end; at += sizeof(struct record))
        ofl->key(keys, at / sizeof(struct record));
}

static const struct ofl_application records = {
    .abi = OUTBOARD_OFFLOAD_ABI,
    .size = sizeof records,
    .name = "records",
    .messages = {.kind = OFL_COUNTED, .bytes = sizeof(struct head), .width = 4},
    .answers = {.kind = OFL_COUNTED, .bytes = sizeof(struct head), .width = 4},
    .off_pred = off_pred,
    .off_func = off_func,
    .cache = cache,
    .invalidate = invalidate,
};

const struct ofl_application *outboard_offload(const struct ofl_calls *calls)
{
    if (calls->abi != OUTBOARD_OFFLOAD_ABI)
        return NULL;
    ofl = calls;
    return &records;
}
