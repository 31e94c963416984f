/* Wrong calls: each returns a code and sets a text, and has no other effect. */
#include "test.h"
#include <limits.h>
#include <pthread.h>

static void before_init(void)
{
    deck_msg_t msg;
    deck_mbox_t box;
    deck_buf_t buf;
    unsigned long len = 0;

    memset(&msg, 0, sizeof msg);
    memset(&box, 0, sizeof box);
    GIVES(DECK_ESTATE, deck_done());
    SAYS("deck_done: deck_init has not been called");
    GIVES(DECK_ESTATE, deck_barrier());
    GIVES(DECK_ESTATE, deck_msg_create(&msg, 8));
    GIVES(DECK_ESTATE, deck_mbox_create(&box, "box"));
    GIVES(DECK_ESTATE, deck_mbox_clone(&box, "box"));
    GIVES(DECK_ESTATE, deck_buf_alloc(&buf, 8));
    GIVES(DECK_ESTATE, deck_naming_bind("name", "x", 1));
    GIVES(DECK_ESTATE, deck_naming_tryfetch("name", NULL, &len));
    HOLDS(deck_numnodes() == 0 && deck_node() == ULONG_MAX);
    GIVES(DECK_EINVAL, deck_msg_destroy(&msg));
    GIVES(DECK_EINVAL, deck_msg_clear(&msg));
    GIVES(DECK_EINVAL, deck_mbox_destroy(&box));
    GIVES(DECK_EINVAL, deck_mbox_post(&box, &msg));
    memset(&msg, 0xff, sizeof msg);
    memset(&box, 0xff, sizeof box);
    GIVES(DECK_EINVAL, deck_msg_clear(&msg));
    GIVES(DECK_EINVAL, deck_mbox_destroy(&box));
}

static void null_pointers(void)
{
    deck_msg_t msg, none;
    deck_mbox_t box, clone;
    unsigned long len = 7, one = 1;
    char byte = 0;
    int n;

    GIVES(DECK_EINVAL, deck_msg_create(NULL, 8));
    SAYS("deck_msg_create: the pointer to the deck_msg_t is NULL");
    GIVES(DECK_EINVAL, deck_msg_destroy(NULL));
    GIVES(DECK_EINVAL, deck_msg_clear(NULL));
    GIVES(DECK_EINVAL, deck_msg_reset(NULL));
    GIVES(DECK_EINVAL, deck_msg_pack(NULL, DECK_CHAR, &byte, 1));
    GIVES(DECK_EINVAL, deck_mbox_create(NULL, "box"));
    GIVES(DECK_EINVAL, deck_mbox_create(&box, NULL));
    SAYS("name is NULL");
    GIVES(DECK_EINVAL, deck_mbox_clone(NULL, "box"));
    GIVES(DECK_EINVAL, deck_mbox_destroy(NULL));
    GIVES(DECK_EINVAL, deck_mbox_post(NULL, NULL));
    GIVES(DECK_EINVAL, deck_mbox_retrv(NULL, NULL));
    GIVES(DECK_EINVAL, deck_naming_bind(NULL, "x", 1));
    GIVES(DECK_EINVAL, deck_naming_bind("name", NULL, 1));
    GIVES(DECK_EINVAL, deck_naming_fetch("name", NULL, NULL));
    GIVES(DECK_EINVAL, deck_view_release(NULL));
    GIVES(DECK_EINVAL, deck_buf_free(NULL));

    /* The result is the same whether something is available or not. */
    OK(deck_mbox_create(&box, "null"));
    OK(deck_mbox_clone(&clone, "null"));
    OK(deck_msg_create(&msg, 8));
    OK(deck_msg_create(&none, 0));
    OK(deck_msg_pack(&msg, DECK_CHAR, &byte, 1));
    for (n = 0; n < 2; n++) {
        GIVES(DECK_EINVAL, deck_mbox_length(&box, NULL));
        SAYS("len is NULL");
        GIVES(DECK_EINVAL, deck_mbox_length(NULL, &len));
        GIVES(DECK_EINVAL, deck_mbox_length(&clone, &len));
        GIVES(DECK_EINVAL, deck_mbox_tryretrv(&box, NULL));
        GIVES(DECK_EINVAL, deck_mbox_retrv_timeout(&box, NULL, 0));
        GIVES(DECK_EINVAL, deck_mbox_retrv_view_timeout(&box, NULL, 0));
        GIVES(DECK_EINVAL, deck_mbox_trypost(&clone, NULL));
        GIVES(DECK_EINVAL, deck_mbox_post_buf(&clone, NULL));
        GIVES(DECK_EINVAL, deck_naming_tryfetch("unbound", &byte, NULL));
        GIVES(DECK_EINVAL, deck_naming_tryfetch("unbound", NULL, &one));
        /* Waits for the first message, which does not fit and stays: over a network a post arrives later. */
        OK(deck_mbox_post(&clone, &msg));
        GIVES(DECK_EINVAL, deck_mbox_retrv(&box, &none));
    }
    OK(deck_mbox_length(&box, &len));
    HOLDS(len == 1);
    OK(deck_msg_destroy(&none));
    OK(deck_mbox_destroy(&clone));
    OK(deck_mbox_destroy(&box));

    OK(deck_msg_clear(&msg));
    GIVES(DECK_EINVAL, deck_msg_pack(&msg, DECK_CHAR, NULL, 1));
    OK(deck_msg_pack(&msg, DECK_CHAR, NULL, 0));
    HOLDS(msg.datalen == 0);
    OK(deck_msg_pack(&msg, DECK_CHAR, &byte, 1));
    GIVES(DECK_EINVAL, deck_msg_unpack(&msg, DECK_CHAR, NULL, 1));
    OK(deck_msg_destroy(&msg));
}

