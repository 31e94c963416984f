/* Contents of a message, by the calls of the other program in the appendix of the thesis on DECK over VIA: the same names,
 * constants and order, and no header beside deck.h for strings. */
#include <deck.h>
#include <stdio.h>

#define SIZE 128
#define OK(call) is(DECK_OK, call, #call)

static void is(int expected, int got, const char *what) {
    if (got != expected) fprintf(stderr, "%s: %d: %s\n", what, got, deck_errmsg());
}

/* The calls as the thesis declares them. */
int deck_mbox_create(deck_mbox_t *mb, deck_name_t name);
int deck_mbox_clone(deck_mbox_t *mbox, deck_name_t name);

int main(int argc, char **argv) {
    deck_msg_t msg;
    deck_mbox_t mbox;
    deck_name_t name = "box";
    char letter = 'L';
    unsigned long number, i;
    float vector[10];
    char string[6];

    OK(deck_init(&argc, &argv));
    OK(deck_node() == 0 ? deck_mbox_create(&mbox, name) : deck_mbox_clone(&mbox, name));
    OK(deck_msg_create(&msg, SIZE));
    is(DECK_EINVAL, deck_msg_create(&msg, SIZE), "a second create");
    number = deck_node();
    strcpy(string, "GPPD!");
    for (i = 0; i < 10; i++) vector[i] = (float)(number * i);

    OK(deck_msg_pack(&msg, DECK_CHAR, &letter, 1));
    OK(deck_msg_pack(&msg, DECK_LONG, &number, 1));
    OK(deck_msg_pack(&msg, DECK_FLOAT, &vector, 10));
    OK(deck_msg_pack(&msg, DECK_CHAR, string, 6));
    OK(deck_msg_reset(&msg));
    letter = 0;
    number = 99;
    memset(vector, 0, sizeof vector);
    memset(string, 0, sizeof string);
    OK(deck_msg_unpack(&msg, DECK_CHAR, &letter, 1));
    OK(deck_msg_unpack(&msg, DECK_LONG, &number, 1));
    OK(deck_msg_unpack(&msg, DECK_FLOAT, &vector, 10));
    OK(deck_msg_unpack(&msg, DECK_CHAR, string, 6));
    printf("%c %lu %.1f %s\n", letter, number, vector[9], string);
    OK(deck_msg_destroy(&msg));
    OK(deck_done());
    return 0;
}
