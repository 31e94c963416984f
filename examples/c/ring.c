/*
 * A token goes round a ring; every rank adds its number to it, and rank 0 checks the sum.
 *
 *     deckcc examples/c/ring.c -o ring && deckrun -n 4 -- ./ring
 */
#include <deck.h>
#include <stdio.h>
#include <stdlib.h>

#define LAPS 3

static void check(int result)
{
    if (result != DECK_OK) {
        fprintf(stderr, "%s\n", deck_errmsg());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    deck_mbox_t inbox, outbox;
    deck_msg_t token;
    char name[32];
    unsigned long rank, size, sum;
    int lap;

    check(deck_init(&argc, &argv));
    rank = deck_node();
    size = deck_numnodes();

    /* Every rank owns one mailbox, and has a clone of its neighbour's. Alone, a rank is its own neighbour. */
    snprintf(name, sizeof name, "ring %lu", rank);
    check(deck_mbox_create(&inbox, name));
    snprintf(name, sizeof name, "ring %lu", (rank + 1) % size);
    check(deck_mbox_clone(&outbox, name));
    check(deck_msg_create(&token, sizeof sum));

    for (lap = 1; lap <= LAPS; lap++) {
        if (rank == 0) {
            sum = 0;
            check(deck_msg_clear(&token));
            check(deck_msg_pack(&token, DECK_ULONG, &sum, 1));
            check(deck_mbox_post(&outbox, &token));
        }
        check(deck_mbox_retrv(&inbox, &token));
        check(deck_msg_unpack(&token, DECK_ULONG, &sum, 1));
        sum += rank;
        if (rank != 0) {
            check(deck_msg_clear(&token));
            check(deck_msg_pack(&token, DECK_ULONG, &sum, 1));
            check(deck_mbox_post(&outbox, &token));
        } else {
            printf("lap %d: the ranks add up to %lu\n", lap, sum);
            if (sum != size * (size - 1) / 2)
                return 1;
        }
    }
    check(deck_msg_destroy(&token));
    check(deck_mbox_destroy(&outbox));
    check(deck_mbox_destroy(&inbox));
    check(deck_done());
    return 0;
}
