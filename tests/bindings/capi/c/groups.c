/* Groups: all collective calls, on several types and lengths, whole groups and parts. */
#include "test.h"

static unsigned long rank, size;

/* A length at which algorithms change, and some odd lengths. */
static const unsigned long LENGTHS[] = {1, 3, 1000, 100001};
#define COUNT (sizeof LENGTHS / sizeof *LENGTHS)
#define MOST 100001

static void moves(deck_group_t *group, unsigned long me, unsigned long members, unsigned long n)
{
    int *mine = malloc(n * sizeof *mine), *all = malloc(members * n * sizeof *all);
    int *from = malloc(members * n * sizeof *from);
    unsigned long i, k;

    HOLDS(mine && all && from);
    for (i = 0; i < n; i++)
        mine[i] = (int)(me == 1 % members ? i : 0);
    OK(deck_group_broadcast(group, 1 % members, DECK_INT, mine, n));
    for (i = 0; i < n; i++)
        HOLDS(mine[i] == (int)i);

    for (i = 0; i < n; i++)
        mine[i] = (int)(me * 1000000 + i);
    memset(all, 0, members * n * sizeof *all);
    OK(deck_group_gather(group, 0, DECK_INT, mine, n, me == 0 ? all : NULL));
    for (k = 0; me == 0 && k < members; k++)
        for (i = 0; i < n; i++)
            HOLDS(all[k * n + i] == (int)(k * 1000000 + i));
    memset(mine, 0, n * sizeof *mine);
    OK(deck_group_scatter(group, 0, DECK_INT, me == 0 ? all : NULL, mine, n));
    for (i = 0; i < n; i++)
        HOLDS(mine[i] == (int)(me * 1000000 + i));
    memset(all, 0, members * n * sizeof *all);
    OK(deck_group_allgather(group, DECK_INT, mine, n, all));
    for (k = 0; k < members; k++)
        for (i = 0; i < n; i++)
            HOLDS(all[k * n + i] == (int)(k * 1000000 + i));

    for (k = 0; k < members; k++)
        for (i = 0; i < n; i++)
            from[k * n + i] = (int)(me * 100 + k);
    OK(deck_group_alltoall(group, DECK_INT, from, all, n));
    for (k = 0; k < members; k++)
        for (i = 0; i < n; i++)
            HOLDS(all[k * n + i] == (int)(k * 100 + me));
    free(from);
    free(all);
    free(mine);
}

static void reductions(deck_group_t *group, unsigned long me, unsigned long members, unsigned long n)
{
    double *data = malloc(n * sizeof *data);
    unsigned char *bytes = malloc(n);
    long *longs = malloc(n * sizeof *longs);
    unsigned long i, sum = members * (members + 1) / 2;

    HOLDS(data && bytes && longs);
    for (i = 0; i < n; i++) {
        data[i] = (double)((me + 1) * (i + 1));
        bytes[i] = (unsigned char)(100 + me);
        longs[i] = (long)me + 1;
    }
    OK(deck_group_allreduce(group, DECK_DOUBLE, DECK_SUM, data, n));
    OK(deck_group_allreduce(group, DECK_UCHAR, DECK_MAX, bytes, n));
    OK(deck_group_scan(group, DECK_LONG, DECK_SUM, longs, n));
    for (i = 0; i < n; i++) {
        HOLDS((unsigned long)data[i] == sum * (i + 1));
        HOLDS(bytes[i] == 99 + members);
        HOLDS(longs[i] == (long)((me + 1) * (me + 2) / 2));
        longs[i] = -(long)me;
    }
    OK(deck_group_reduce(group, 0, DECK_LONG, DECK_MIN, longs, n));
    for (i = 0; i < n; i++)
        HOLDS(longs[i] == (me == 0 ? -(long)(members - 1) : -(long)me));
    free(longs);
    free(bytes);
    free(data);
}

static void everything(deck_group_t *group)
{
    unsigned long me = 99, members = 99, nth;

    OK(deck_group_node(group, &me));
    OK(deck_group_numnodes(group, &members));
    OK(deck_group_barrier(group));
    for (nth = 0; nth < COUNT; nth++) {
        moves(group, me, members, LENGTHS[nth]);
        reductions(group, me, members, LENGTHS[nth]);
    }
}