static void twice(void)
{
    deck_msg_t msg, copy;
    deck_mbox_t box, other;

    GIVES(DECK_ESTATE, deck_init(NULL, NULL));
    SAYS("a process is one rank");

    OK(deck_msg_create(&msg, 8));
    GIVES(DECK_EINVAL, deck_msg_create(&msg, 8));
    SAYS("created already");
    copy = msg;
    OK(deck_msg_destroy(&msg));
    HOLDS(msg.buf == NULL && msg.cursor == NULL && msg.size == 0);
    GIVES(DECK_EINVAL, deck_msg_destroy(&msg));
    GIVES(DECK_EINVAL, deck_msg_destroy(&copy));
    GIVES(DECK_EINVAL, deck_msg_clear(&copy));
    OK(deck_msg_create(&msg, 8));
    OK(deck_msg_destroy(&msg));

    OK(deck_mbox_create(&box, "twice"));
    GIVES(DECK_EINVAL, deck_mbox_create(&box, "another"));
    GIVES(DECK_EEXIST, deck_mbox_create(&other, "twice"));
    SAYS("\"twice\" exists already, on rank 0");
    OK(deck_mbox_destroy(&box));
    GIVES(DECK_EINVAL, deck_mbox_destroy(&box));
    OK(deck_mbox_create(&other, "twice"));
    OK(deck_mbox_destroy(&other));
}

static void names(void)
{
    deck_mbox_t box;
    char name[300];
    unsigned long len = 0;

    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    GIVES(DECK_EINVAL, deck_mbox_create(&box, name));
    GIVES(DECK_EINVAL, deck_mbox_create(&box, ""));
    GIVES(DECK_EINVAL, deck_mbox_create(&box, "\xff"));
    SAYS("UTF-8");
    GIVES(DECK_ENOENT, deck_mbox_clone_timeout(&box, "nobody's", 1000));
    SAYS("\"nobody's\"");
    GIVES(DECK_ENOENT, deck_naming_tryfetch("unbound", name, &len));
    SAYS("no rank has bound the name \"unbound\"");
    GIVES(DECK_ENOENT, deck_naming_tryfetch("deck/unbound", name, &len));
    SAYS("the name \"deck/unbound\"");
    GIVES(DECK_EINVAL, deck_naming_bind("", "x", 1));
}

/* Counts that exceed any memory: nothing is allocated for them, and nothing is read. */
static void wrong_counts(void)
{
    const unsigned long counts[] = {ULONG_MAX, LONG_MAX, 1UL << 61, 1UL << 50, 1UL << 40};
    static char value[(64 << 10) + 1];
    const unsigned long self = 0;
    deck_group_t group;
    deck_shmem_t shmem;
    deck_semaph_t semaph;
    deck_buf_t buf;
    deck_msg_t msg;
    size_t n;

    OK(deck_msg_create(&msg, 8));
    for (n = 0; n < sizeof counts / sizeof *counts; n++) {
        GIVES(DECK_EINVAL, deck_naming_bind("counts", &self, counts[n]));
        GIVES(DECK_EINVAL, deck_group_create(&group, "counts", &self, counts[n]));
        GIVES(DECK_EINVAL, deck_msg_pack(&msg, DECK_DOUBLE, &self, counts[n]));
        GIVES(DECK_EINVAL, deck_msg_unpack(&msg, DECK_CHAR, &msg, counts[n]));
        GIVES(DECK_EINVAL, deck_semaph_create(&semaph, "counts", counts[n]));
        GIVES(DECK_EINVAL, deck_buf_alloc(&buf, counts[n]));
        HOLDS(deck_shmem_create(&shmem, "counts", counts[n]) < 0);
    }
    OK(deck_msg_destroy(&msg));
    OK(deck_naming_bind("counts", value, 64 << 10));
    GIVES(DECK_EINVAL, deck_naming_bind("counts", value, (64 << 10) + 1));
    SAYS("at most 65536");
}

