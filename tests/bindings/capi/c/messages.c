/* Messages between ranks: all types, all lengths, nested ones, without a copy, names, threads. */
#include "test.h"
#include <pthread.h>

static unsigned long rank, size;

/* A mailbox of this rank, and clones of all ranks' mailboxes. */
static deck_mbox_t inbox, *out;

static void connect_all(const char *what)
{
    char name[64];
    unsigned long peer;

    snprintf(name, sizeof name, "%s %lu", what, rank);
    OK(deck_mbox_create(&inbox, name));
    for (peer = 0; peer < size; peer++) {
        snprintf(name, sizeof name, "%s %lu", what, peer);
        OK(deck_mbox_clone(&out[peer], name));
    }
}

static void disconnect_all(void)
{
    unsigned long peer;

    OK(deck_barrier());
    for (peer = 0; peer < size; peer++)
        OK(deck_mbox_destroy(&out[peer]));
    OK(deck_mbox_destroy(&inbox));
}

/* Each rank posts to the next one, and gets the same messages from the previous one. */
static void all_types(void)
{
    char c = 'c', c2;
    unsigned char uc = 200, uc2;
    short s = -3, s2;
    unsigned short us = 60000, us2;
    int i[3] = {1, -2, 3}, i2[3];
    unsigned int ui = 4000000000U, ui2;
    long l = -(1L << 40), l2;
    unsigned long ul = 1UL << 63, ul2;
    long long ll = -5, ll2;
    unsigned long long ull = 6, ull2;
    float f = 1.5F, f2;
    double d[2] = {2.5, -2.5}, d2[2];
    deck_msg_t msg, inner, inner2[2];
    unsigned long n;

    OK(deck_msg_create(&msg, 300));
    OK(deck_msg_create(&inner, 16));
    for (n = 0; n < 2; n++)
        OK(deck_msg_create(&inner2[n], 16));
    OK(deck_msg_pack(&inner, DECK_CHAR, "inside", 7));

    OK(deck_msg_pack(&msg, DECK_CHAR, &c, 1));
    OK(deck_msg_pack(&msg, DECK_UCHAR, &uc, 1));
    OK(deck_msg_pack(&msg, DECK_SHORT, &s, 1));
    OK(deck_msg_pack(&msg, DECK_USHORT, &us, 1));
    OK(deck_msg_pack(&msg, DECK_INT, i, 3));
    OK(deck_msg_pack(&msg, DECK_UINT, &ui, 1));
    OK(deck_msg_pack(&msg, DECK_LONG, &l, 1));
    OK(deck_msg_pack(&msg, DECK_ULONG, &ul, 1));
    OK(deck_msg_pack(&msg, DECK_LONGLONG, &ll, 1));
    OK(deck_msg_pack(&msg, DECK_ULONGLONG, &ull, 1));
    OK(deck_msg_pack(&msg, DECK_FLOAT, &f, 1));
    OK(deck_msg_pack(&msg, DECK_DOUBLE, d, 2));
    HOLDS(msg.datalen == 1 + 1 + 2 + 2 + 12 + 4 + 4 * 8 + 4 + 16);
    OK(deck_msg_pack(&msg, DECK_MSG, &inner, 1));
    OK(deck_msg_pack(&msg, DECK_MSG, &inner, 1));
    GIVES(DECK_EINVAL, deck_msg_pack(&msg, DECK_MSG, &msg, 1));
    msg.tag = (unsigned)rank + 1;
    OK(deck_mbox_post(&out[(rank + 1) % size], &msg));
    OK(deck_msg_clear(&msg));

    OK(deck_mbox_retrv(&inbox, &msg));
    HOLDS(msg.source == (rank + size - 1) % size && msg.tag == msg.source + 1);
    OK(deck_msg_unpack(&msg, DECK_CHAR, &c2, 1));
    OK(deck_msg_unpack(&msg, DECK_UCHAR, &uc2, 1));
    OK(deck_msg_unpack(&msg, DECK_SHORT, &s2, 1));
    OK(deck_msg_unpack(&msg, DECK_USHORT, &us2, 1));
    OK(deck_msg_unpack(&msg, DECK_INT, i2, 3));
    OK(deck_msg_unpack(&msg, DECK_UINT, &ui2, 1));
    OK(deck_msg_unpack(&msg, DECK_LONG, &l2, 1));
    OK(deck_msg_unpack(&msg, DECK_ULONG, &ul2, 1));
    OK(deck_msg_unpack(&msg, DECK_LONGLONG, &ll2, 1));
    OK(deck_msg_unpack(&msg, DECK_ULONGLONG, &ull2, 1));
    OK(deck_msg_unpack(&msg, DECK_FLOAT, &f2, 1));
    OK(deck_msg_unpack(&msg, DECK_DOUBLE, d2, 2));
    HOLDS(c == c2 && uc == uc2 && s == s2 && us == us2 && memcmp(i, i2, sizeof i) == 0 && ui == ui2);
    HOLDS(l == l2 && ul == ul2 && ll == ll2 && ull == ull2 && memcmp(&f, &f2, sizeof f) == 0);
    HOLDS(memcmp(d, d2, sizeof d) == 0);
    OK(deck_msg_unpack(&msg, DECK_MSG, inner2, 2));
    HOLDS(inner2[0].datalen == 7 && strcmp(inner2[1].buf, "inside") == 0);
    GIVES(DECK_EINVAL, deck_msg_unpack(&msg, DECK_CHAR, &c2, 1));
    OK(deck_msg_reset(&msg));
    OK(deck_msg_unpack(&msg, DECK_CHAR, &c2, 1));
    HOLDS(c2 == 'c');

    for (n = 0; n < 2; n++)
        OK(deck_msg_destroy(&inner2[n]));
    OK(deck_msg_destroy(&inner));
    OK(deck_msg_destroy(&msg));
}

