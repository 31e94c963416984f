/* A job of any MPI under deckperf's conductor: it measures when it gets an order, and is silent in between.
 *
 * Every rank connects to the conductor's socket (DECKPERF_CONDUCTOR), sends its number, and blocks in read(), outside
 * MPI, until all ranks get the same line:
 *
 *     batch TEST PAYLOAD BYTES WARM-UP ITERATIONS WAY
 *
 * Each rank answers with the nanoseconds of its timed iterations, or with `error` and the reason. The end of the input
 * ends the job. Orders that begin with `cpu` are described in cpu.h. The tests are the same as in rank.rs and member.rs,
 * loop for loop:
 *
 *     latency  pairs of ranks, a message there and a message back   ways: send, window
 *     stream   windows of WINDOW messages, each acknowledged        ways: send, bare
 *     barrier  all ranks                                            ways: send, bare
 *     all-reduce, broadcast, all-to-all: collectives.h              way: send
 *
 * `send` is MPI_Send and related calls, and the collective operations. `window` writes into an MPI shared window and
 * raises a flag there, which is as fast as such a program can be. `bare` is no message passing at all: a ring, or a
 * yielding counter barrier, in the memory of the same window. It shows what the machine can do between processes.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BYTES = 1 << 20, MAX_REDUCED = 4 << 20, WINDOW = 64, CELLS = 1024, NEWS_EVERY = 16 };

typedef _Atomic uint64_t word;
struct cell { _Alignas(64) word lap; uint64_t payload; };

/* Content of the shared window, zero at first. Its words are 128 bytes apart because processors fetch lines in pairs. */
struct shared {
    _Alignas(128) word flag[2];
    _Alignas(128) word flag_back;
    _Alignas(128) word arrived;
    _Alignas(128) word generation;
    _Alignas(128) word taken;
    _Alignas(128) word acknowledged;
    struct cell ring[CELLS];
    _Alignas(4096) unsigned char data[2][MAX_BYTES];
};

struct batch {
    char test[16], payload[16], way[16];
    size_t bytes;
    uint64_t warm_up, iterations;
    int written; /* written+read: the sender writes every word, the receiver sums them all */
};

static int rank, ranks, partner, leads;
static unsigned char *out, *in; /* WINDOW messages each */
static struct shared *shared;
static int wrong; /* messages whose sum was not what had been written */

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Writes the same payload as payload.rs; sizes here are multiples of eight. */
static void write_words(unsigned char *data, size_t bytes, uint64_t seed) {
    uint64_t *words = (uint64_t *)data;
    for (size_t i = 0; i < bytes / 8; i++) words[i] = seed + i;
}

static void read_words(const unsigned char *data, size_t bytes, uint64_t seed) {
    const uint64_t *words = (const uint64_t *)data;
    uint64_t sum = 0, n = bytes / 8;
    for (size_t i = 0; i < n; i++) sum += words[i];
    if (sum != n * seed + (n ? n * (n - 1) / 2 : 0)) wrong++;
}

/* ---- send -------------------------------------------------------------------------------------------------- */

static void post(const struct batch *b, uint64_t turn) {
    if (b->written) write_words(out, b->bytes, turn);
    MPI_Send(out, (int)b->bytes, MPI_BYTE, partner, 0, MPI_COMM_WORLD);
}