static void wrong_ends(void)
{
    deck_mbox_t box, clone;
    deck_msg_t msg;
    deck_view_t view;
    deck_buf_t buf;

    OK(deck_mbox_create(&box, "ends"));
    OK(deck_mbox_clone(&clone, "ends"));
    OK(deck_msg_create(&msg, 8));
    GIVES(DECK_EINVAL, deck_mbox_post(&box, &msg));
    SAYS("deck_mbox_clone");
    GIVES(DECK_EINVAL, deck_mbox_retrv(&clone, &msg));
    SAYS("only the owner");
    GIVES(DECK_EINVAL, deck_mbox_retrv_view(&clone, &view));
    GIVES(DECK_EAGAIN, deck_mbox_tryretrv(&box, &msg));
    GIVES(DECK_ETIMEDOUT, deck_mbox_retrv_timeout(&box, &msg, 1000));
    SAYS("\"ends\"");

    /* A buffer that was not posted is still there. */
    OK(deck_buf_alloc(&buf, 100));
    buf.data[99] = 7;
    GIVES(DECK_EINVAL, deck_mbox_post_buf(&box, &buf));
    HOLDS(buf.data != NULL && buf.size == 100 && buf.data[99] == 7);
    OK(deck_buf_free(&buf));
    GIVES(DECK_EINVAL, deck_buf_free(&buf));
    HOLDS(buf.data == NULL);
    OK(deck_msg_destroy(&msg));
    OK(deck_mbox_destroy(&clone));
    OK(deck_mbox_destroy(&box));
}

static void changed_fields(void)
{
    deck_msg_t msg;
    deck_mbox_t box, clone;
    char *buf;
    double number = 1.5;

    OK(deck_mbox_create(&box, "fields"));
    OK(deck_mbox_clone(&clone, "fields"));
    OK(deck_msg_create(&msg, 8));
    buf = msg.buf;
    msg.datalen = 9;
    GIVES(DECK_EINVAL, deck_mbox_post(&clone, &msg));
    SAYS("datalen is 9");
    GIVES(DECK_EINVAL, deck_msg_pack(&msg, DECK_CHAR, &number, 1));
    GIVES(DECK_EINVAL, deck_msg_unpack(&msg, DECK_CHAR, &number, 1));
    OK(deck_msg_clear(&msg));
    msg.cursor = buf + 1;
    GIVES(DECK_EINVAL, deck_msg_unpack(&msg, DECK_CHAR, &number, 1));
    OK(deck_msg_reset(&msg));
    msg.buf++;
    GIVES(DECK_EINVAL, deck_msg_clear(&msg));
    msg.buf = buf;
    msg.size = 9;
    GIVES(DECK_EINVAL, deck_msg_pack(&msg, DECK_DOUBLE, &number, 1));
    SAYS("changed");
    msg.size = 8;
    OK(deck_msg_pack(&msg, DECK_DOUBLE, &number, 1));
    GIVES(DECK_EINVAL, deck_msg_pack(&msg, DECK_CHAR, &number, 1));
    SAYS("the item has 1 bytes, and the deck_msg_t has 0 left of 8");
    GIVES(DECK_EINVAL, deck_msg_pack(&msg, 99, &number, 1));
    SAYS("no type");
    GIVES(DECK_EINVAL, deck_msg_pack(&msg, DECK_DOUBLE, &number, ULONG_MAX));
    GIVES(DECK_EINVAL, deck_msg_unpack(&msg, DECK_FLOAT, &number, 3));
    SAYS("12 bytes are to be unpacked, and 8 are left");
    HOLDS(msg.cursor == msg.buf);
    OK(deck_msg_destroy(&msg));
    OK(deck_mbox_destroy(&clone));
    OK(deck_mbox_destroy(&box));
    GIVES(DECK_EINVAL, deck_msg_create(&msg, ULONG_MAX));
}

