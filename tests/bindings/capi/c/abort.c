/* Rank 1 ends the job, with words in Latin-1; rank 0 waits. */
#include "test.h"

int main(void)
{
    OK(deck_init(NULL, NULL));
    if (deck_node() == 1)
        GIVES(DECK_OK, deck_abort(9, "the caf\xe9 is closed"));
    OK(deck_barrier());
    puts("nobody has aborted");
    OK(deck_done());
    return 0;
}