static void retrieve(const struct batch *b, uint64_t turn) {
    MPI_Recv(in, (int)b->bytes, MPI_BYTE, partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (b->written) read_words(in, b->bytes, turn);
}

static void ping_pong(const struct batch *b, uint64_t turn) {
    if (leads) { post(b, turn); retrieve(b, turn); }
    else { retrieve(b, turn); post(b, turn); }
}

/* Sends one window. Written messages have a buffer each; untouched ones share one, as in the OSU benchmarks. */
static void stream(const struct batch *b, uint64_t turn) {
    MPI_Request requests[WINDOW];
    size_t step = b->written ? b->bytes : 0;
    int bytes = (int)b->bytes;
    if (leads) {
        for (int i = 0; i < WINDOW; i++) {
            if (b->written) write_words(out + i * step, b->bytes, turn * WINDOW + i);
            MPI_Isend(out + i * step, bytes, MPI_BYTE, partner, 0, MPI_COMM_WORLD, &requests[i]);
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        MPI_Recv(NULL, 0, MPI_BYTE, partner, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        return;
    }
    for (int i = 0; i < WINDOW; i++)
        MPI_Irecv(in + i * step, bytes, MPI_BYTE, partner, 0, MPI_COMM_WORLD, &requests[i]);
    if (b->written)
        for (int i = 0; i < WINDOW; i++) {
            MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
            read_words(in + i * step, b->bytes, turn * WINDOW + i);
        }
    else
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
    MPI_Send(NULL, 0, MPI_BYTE, partner, 1, MPI_COMM_WORLD);
}

static void barrier(const struct batch *b, uint64_t turn) {
    (void)b, (void)turn;
    MPI_Barrier(MPI_COMM_WORLD);
}

/* ---- window ------------------------------------------------------------------------------------------------ */

static void await(word *flag, uint64_t value) {
    while (atomic_load_explicit(flag, memory_order_acquire) != value) {}
}

static void window_ping_pong(const struct batch *b, uint64_t turn) {
    static uint64_t raised; /* flags raised so far, over all batches; the same at both ranks */
    word *flags[2] = { &shared->flag[0], &shared->flag_back };
    raised++;
    for (int half = 0; half < 2; half++) {
        unsigned char *data = shared->data[half];
        if (rank == half) {
            if (b->written) write_words(data, b->bytes, turn);
            atomic_store_explicit(flags[half], raised, memory_order_release);
        } else {
            await(flags[half], raised);
            if (b->written) read_words(data, b->bytes, turn);
        }
    }
}

/* ---- bare -------------------------------------------------------------------------------------------------- */

static void bare_stream(const struct batch *b, uint64_t turn) {
    static uint64_t sent, received, taken, windows;
    (void)b, (void)turn;
    windows++;
    for (int i = 0; i < WINDOW; i++) {
        if (leads) {
            struct cell *cell = &shared->ring[sent % CELLS];
            while (sent - taken >= CELLS) taken = atomic_load_explicit(&shared->taken, memory_order_acquire);
            cell->payload = sent++;
            atomic_store_explicit(&cell->lap, sent, memory_order_release);
        } else {
            struct cell *cell = &shared->ring[received % CELLS];
            await(&cell->lap, received + 1);
            if (cell->payload != received++) wrong++;
            if (received % NEWS_EVERY == 0) atomic_store_explicit(&shared->taken, received, memory_order_release);
        }
    }
    if (leads) await(&shared->acknowledged, windows);
    else atomic_store_explicit(&shared->acknowledged, windows, memory_order_release);
}

static void bare_barrier(const struct batch *b, uint64_t turn) {
    (void)b, (void)turn;
    uint64_t generation = atomic_load_explicit(&shared->generation, memory_order_acquire);
    if (atomic_fetch_add_explicit(&shared->arrived, 1, memory_order_acq_rel) + 1 == (uint64_t)ranks) {
        atomic_store_explicit(&shared->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&shared->generation, generation + 1, memory_order_release);
        return;
    }
    while (atomic_load_explicit(&shared->generation, memory_order_acquire) == generation) sched_yield();
}

#include "collectives.h"
#include "cpu.h"

/* ---- orders ------------------------------------------------------------------------------------------------ */

/* All loops. `most`: largest block in bytes. `fenced`: timed from one barrier to another, because one rank may be done long
 * before others. */
static const struct {
    const char *test, *way;
    void (*turn)(const struct batch *, uint64_t);
    size_t most;
    int fenced;
} LOOPS[] = {
    { "latency", "send", ping_pong, MAX_BYTES, 0 },
    { "latency", "window", window_ping_pong, MAX_BYTES, 0 },
    { "stream", "send", stream, MAX_BYTES, 0 },
    { "stream", "bare", bare_stream, MAX_BYTES, 0 },
    { "barrier", "send", barrier, 0, 0 },
    { "barrier", "bare", bare_barrier, 0, 0 },
    { "all-reduce", "send", all_reduce, MAX_REDUCED, 1 },
    { "broadcast", "send", broadcast, MAX_BYTES, 1 },
    { "all-to-all", "send", all_to_all, MAX_BYTES, 1 },
};

/* Runs a batch and returns its nanoseconds, of all pairs together if there are several. 0 if there is no such loop. */
static uint64_t run(const struct batch *b) {
    for (size_t i = 0; i < sizeof LOOPS / sizeof *LOOPS; i++) {
        if (strcmp(LOOPS[i].test, b->test) || strcmp(LOOPS[i].way, b->way) || b->bytes > LOOPS[i].most) continue;
        uint64_t turn = 0, started;
        MPI_Barrier(MPI_COMM_WORLD); /* all ranks are awake */
        for (; turn < b->warm_up; turn++) LOOPS[i].turn(b, turn);
        /* A barrier waits for all ranks by itself. */
        int fenced = LOOPS[i].fenced || (ranks > 2 && !strcmp(b->test, "latency"));
        if (fenced) MPI_Barrier(MPI_COMM_WORLD);
        started = now();
        for (; turn < b->warm_up + b->iterations; turn++) LOOPS[i].turn(b, turn);
        if (fenced) MPI_Barrier(MPI_COMM_WORLD);
        started = now() - started;
        if (!fenced) MPI_Barrier(MPI_COMM_WORLD); /* nobody leaves the library while a message is under way */
        return started;
    }
    return 0;
}

static void answer(FILE *conductor, const char *line) {
    if (!strncmp(line, "cpu ", 4)) {
        answer_cpu(conductor, line);
        return;
    }
    struct batch b;
    int fields = sscanf(line, "batch %15s %15s %zu %lu %lu %15s", b.test, b.payload, &b.bytes, &b.warm_up,
                        &b.iterations, b.way);
    if (fields != 6 || b.bytes % 8) {
        fprintf(conductor, "error no such order: %s", line);
        return;
    }
    if (!shared && strcmp(b.way, "send")) {
        fprintf(conductor, "error no shared window for: %s", line);
        return;
    }
    b.written = !strcmp(b.payload, "written+read");
    wrong = 0;
    uint64_t nanoseconds = run(&b);
    if (wrong) fprintf(conductor, "error %d messages arrived damaged\n", wrong);
    else if (!nanoseconds) fprintf(conductor, "error no such test: %s", line);
    else fprintf(conductor, "%lu\n", nanoseconds);
}

/* ---- the job ----------------------------------------------------------------------------------------------- */

/* Binds ranks as deckrun does: each to a core of its own if there are enough, otherwise none. */
static void pin(void) {
    cpu_set_t usable, mine;
    sched_getaffinity(0, sizeof usable, &usable);
    if (CPU_COUNT(&usable) < ranks) return;
    for (int cpu = 0, left = rank; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &usable) && left-- == 0) {
            CPU_ZERO(&mine);
            CPU_SET(cpu, &mine);
            sched_setaffinity(0, sizeof mine, &mine);
        }
}

static void make_memory(void) {
    size_t bytes = ranks == 2 ? (size_t)WINDOW * MAX_BYTES : MAX_BYTES;
    if (posix_memalign((void **)&out, 4096, bytes) || posix_memalign((void **)&in, 4096, bytes)) abort();
    memset(out, 1, bytes);
    memset(in, 2, bytes);

    /* MPICH 5 has no shared window between ranks that it keeps off shared memory. */
    if (getenv("DECKPERF_NO_WINDOW")) return;
    MPI_Win window;
    MPI_Aint size = rank == 0 ? sizeof *shared : 0;
    int unit;
    MPI_Win_allocate_shared(size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &shared, &window);
    MPI_Win_shared_query(window, 0, &size, &unit, &shared);
    if (rank == 0) memset(shared, 0, sizeof *shared);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
    MPI_Win_sync(window);
    MPI_Barrier(MPI_COMM_WORLD);
}

static int connect_to_conductor(void) {
    const char *path = getenv("DECKPERF_CONDUCTOR");
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (!path || strlen(path) >= sizeof address.sun_path || fd < 0) return -1;
    strcpy(address.sun_path, path);
    return connect(fd, (struct sockaddr *)&address, sizeof address) ? -1 : fd;
}

int main(int count, char **arguments) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    partner = rank ^ 1;
    leads = rank % 2 == 0;
    pin();
    make_memory();

    int conductor = connect_to_conductor();
    FILE *orders = conductor < 0 ? NULL : fdopen(conductor, "r");
    FILE *answers = conductor < 0 ? NULL : fdopen(dup(conductor), "w");
    if (!orders || !answers) {
        perror("connecting to the conductor");
        MPI_Abort(MPI_COMM_WORLD, 1);
        return 1;
    }
    fprintf(answers, "rank %d of %d\n", rank, ranks);
    fflush(answers);
    for (char line[256]; fgets(line, sizeof line, orders);) {
        answer(answers, line);
        fflush(answers);
    }
    MPI_Finalize();
    return 0;
}