/* A structure may be copied anywhere, but is created where the compiler would put it. */
static void odd_addresses(void)
{
    char bytes[1 + sizeof(deck_msg_t) + sizeof(deck_buf_t) + sizeof(deck_shmem_t)];
    deck_shmem_t shmem;
    deck_buf_t buf;
    deck_msg_t msg;
    void *odd = bytes + 1;

    GIVES(DECK_EINVAL, deck_msg_create(odd, 8));
    SAYS("not aligned");
    OK(deck_msg_create(&msg, 8));
    memcpy(odd, &msg, sizeof msg);
    OK(deck_msg_pack(odd, DECK_CHAR, "odd", 4));
    OK(deck_msg_unpack(odd, DECK_CHAR, &msg.tag, 4));
    HOLDS(memcmp(&msg.tag, "odd", 4) == 0);
    OK(deck_msg_destroy(odd));
    OK(deck_buf_alloc(&buf, 8));
    memcpy(odd, &buf, sizeof buf);
    GIVES(DECK_EINVAL, deck_mbox_post_buf(NULL, odd));
    OK(deck_buf_free(odd));
    OK(deck_shmem_create(&shmem, "odd", 8));
    memcpy(odd, &shmem, sizeof shmem);
    OK(deck_shmem_lock(odd));
    memcpy(&shmem, odd, sizeof shmem);
    HOLDS(shmem.addr != NULL);
    OK(deck_shmem_unlock(odd));
    OK(deck_shmem_destroy(odd));
}

/* A copy of a structure is the same message. */
static void into_itself(void)
{
    deck_msg_t msg, copy;
    int number = 7;

    OK(deck_msg_create(&msg, 64));
    OK(deck_msg_pack(&msg, DECK_INT, &number, 1));
    copy = msg;
    GIVES(DECK_EINVAL, deck_msg_pack(&msg, DECK_MSG, &msg, 1));
    GIVES(DECK_EINVAL, deck_msg_pack(&msg, DECK_MSG, &copy, 1));
    SAYS("into itself");
    HOLDS(msg.datalen == sizeof number);
    GIVES(DECK_EINVAL, deck_msg_unpack(&msg, DECK_MSG, &msg, 1));
    GIVES(DECK_EINVAL, deck_msg_unpack(&msg, DECK_MSG, &copy, 1));
    SAYS("into itself");
    OK(deck_msg_destroy(&copy));
    GIVES(DECK_EINVAL, deck_msg_destroy(&msg));
}

/* A message that does not fit stays, and is the next one. */
static void too_small(void)
{
    deck_msg_t small, large;
    deck_mbox_t box, clone;
    unsigned long len = 0, n;

    OK(deck_mbox_create(&box, "small"));
    OK(deck_mbox_clone(&clone, "small"));
    OK(deck_msg_create(&small, 8));
    OK(deck_msg_create(&large, 100000));
    GIVES(DECK_EAGAIN, deck_mbox_length(&box, &len));
    for (n = 0; n < large.size; n++)
        large.buf[n] = (char)n;
    large.datalen = large.size;
    large.tag = 77;
    OK(deck_mbox_post(&clone, &large));
    OK(deck_msg_pack(&small, DECK_CHAR, "next", 5));
    OK(deck_mbox_post(&clone, &small));

    memset(large.buf, 0, large.size);
    OK(deck_msg_clear(&large));
    GIVES(DECK_EINVAL, deck_mbox_retrv(&box, &small));
    SAYS("100000 bytes");
    HOLDS(small.datalen == 5 && strcmp(small.buf, "next") == 0);
    GIVES(DECK_EINVAL, deck_mbox_tryretrv(&box, &small));
    OK(deck_mbox_length(&box, &len));
    HOLDS(len == 100000);
    OK(deck_mbox_retrv(&box, &large));
    HOLDS(large.datalen == 100000 && large.cursor == large.buf && large.tag == 77 && large.source == 0);
    for (n = 0; n < large.size; n++)
        HOLDS(large.buf[n] == (char)n);
    OK(deck_msg_clear(&small));
    OK(deck_mbox_retrv_timeout(&box, &small, 10000000));
    HOLDS(small.datalen == 5 && strcmp(small.buf, "next") == 0);
    GIVES(DECK_EAGAIN, deck_mbox_tryretrv(&box, &small));
    OK(deck_msg_destroy(&large));
    OK(deck_msg_destroy(&small));
    OK(deck_mbox_destroy(&clone));
    OK(deck_mbox_destroy(&box));
}