static void errors(deck_group_t *all)
{
    deck_group_t other;
    double number = 0;
    unsigned long twice[2] = {0, 0};

    GIVES(DECK_EINVAL, deck_group_all(NULL));
    GIVES(DECK_EINVAL, deck_group_all(all));
    GIVES(DECK_EINVAL, deck_group_create(&other, "twice", twice, 2));
    SAYS("in the list twice");
    GIVES(DECK_EINVAL, deck_group_create(&other, NULL, twice, 1));
    GIVES(DECK_EINVAL, deck_group_create(&other, "none", NULL, 1));
    GIVES(DECK_EINVAL, deck_group_allreduce(all, DECK_MSG, DECK_SUM, &number, 1));
    GIVES(DECK_EINVAL, deck_group_allreduce(all, DECK_DOUBLE, DECK_BAND, &number, 1));
    GIVES(DECK_EINVAL, deck_group_allreduce(all, DECK_DOUBLE, 99, &number, 1));
    GIVES(DECK_EINVAL, deck_group_allreduce(all, DECK_DOUBLE, DECK_SUM, NULL, 1));
    GIVES(DECK_EINVAL, deck_group_allreduce(all, DECK_DOUBLE, DECK_SUM, (char *)&number + 1, 1));
    SAYS("aligned");
    GIVES(DECK_EINVAL, deck_group_broadcast(all, 0, DECK_MSG, &number, 1));
    SAYS("DECK_MSG");
    HOLDS(strstr(deck_errmsg(), "no type") == NULL);
    GIVES(DECK_EINVAL, deck_group_broadcast(all, 0, 99, &number, 1));
    SAYS("99 is no type");
    GIVES(DECK_EINVAL, deck_group_node(all, NULL));
    GIVES(DECK_EINVAL, deck_group_split(all, 0, 0, NULL));
    GIVES(DECK_EINVAL, deck_group_broadcast(all, size, DECK_DOUBLE, &number, 1));
    GIVES(DECK_EINVAL, deck_group_allgather(all, DECK_DOUBLE, &number, 1, &number));
    SAYS("overlap");
    /* Nothing was sent, so the group is unharmed. */
    OK(deck_group_barrier(all));
}

int main(int argc, char **argv)
{
    deck_group_t all, some, part;
    unsigned long ranks[2] = {2, 0}, three[3] = {0, 1, 2}, node = 99;

    OK(deck_init(&argc, &argv));
    rank = deck_node();
    size = deck_numnodes();
    HOLDS(size == 3);

    OK(deck_group_all(&all));
    OK(deck_group_timeout(&all, 60000000));
    everything(&all);
    errors(&all);

    if (rank != 1) {
        OK(deck_group_create(&some, "some", ranks, 2));
        OK(deck_group_node(&some, &node));
        HOLDS(node == (rank == 2 ? 0 : 1));
        everything(&some);
        OK(deck_group_destroy(&some));
        GIVES(DECK_EINVAL, deck_group_barrier(&some));
    }
    OK(deck_group_split(&all, rank == 1 ? -1 : 7, -(long)rank, &part));
    if (rank != 1) {
        OK(deck_group_node(&part, &node));
        HOLDS(node == (rank == 2 ? 0 : 1));
        everything(&part);
        OK(deck_group_destroy(&part));
    }

    /* Calls that do not match are an error at all members, and affect this group only. */
    OK(deck_group_create(&some, "of no use", three, 3));
    OK(deck_barrier());
    if (rank == 0) {
        GIVES(DECK_EMISMATCH, deck_group_barrier(&some));
    } else {
        double number = 1;
        GIVES(DECK_EMISMATCH, deck_group_allreduce(&some, DECK_DOUBLE, DECK_SUM, &number, 1));
    }
    OK(deck_group_barrier(&all));
    OK(deck_group_destroy(&some));

    /* Types of the same size are different types. */
    OK(deck_group_create(&some, "of types", three, 3));
    OK(deck_barrier());
    if (rank == 0) {
        double number = 1.5;
        OK(deck_group_broadcast(&some, 0, DECK_DOUBLE, &number, 1));
    } else {
        long number = 0;
        GIVES(DECK_EMISMATCH, deck_group_broadcast(&some, 0, DECK_LONG, &number, 1));
        HOLDS(number == 0);
    }
    OK(deck_group_barrier(&all));
    OK(deck_group_destroy(&some));

    /* A call that timed out reports the same afterwards. */
    OK(deck_group_create(&some, "too late", three, 3));
    OK(deck_group_barrier(&all)); /* All have the result before one of them makes the group fail. */
    if (rank == 0) {
        double number = 1;
        OK(deck_group_timeout(&some, 1000));
        GIVES(DECK_ETIMEDOUT, deck_group_allreduce(&some, DECK_DOUBLE, DECK_SUM, &number, 1));
        GIVES(DECK_EIO, deck_group_barrier(&some));
    }
    OK(deck_group_barrier(&all));
    OK(deck_group_destroy(&some));
    OK(deck_group_destroy(&all));
    OK(deck_barrier());
    OK(deck_done());
    if (rank == 0)
        puts("all groups are as they should be");
    return 0;
}
