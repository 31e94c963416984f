/* Rank 1 kills itself: the others agree on who is left, and compute on. */
#include "test.h"
#include <signal.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    deck_group_t all, left;
    unsigned long long flags;
    unsigned long n, sum;

    OK(deck_init(&argc, &argv));
    OK(deck_group_all(&all));
    OK(deck_group_barrier(&all));
    GIVES(DECK_EINVAL, deck_agree(NULL, &n));
    flags = deck_node() == 2 ? 1 : 3;
    GIVES(DECK_EINVAL, deck_agree(&flags, NULL));
    OK(deck_agree(&flags, &n));
    HOLDS(flags == 1 && n == 3);
    /* All have passed the barrier. */
    if (deck_node() == 1)
        kill(getpid(), SIGKILL);
    GIVES(DECK_EPEERLOST, deck_group_barrier(&all));
    OK(deck_group_destroy(&all));

    OK(deck_group_survivors(&left));
    GIVES(DECK_EINVAL, deck_group_survivors(NULL));
    sum = deck_node() + 10;
    OK(deck_group_allreduce(&left, DECK_ULONG, DECK_SUM, &sum, 1));
    HOLDS(sum == 22);
    flags = 1;
    OK(deck_agree(&flags, &n));
    HOLDS(flags == 1 && n == 2);
    if (deck_node() == 0)
        printf("%lu ranks went on\n", n);
    OK(deck_group_destroy(&left));
    OK(deck_done());
    return 0;
}