/* Memory is aligned and zeroed, whatever its size. */
static void sizes(void)
{
    const unsigned long sizes[] = {0, 1, 63, 4096, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 3000001};
    size_t n;

    for (n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        deck_msg_t msg;
        unsigned long at;
        int round;

        for (round = 0; round < 3; round++) {
            OK(deck_msg_create(&msg, sizes[n]));
            HOLDS((size_t)msg.buf % 64 == 0 && msg.size == sizes[n] && msg.datalen == 0 && msg.tag == 0);
            for (at = 0; at < msg.size; at++)
                HOLDS(msg.buf[at] == 0);
            memset(msg.buf, 0xff, msg.size);
            OK(deck_msg_destroy(&msg));
        }
    }
}

/* Creates more objects than the tables hold at first; each keeps its identity. */
static void many(void)
{
    static deck_msg_t msgs[300];
    unsigned long n, round;

    for (round = 0; round < 2; round++) {
        for (n = 0; n < 300; n++) {
            OK(deck_msg_create(&msgs[n], 8));
            OK(deck_msg_pack(&msgs[n], DECK_ULONG, &n, 1));
        }
        for (n = 0; n < 300; n++) {
            unsigned long found = 0;
            OK(deck_msg_unpack(&msgs[n], DECK_ULONG, &found, 1));
            HOLDS(found == n);
            OK(deck_msg_destroy(&msgs[n]));
        }
        for (n = 0; n < 300; n++)
            GIVES(DECK_EINVAL, deck_msg_clear(&msgs[n]));
    }
}

static void gone(void)
{
    deck_mbox_t box, clone;
    deck_msg_t msg;
    int result;

    OK(deck_mbox_create(&box, "gone"));
    OK(deck_mbox_clone(&clone, "gone"));
    OK(deck_msg_create(&msg, 8));
    OK(deck_mbox_destroy(&box));
    /* Over a network the clone learns it a moment later; messages posted meanwhile are not delivered. */
    do {
        result = deck_mbox_post(&clone, &msg);
    } while (result == DECK_OK || result == DECK_EUNDELIVERED);
    GIVES(DECK_EGONE, result);
    SAYS("\"gone\" is gone");
    OK(deck_msg_destroy(&msg));
    OK(deck_mbox_destroy(&clone));
}

static void *of_a_thread(void *words)
{
    /* Another thread's error does not appear in this thread. */
    if (strlen(deck_errmsg()) != 0)
        return NULL;
    GIVES(DECK_EINVAL, deck_msg_clear(NULL));
    return words;
}

static void threads(void)
{
    pthread_t thread;
    void *result = NULL;

    GIVES(DECK_EINVAL, deck_mbox_destroy(NULL));
    HOLDS(pthread_create(&thread, NULL, of_a_thread, "done") == 0);
    HOLDS(pthread_join(thread, &result) == 0 && result != NULL);
    SAYS("deck_mbox_destroy");
}

static void texts(void)
{
    int code;

    for (code = DECK_EINTERNAL; code <= DECK_OK; code++) {
        HOLDS(strlen(deck_strerror(code)) > 0);
        HOLDS(strstr(deck_strerror(code), "no error code") == NULL);
    }
    HOLDS(strstr(deck_strerror(1), "no error code") != NULL);
}

int main(int argc, char **argv)
{
    deck_msg_t kept;
    deck_mbox_t box;

    texts();
    before_init();
    OK(deck_init(&argc, &argv));
    if (deck_node() == 0) {
        null_pointers();
        twice();
        names();
        wrong_counts();
        wrong_ends();
        changed_fields();
        into_itself();
        odd_addresses();
        too_small();
        gone();
        sizes();
        many();
        threads();
    }
    OK(deck_msg_create(&kept, 8));
    if (deck_node() == 0)
        OK(deck_mbox_create(&box, "kept"));
    OK(deck_done());

    GIVES(DECK_ESTATE, deck_done());
    GIVES(DECK_ESTATE, deck_init(NULL, NULL));
    GIVES(DECK_ESTATE, deck_barrier());
    SAYS("the job is over");
    if (argc > 0)
        GIVES(DECK_EINVAL, deck_mbox_destroy(&box));
    OK(deck_msg_clear(&kept));
    OK(deck_msg_destroy(&kept));
    puts("all errors are as they should be");
    return 0;
}