static const unsigned long LENGTHS[] = {0, 1, 8, 40, 41, 64, 4096, 65536, 1048577, 3000000};
#define COUNT (sizeof LENGTHS / sizeof *LENGTHS)

static char byte_of(unsigned long from, unsigned long nth, unsigned long at)
{
    return (char)(from * 31 + nth * 7 + at);
}

/* When a post returns, its memory may be written. */
static void all_lengths(void)
{
    deck_msg_t msg;
    unsigned long nth, at, to = (rank + 1) % size, from = (rank + size - 1) % size;

    OK(deck_msg_create(&msg, LENGTHS[COUNT - 1]));
    for (nth = 0; nth < COUNT; nth++) {
        for (at = 0; at < LENGTHS[nth]; at++)
            msg.buf[at] = byte_of(rank, nth, at);
        msg.datalen = LENGTHS[nth];
        OK(deck_mbox_post(&out[to], &msg));
        memset(msg.buf, 0, msg.size);
    }
    for (nth = 0; nth < COUNT; nth++) {
        OK(deck_mbox_retrv(&inbox, &msg));
        HOLDS(msg.datalen == LENGTHS[nth] && msg.source == from);
        for (at = 0; at < msg.datalen; at++)
            HOLDS(msg.buf[at] == byte_of(from, nth, at));
    }
    OK(deck_mbox_flush(&out[to]));
    OK(deck_msg_destroy(&msg));
}

/* The views are held until all messages have arrived, and are released in another order. */
static void without_copies(void)
{
    deck_view_t views[COUNT];
    deck_buf_t buf;
    unsigned long nth, at, to = (rank + 1) % size, from = (rank + size - 1) % size;

    for (nth = 0; nth < COUNT; nth++) {
        OK(deck_buf_alloc(&buf, LENGTHS[nth]));
        HOLDS(buf.size == LENGTHS[nth]);
        for (at = 0; at < buf.size; at++) {
            HOLDS(buf.data[at] == 0);
            buf.data[at] = byte_of(rank, nth, at);
        }
        buf.tag = (unsigned)nth;
        OK(deck_mbox_post_buf(&out[to], &buf));
        HOLDS(buf.data == NULL);
        GIVES(DECK_EINVAL, deck_mbox_post_buf(&out[to], &buf));
    }
    for (nth = 0; nth < COUNT; nth++)
        OK(deck_mbox_retrv_view_timeout(&inbox, &views[nth], 60000000));
    for (nth = 0; nth < COUNT; nth++) {
        HOLDS(views[nth].size == LENGTHS[nth] && views[nth].source == from && views[nth].tag == nth);
        for (at = 0; at < views[nth].size; at++)
            HOLDS(views[nth].data[at] == byte_of(from, nth, at));
        GIVES(DECK_EINVAL, deck_mbox_retrv_view(&inbox, &views[nth]));
    }
    for (nth = COUNT; nth-- > 0;) {
        OK(deck_view_release(&views[nth]));
        GIVES(DECK_EINVAL, deck_view_release(&views[nth]));
    }
}

