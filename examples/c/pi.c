/*
 * Pi, as the integral of 4 / (1 + x * x) from 0 to 1 by the midpoint rule: each rank sums its share of the strips, rank 0 adds the
 * partial sums.
 *
 *     deckcc -O2 examples/c/pi.c -o pi -lm && deckrun -n 4 -- ./pi
 */
#include <deck.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define STRIPS 1000000UL

static void check(int result)
{
    if (result != DECK_OK) {
        fprintf(stderr, "%s\n", deck_errmsg());
        exit(1);
    }
}

/* Every `step`-th strip, from `first` on. */
static double strips(unsigned long first, unsigned long step)
{
    const double width = 1.0 / (double)STRIPS;
    double sum = 0;
    unsigned long strip;

    for (strip = first; strip < STRIPS; strip += step) {
        double x = ((double)strip + 0.5) * width;
        sum += 4.0 / (1.0 + x * x);
    }
    return sum * width;
}

int main(int argc, char **argv)
{
    deck_mbox_t parts;
    deck_msg_t msg;
    double part, pi;
    unsigned long n;

    check(deck_init(&argc, &argv));
    check(deck_msg_create(&msg, sizeof part));
    part = strips(deck_node(), deck_numnodes());

    if (deck_node() == 0) {
        check(deck_mbox_create(&parts, "parts"));
        pi = part;
        for (n = 1; n < deck_numnodes(); n++) {
            check(deck_mbox_retrv(&parts, &msg));
            check(deck_msg_unpack(&msg, DECK_DOUBLE, &part, 1));
            pi += part;
        }
        printf("pi is about %.12f\n", pi);
        if (fabs(pi - 4.0 * atan(1.0)) > 1e-10)
            return 1;
    } else {
        check(deck_msg_pack(&msg, DECK_DOUBLE, &part, 1));
        check(deck_mbox_clone(&parts, "parts"));
        check(deck_mbox_post(&parts, &msg));
    }
    check(deck_mbox_destroy(&parts));
    check(deck_msg_destroy(&msg));
    check(deck_done());
    return 0;
}
