/*
 * The transposition of a three-dimensional FFT (NAS FT): each rank has a slab of a cube, and after it a slab of the transposed one.
 * Twice: by messages that are posted from one deck_msg_t and copied, and by buffers that are given away and read where they lie.
 *
 *     deckcc -O2 examples/c/transpose.c -o transpose && deckrun -n 4 -- ./transpose
 *
 * The matrix has N rows of N complex numbers. A rank has N / ranks rows. It cuts them into blocks, one for each rank, transposes each
 * block and posts it. N is rounded up to a multiple of the number of ranks.
 */
#include <deck.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    double re, im;
} complex_t;

static unsigned long rank, size, n, rows;

static void check(int result)
{
    if (result != DECK_OK) {
        fprintf(stderr, "rank %lu: %s\n", rank, deck_errmsg());
        exit(1);
    }
}

/* Every place of the matrix has a number of its own. */
static complex_t value(unsigned long row, unsigned long column)
{
    complex_t z;
    z.re = (double)(row * n + column);
    z.im = -z.re;
    return z;
}

/* The block of this rank's rows that is for `to`, transposed. */
static void cut(const complex_t *slab, unsigned long to, complex_t *block)
{
    unsigned long i, j;
    for (j = 0; j < rows; j++)
        for (i = 0; i < rows; i++)
            block[j * rows + i] = slab[i * n + to * rows + j];
}

/* Puts a block that came from `from` into the transposed slab. */
static void paste(complex_t *slab, unsigned long from, const complex_t *block)
{
    unsigned long i, j;
    for (j = 0; j < rows; j++)
        for (i = 0; i < rows; i++)
            slab[j * n + from * rows + i] = block[j * rows + i];
}

static void verify(const complex_t *slab, const char *how)
{
    unsigned long i, j;
    for (j = 0; j < rows; j++)
        for (i = 0; i < n; i++) {
            complex_t z = value(i, rank * rows + j);
            if (slab[j * n + i].re != z.re || slab[j * n + i].im != z.im) {
                fprintf(stderr, "rank %lu: row %lu, column %lu is wrong (%s)\n", rank, j, i, how);
                exit(1);
            }
        }
}

static void by_messages(deck_mbox_t *inbox, deck_mbox_t *out, const complex_t *slab, complex_t *turned)
{
    deck_msg_t msg;
    unsigned long step;

    check(deck_msg_create(&msg, rows * rows * sizeof(complex_t)));
    for (step = 0; step < size; step++) {
        unsigned long to = (rank + step) % size;
        cut(slab, to, (complex_t *)(void *)msg.buf);
        msg.datalen = msg.size;
        check(deck_mbox_post(&out[to], &msg));
    }
    for (step = 0; step < size; step++) {
        check(deck_mbox_retrv(inbox, &msg));
        paste(turned, msg.source, (const complex_t *)(const void *)msg.buf);
    }
    check(deck_msg_destroy(&msg));
}

static void by_buffers(deck_mbox_t *inbox, deck_mbox_t *out, const complex_t *slab, complex_t *turned)
{
    unsigned long step;

    for (step = 0; step < size; step++) {
        unsigned long to = (rank + step) % size;
        deck_buf_t buf;
        check(deck_buf_alloc(&buf, rows * rows * sizeof(complex_t)));
        cut(slab, to, (complex_t *)(void *)buf.data);
        check(deck_mbox_post_buf(&out[to], &buf));
    }
    for (step = 0; step < size; step++) {
        deck_view_t view;
        check(deck_mbox_retrv_view(inbox, &view));
        paste(turned, view.source, (const complex_t *)(const void *)view.data);
        check(deck_view_release(&view));
    }
}

int main(int argc, char **argv)
{
    deck_mbox_t inbox, *out;
    complex_t *slab, *turned;
    char name[32];
    unsigned long i, j, peer;

    check(deck_init(&argc, &argv));
    rank = deck_node();
    size = deck_numnodes();
    n = argc > 1 ? strtoul(argv[1], NULL, 10) : 512;
    rows = (n + size - 1) / size;
    n = rows * size;

    slab = malloc(rows * n * sizeof *slab);
    turned = malloc(rows * n * sizeof *turned);
    out = malloc(size * sizeof *out);
    if (!slab || !turned || !out)
        return 1;
    for (j = 0; j < rows; j++)
        for (i = 0; i < n; i++)
            slab[j * n + i] = value(rank * rows + j, i);

    snprintf(name, sizeof name, "transpose %lu", rank);
    check(deck_mbox_create(&inbox, name));
    for (peer = 0; peer < size; peer++) {
        snprintf(name, sizeof name, "transpose %lu", peer);
        check(deck_mbox_clone(&out[peer], name));
    }

    by_messages(&inbox, out, slab, turned);
    verify(turned, "messages");
    /* Nobody's buffers may come before somebody else's messages. */
    check(deck_barrier());
    for (i = 0; i < rows * n; i++)
        turned[i].re = turned[i].im = 0;
    by_buffers(&inbox, out, slab, turned);
    verify(turned, "buffers");
    check(deck_barrier());
    if (rank == 0)
        printf("transposed %lu x %lu among %lu ranks, twice\n", n, n, size);

    for (peer = 0; peer < size; peer++)
        check(deck_mbox_destroy(&out[peer]));
    check(deck_mbox_destroy(&inbox));
    free(out);
    free(turned);
    free(slab);
    check(deck_done());
    return 0;
}