static void naming(void)
{
    char name[32];
    double value, fetched;
    unsigned long peer, len;

    value = (double)rank / 2;
    snprintf(name, sizeof name, "half of %lu", rank);
    OK(deck_naming_bind(name, &value, sizeof value));
    for (peer = 0; peer < size; peer++) {
        snprintf(name, sizeof name, "half of %lu", peer);
        len = 3;
        GIVES(DECK_EINVAL, deck_naming_fetch(name, &fetched, &len));
        HOLDS(len == sizeof fetched);
        OK(deck_naming_fetch(name, &fetched, &len));
        HOLDS(len == sizeof fetched && fetched > (double)peer / 2 - 0.1 && fetched < (double)peer / 2 + 0.1);
    }
}

#define THREADS 4
#define EACH 500

/* Several threads post through one clone, and several retrieve from one mailbox. */
static void *post_many(void *arg)
{
    deck_msg_t msg;
    long n;

    OK(deck_msg_create(&msg, sizeof n));
    for (n = 0; n < EACH; n++) {
        OK(deck_msg_clear(&msg));
        OK(deck_msg_pack(&msg, DECK_LONG, &n, 1));
        OK(deck_mbox_post(&out[(rank + 1) % size], &msg));
    }
    OK(deck_msg_destroy(&msg));
    return arg;
}

static void *retrieve_many(void *sum)
{
    deck_msg_t msg;
    long n, value;

    OK(deck_msg_create(&msg, sizeof value));
    for (n = 0; n < EACH; n++) {
        OK(deck_mbox_retrv(&inbox, &msg));
        OK(deck_msg_unpack(&msg, DECK_LONG, &value, 1));
        *(long *)sum += value;
    }
    OK(deck_msg_destroy(&msg));
    return sum;
}

static void threads(void)
{
    pthread_t posting[THREADS], retrieving[THREADS];
    long sums[THREADS] = {0}, sum = 0;
    int n;

    for (n = 0; n < THREADS; n++) {
        HOLDS(pthread_create(&posting[n], NULL, post_many, NULL) == 0);
        HOLDS(pthread_create(&retrieving[n], NULL, retrieve_many, &sums[n]) == 0);
    }
    for (n = 0; n < THREADS; n++) {
        HOLDS(pthread_join(posting[n], NULL) == 0);
        HOLDS(pthread_join(retrieving[n], NULL) == 0);
        sum += sums[n];
    }
    HOLDS(sum == THREADS * (EACH * (EACH - 1L) / 2));
}

/* Memory is taken as it is used: a message of 1 GiB is made at once, and costs nothing yet. */
static void untouched(void)
{
    deck_msg_t msg;
    char line[100];
    unsigned long resident = 0, pages = 0;
    FILE *file;

    OK(deck_msg_create(&msg, 1UL << 30));
    file = fopen("/proc/self/statm", "r");
    HOLDS(file && fgets(line, sizeof line, file) && sscanf(line, "%lu %lu", &pages, &resident) == 2);
    fclose(file);
    HOLDS(resident < (512UL << 20) / 4096);
    OK(deck_msg_destroy(&msg));
}

int main(int argc, char **argv)
{
    OK(deck_init(&argc, &argv));
    rank = deck_node();
    size = deck_numnodes();
    out = malloc(size * sizeof *out);
    HOLDS(out != NULL);

    connect_all("messages");
    all_types();
    all_lengths();
    without_copies();
    naming();
    threads();
    if (rank == 0)
        untouched();
    OK(deck_barrier_timeout(60000000));
    disconnect_all();
    free(out);
    OK(deck_done());
    if (rank == 0)
        puts("all messages are as they should be");
    return 0;
}
