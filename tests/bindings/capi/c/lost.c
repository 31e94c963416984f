/* Rank 1 kills itself: rank 0, which waits for it, is told. */
#include "test.h"
#include <signal.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    deck_mbox_t box;
    deck_msg_t msg;

    OK(deck_init(&argc, &argv));
    OK(deck_msg_create(&msg, 8));
    if (deck_node() == 0) {
        OK(deck_mbox_create(&box, "last words"));
        OK(deck_mbox_retrv(&box, &msg));
        HOLDS(strcmp(msg.buf, "bye") == 0);
        GIVES(DECK_EPEERLOST, deck_mbox_retrv(&box, &msg));
        SAYS("rank 1 is lost");
        OK(deck_mbox_destroy(&box));
        OK(deck_msg_destroy(&msg));
        OK(deck_done());
        puts("rank 0 has been told");
        return 0;
    }
    OK(deck_mbox_clone(&box, "last words"));
    OK(deck_msg_pack(&msg, DECK_CHAR, "bye", 4));
    OK(deck_mbox_post(&box, &msg));
    OK(deck_mbox_flush(&box));
    kill(getpid(), SIGKILL);
    return 1;
}
