/* Threads, semaphores and shared memory among ranks and their threads. */
#include "test.h"

#define THREADS 3
#define ROUNDS 200

static deck_semaph_t turns, done;
static deck_shmem_t counter;

/* Only one thread of all ranks adds at a time. */
static void *add(void *arg)
{
    deck_shmem_t mine = counter;
    int n;

    for (n = 0; n < ROUNDS; n++) {
        OK(deck_semaph_wait(&turns));
        OK(deck_shmem_lock(&mine));
        HOLDS(mine.addr != NULL);
        ++*(unsigned long *)mine.addr;
        OK(deck_shmem_unlock(&mine));
        HOLDS(mine.addr == NULL);
        OK(deck_semaph_post(&turns));
    }
    OK(deck_semaph_post(&done));
    return arg;
}

static void *pass(void *semaph)
{
    OK(deck_semaph_post((deck_semaph_t *)semaph));
    return NULL;
}

static void errors(void)
{
    deck_thread_t thread;
    deck_semaph_t none;
    deck_shmem_t nowhere;

    memset(&none, 0, sizeof none);
    memset(&nowhere, 0, sizeof nowhere);
    GIVES(DECK_EINVAL, deck_thread_create(&thread, NULL, NULL));
    GIVES(DECK_EINVAL, deck_thread_create(NULL, add, NULL));
    GIVES(DECK_EINVAL, deck_thread_join(NULL, NULL));
    GIVES(DECK_EINVAL, deck_semaph_wait(&none));
    GIVES(DECK_EINVAL, deck_semaph_create(&none, NULL, 1));
    GIVES(DECK_EINVAL, deck_semaph_create(&none, "much", 1UL << 40));
    GIVES(DECK_EINVAL, deck_shmem_lock(&nowhere));
    GIVES(DECK_EINVAL, deck_shmem_create(&counter, "again", 8));
    GIVES(DECK_EINVAL, deck_shmem_unlock(&counter));
    SAYS("no thread of this rank has locked");
    GIVES(DECK_EINVAL, deck_semaph_destroy(NULL));
}

int main(int argc, char **argv)
{
    deck_thread_t threads[THREADS];
    deck_semaph_t empty;
    char words[] = "result";
    void *result = NULL;
    unsigned long n, size;

    OK(deck_init(&argc, &argv));
    size = deck_numnodes();
    OK(deck_semaph_create(&turns, "turns", 2));
    OK(deck_semaph_create(&done, "done", 0));
    OK(deck_shmem_create(&counter, "counter", sizeof(unsigned long)));
    HOLDS(counter.addr == NULL && counter.size == sizeof(unsigned long));
    errors();

    for (n = 0; n < THREADS; n++)
        OK(deck_thread_create(&threads[n], add, words));
    for (n = 0; n < THREADS; n++) {
        OK(deck_thread_join(&threads[n], &result));
        HOLDS(result == words);
        GIVES(DECK_EINVAL, deck_thread_join(&threads[n], NULL));
    }
    OK(deck_shmem_barrier(&counter));
    OK(deck_shmem_lock_timeout(&counter, 60000000));
    HOLDS(*(unsigned long *)counter.addr == size * THREADS * ROUNDS);
    GIVES(DECK_EAGAIN, deck_shmem_trylock(&counter));
    OK(deck_shmem_unlock(&counter));
    OK(deck_shmem_barrier(&counter));

    /* There are as many posts as threads, all taken by rank 0. */
    if (deck_node() == 0) {
        for (n = 0; n < size * THREADS; n++)
            OK(deck_semaph_wait_timeout(&done, 60000000));
        GIVES(DECK_EAGAIN, deck_semaph_trywait(&done));
        GIVES(DECK_ETIMEDOUT, deck_semaph_wait_timeout(&done, 1000));
    }
    OK(deck_shmem_barrier(&counter));

    /* A thread posts the permit for which another thread of the same rank waits, through the same structure. */
    OK(deck_semaph_create(&empty, "empty", 0));
    OK(deck_thread_create(&threads[0], pass, &empty));
    OK(deck_semaph_wait(&empty));
    OK(deck_thread_join(&threads[0], NULL));
    OK(deck_shmem_barrier(&counter));

    OK(deck_semaph_destroy(&empty));
    OK(deck_semaph_destroy(&done));
    OK(deck_semaph_destroy(&turns));
    OK(deck_shmem_destroy(&counter));
    GIVES(DECK_EINVAL, deck_shmem_destroy(&counter));
    OK(deck_barrier());
    OK(deck_done());
    if (argc > 0 && n != 0)
        puts("all services are as they should be");
    return 0;
}
