/* Several threads: a wait of one neither delays the others' mistakes nor is ended by them. */
#include "test.h"
#include <time.h>

static deck_mbox_t box;
static deck_semaph_t started, looked;

static void *joins_itself(void *thread)
{
    OK(deck_semaph_wait(&started));
    GIVES(DECK_EINVAL, deck_thread_join(thread, NULL));
    SAYS("itself");
    OK(deck_semaph_post(&looked));
    return thread;
}

/* A thread that may join it can still do so. */
static void join(void)
{
    deck_thread_t thread;
    void *result = NULL;

    OK(deck_semaph_create(&started, "started", 0));
    OK(deck_semaph_create(&looked, "looked", 0));
    OK(deck_thread_create(&thread, joins_itself, &thread));
    OK(deck_semaph_post(&started));
    OK(deck_semaph_wait(&looked));
    OK(deck_thread_join(&thread, &result));
    HOLDS(result == &thread);
    OK(deck_semaph_destroy(&looked));
    OK(deck_semaph_destroy(&started));
}

static void *retrieves(void *result)
{
    deck_msg_t msg;

    OK(deck_msg_create(&msg, 8));
    OK(deck_mbox_retrv(&box, &msg));
    OK(deck_msg_destroy(&msg));
    return result;
}

/* A call that another thread's action ends. */
struct end {
    int code;
    const char *words;
};

static void *waits_in_vain(void *arg)
{
    struct end *end = arg;
    deck_msg_t msg;

    OK(deck_msg_create(&msg, 8));
    GIVES(end->code, deck_mbox_retrv(&box, &msg));
    SAYS(end->words);
    OK(deck_msg_destroy(&msg));
    return arg;
}

/* Waits until the other thread is in its call. */
static void wait_until_busy(deck_msg_t *msg)
{
    do {
        GIVES(DECK_EAGAIN, deck_mbox_tryretrv(&box, msg));
    } while (!strstr(deck_errmsg(), "another thread"));
}

/* A structure that refers to nothing is detected at once, whichever thread uses the object in the place that its bytes name. */
static void no_structure(deck_msg_t *msg, deck_mbox_t destroyed)
{
    deck_mbox_t zeroes;

    memset(&zeroes, 0, sizeof zeroes);
    GIVES(DECK_EINVAL, deck_mbox_tryretrv(&zeroes, msg));
    GIVES(DECK_EINVAL, deck_mbox_retrv(&zeroes, msg));
    GIVES(DECK_EINVAL, deck_mbox_destroy(&zeroes));
    GIVES(DECK_EINVAL, deck_mbox_tryretrv(&destroyed, msg));
    GIVES(DECK_EINVAL, deck_mbox_retrv(&destroyed, msg));
}

int main(void)
{
    const struct timespec a_while = {0, 300000000};
    deck_msg_t msg;
    deck_mbox_t clone, first;
    deck_view_t view;
    deck_thread_t thread;
    struct end destroyed = {DECK_EINVAL, "was destroyed"}, done = {DECK_ESTATE, "has finished"};
    void *result = NULL;

    OK(deck_init(NULL, NULL));
    join();
    OK(deck_msg_create(&msg, 8));
    OK(deck_mbox_create(&box, "threads"));
    first = box;
    OK(deck_mbox_destroy(&box));
    OK(deck_mbox_create(&box, "threads"));
    OK(deck_mbox_clone(&clone, "threads"));
    OK(deck_thread_create(&thread, retrieves, &msg));
    wait_until_busy(&msg);
    no_structure(&msg, first);
    /* Each thread waits for messages as long as its own limit. */
    GIVES(DECK_ETIMEDOUT, deck_mbox_retrv_timeout(&box, &msg, 10000));
    SAYS("to post");
    GIVES(DECK_ETIMEDOUT, deck_mbox_retrv_view_timeout(&box, &view, 10000));
    SAYS("to post");
    OK(deck_mbox_post(&clone, &msg));
    OK(deck_thread_join(&thread, &result));
    HOLDS(result == &msg);

    OK(deck_thread_create(&thread, waits_in_vain, &destroyed));
    wait_until_busy(&msg);
    OK(deck_mbox_destroy(&box));
    OK(deck_thread_join(&thread, NULL));

    OK(deck_mbox_create(&box, "threads"));
    OK(deck_thread_create(&thread, waits_in_vain, &done));
    wait_until_busy(&msg);
    /* A wait of more than 100 ms sleeps until it is woken. */
    nanosleep(&a_while, NULL);
    OK(deck_done());
    OK(deck_thread_join(&thread, NULL));
    OK(deck_msg_destroy(&msg));
    puts("all threads are as they should be");
    return 0;
}
