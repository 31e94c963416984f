/*
 * A message of several types: every rank packs a char, a long, ten floats and a string; rank 0 unpacks them.
 *
 *     deckcc examples/c/pack.c -o pack && deckrun -n 3 -- ./pack
 */
#include <deck.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOATS 10
#define TEXT 32

/* Ends the program with the words of the error; the launcher then ends the others. */
static void check(int result)
{
    if (result != DECK_OK) {
        fprintf(stderr, "%s\n", deck_errmsg());
        exit(1);
    }
}

static char letter_of(unsigned long rank)
{
    return (char)('a' + rank % 26);
}

static void post_report(deck_msg_t *msg, unsigned long rank)
{
    deck_mbox_t reports;
    char letter = letter_of(rank), text[TEXT] = {0};
    long square = (long)(rank * rank);
    float floats[FLOATS];
    int i;

    for (i = 0; i < FLOATS; i++)
        floats[i] = (float)rank + (float)i / 10;
    snprintf(text, sizeof text, "greetings from rank %lu", rank);

    check(deck_msg_pack(msg, DECK_CHAR, &letter, 1));
    check(deck_msg_pack(msg, DECK_LONG, &square, 1));
    check(deck_msg_pack(msg, DECK_FLOAT, floats, FLOATS));
    check(deck_msg_pack(msg, DECK_CHAR, text, TEXT));

    check(deck_mbox_clone(&reports, "reports"));
    check(deck_mbox_post(&reports, msg));
    /* The message may be used again: it was posted, whoever reads it when. */
    check(deck_msg_clear(msg));
    check(deck_mbox_destroy(&reports));
}

static void read_report(deck_msg_t *msg)
{
    char letter, text[TEXT];
    long square;
    float floats[FLOATS];

    /* In the order of packing. */
    check(deck_msg_unpack(msg, DECK_CHAR, &letter, 1));
    check(deck_msg_unpack(msg, DECK_LONG, &square, 1));
    check(deck_msg_unpack(msg, DECK_FLOAT, floats, FLOATS));
    check(deck_msg_unpack(msg, DECK_CHAR, text, TEXT));
    printf("rank %lu: %c %ld %.1f..%.1f \"%s\"\n", msg->source, letter, square, (double)floats[0],
           (double)floats[FLOATS - 1], text);
    if (letter != letter_of(msg->source) || square != (long)(msg->source * msg->source)) {
        fprintf(stderr, "that is not what rank %lu packed\n", msg->source);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    deck_msg_t msg;
    deck_mbox_t inbox;
    unsigned long n;

    check(deck_init(&argc, &argv));
    check(deck_msg_create(&msg, 256));
    /* Rank 0 owns the mailbox and, like every other rank, posts to it. */
    if (deck_node() == 0)
        check(deck_mbox_create(&inbox, "reports"));
    post_report(&msg, deck_node());

    if (deck_node() == 0) {
        for (n = 0; n < deck_numnodes(); n++) {
            check(deck_mbox_retrv(&inbox, &msg));
            read_report(&msg);
        }
        check(deck_mbox_destroy(&inbox));
    }
    check(deck_msg_destroy(&msg));
    check(deck_done());
    return 0;
}
