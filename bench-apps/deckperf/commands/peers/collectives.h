/* Collective operations of an MPI, which peer.c includes: the same as in member.rs, loop for loop.
 *
 *     all-reduce  the sum of doubles, in place
 *     broadcast   from rank 0, 1, 2 and so on in turn: a root that is always the same runs ahead of the others
 *     all-to-all  BYTES to each rank, oneself included
 *
 * A block is checked in every turn. With the payload written+read, every word is written before and read after. With an
 * untouched payload, only the first and the last word are, except in the first turn of a batch, which is not timed: there
 * it is every word, too.
 */
#ifndef DECKPERF_COLLECTIVES_H
#define DECKPERF_COLLECTIVES_H

struct blocks { unsigned char *data; size_t bytes; };

/* Returns memory of at least `bytes` bytes, which is kept for later batches. */
static unsigned char *reserve(struct blocks *blocks, size_t bytes) {
    if (blocks->bytes < bytes) {
        free(blocks->data);
        if (posix_memalign((void **)&blocks->data, 4096, bytes)) abort();
        memset(blocks->data, 1, bytes);
        blocks->bytes = bytes;
    }
    return blocks->data;
}

static int is_whole(const struct batch *b, uint64_t turn) {
    return b->written || turn == 0;
}

/* Fills a block; the first and the last word are those that write_words would write there. */
static void fill(const struct batch *b, uint64_t turn, unsigned char *data, uint64_t seed) {
    uint64_t *words = (uint64_t *)data, last = b->bytes / 8 - 1;
    if (is_whole(b, turn)) { write_words(data, b->bytes, seed); return; }
    words[0] = seed;
    words[last] = seed + last;
}

static void check(const struct batch *b, uint64_t turn, const unsigned char *data, uint64_t seed) {
    const uint64_t *words = (const uint64_t *)data;
    uint64_t last = b->bytes / 8 - 1;
    if (is_whole(b, turn)) read_words(data, b->bytes, seed);
    else if (words[0] != seed || words[last] != seed + last) wrong++;
}

/* Reduces small integers, whose sums are exact in whatever order they are added. The numbers between the first and the last
 * stay zero. */
static void all_reduce(const struct batch *b, uint64_t turn) {
    static struct blocks blocks;
    double *data = (double *)reserve(&blocks, b->bytes), pairs = (double)ranks * (ranks - 1) / 2;
    size_t n = b->bytes / 8, step = is_whole(b, turn) || n == 1 ? 1 : n - 1;
    for (size_t i = 0; i < n; i += step) data[i] = (double)(turn + i + (uint64_t)rank);
    MPI_Allreduce(MPI_IN_PLACE, data, (int)n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    size_t bad = 0;
    for (size_t i = 0; i < n; i += step) bad += data[i] != (double)(turn + i) * ranks + pairs;
    if (bad) wrong++;
    if (turn == 0) memset(data, 0, b->bytes);
}

static void broadcast(const struct batch *b, uint64_t turn) {
    static struct blocks blocks;
    unsigned char *data = reserve(&blocks, b->bytes);
    int root = (int)(turn % (uint64_t)ranks);
    if (rank == root) fill(b, turn, data, turn);
    MPI_Bcast(data, (int)b->bytes, MPI_BYTE, root, MPI_COMM_WORLD);
    if (rank != root) check(b, turn, data, turn);
}

static uint64_t seed_of(uint64_t turn, int from, int to) {
    return (turn * (uint64_t)ranks + (uint64_t)from) * (uint64_t)ranks + (uint64_t)to;
}

static void all_to_all(const struct batch *b, uint64_t turn) {
    static struct blocks blocks_out, blocks_in;
    size_t all = b->bytes * (size_t)ranks;
    unsigned char *out = reserve(&blocks_out, all), *in = reserve(&blocks_in, all);
    for (int to = 0; to < ranks; to++) fill(b, turn, out + to * b->bytes, seed_of(turn, rank, to));
    MPI_Alltoall(out, (int)b->bytes, MPI_BYTE, in, (int)b->bytes, MPI_BYTE, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++) check(b, turn, in + from * b->bytes, seed_of(turn, from, rank));
}

#endif
