/* Orders of `deckperf cpu` to an MPI; batch.rs has the same loops.
 *
 *     cpu PAYLOAD BYTES WARM-UP ITERATIONS DEPTH RATE WAITING WAY
 *
 * A batch has windows of DEPTH messages from rank 0, each window acknowledged. With a RATE, the messages leave one by one,
 * RATE a second, and their sender sleeps in between. Each rank answers
 *
 *     WALL PROCESSOR USER SYSTEM MESSAGES LOST
 *
 * The first four are nanoseconds of its timed windows: elapsed time, processor time of all its threads, and the user and
 * system time of these threads by the system's two counters. An MPI waits in its own way, so WAITING is `polling`. */
enum { MAX_DEPTH = 1024 };

struct cpu_batch {
    char payload[16], waiting[16], way[16];
    size_t bytes, step;
    uint64_t warm_up, iterations, depth, rate;
    int written;
};

struct usage { uint64_t wall, processor, user, system; };

static struct usage usage_now(void) {
    struct usage u = { .wall = now() };
    struct timespec t;
    struct rusage r;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    getrusage(RUSAGE_SELF, &r);
    u.processor = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    u.user = (uint64_t)r.ru_utime.tv_sec * 1000000000u + (uint64_t)r.ru_utime.tv_usec * 1000u;
    u.system = (uint64_t)r.ru_stime.tv_sec * 1000000000u + (uint64_t)r.ru_stime.tv_usec * 1000u;
    return u;
}

static void check_length(const struct cpu_batch *b, MPI_Status *status) {
    int got;
    MPI_Get_count(status, MPI_BYTE, &got);
    if ((size_t)got != b->bytes) wrong++;
}

static void cpu_acknowledge(void) {
    MPI_Send(NULL, 0, MPI_BYTE, partner, 1, MPI_COMM_WORLD);
}

static void cpu_await_acknowledgement(void) {
    MPI_Recv(NULL, 0, MPI_BYTE, partner, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* Runs one window. Written messages have a buffer each, as in `stream`. */
static void cpu_window(const struct cpu_batch *b, uint64_t turn) {
    static MPI_Request requests[MAX_DEPTH];
    static MPI_Status status[MAX_DEPTH];
    int bytes = (int)b->bytes, depth = (int)b->depth;
    if (leads) {
        for (int i = 0; i < depth; i++) {
            if (b->written) write_words(out + i * b->step, b->bytes, turn * b->depth + i);
            MPI_Isend(out + i * b->step, bytes, MPI_BYTE, partner, 0, MPI_COMM_WORLD, &requests[i]);
        }
        MPI_Waitall(depth, requests, MPI_STATUSES_IGNORE);
        cpu_await_acknowledgement();
        return;
    }
    for (int i = 0; i < depth; i++)
        MPI_Irecv(in + i * b->step, bytes, MPI_BYTE, partner, 0, MPI_COMM_WORLD, &requests[i]);
    if (b->written)
        for (int i = 0; i < depth; i++) {
            MPI_Wait(&requests[i], &status[i]);
            read_words(in + i * b->step, b->bytes, turn * b->depth + i);
        }
    else
        MPI_Waitall(depth, requests, status);
    for (int i = 0; i < depth; i++) check_length(b, &status[i]);
    cpu_acknowledge();
}

static void cpu_paced(const struct cpu_batch *b, uint64_t turn) {
    uint64_t gap = 1000000000u / b->rate, due = now();
    int bytes = (int)b->bytes;
    for (uint64_t i = 0; i < b->depth; i++) {
        uint64_t seed = turn * b->depth + i;
        if (leads) {
            due += gap;
            struct timespec at = { (time_t)(due / 1000000000u), (long)(due % 1000000000u) };
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
            if (b->written) write_words(out, b->bytes, seed);
            MPI_Send(out, bytes, MPI_BYTE, partner, 0, MPI_COMM_WORLD);
        } else {
            MPI_Status status;
            MPI_Recv(in, bytes, MPI_BYTE, partner, 0, MPI_COMM_WORLD, &status);
            check_length(b, &status);
            if (b->written) read_words(in, b->bytes, seed);
        }
    }
    if (leads) cpu_await_acknowledgement();
    else cpu_acknowledge();
}

static void answer_cpu(FILE *conductor, const char *line) {
    struct cpu_batch b;
    int fields = sscanf(line, "cpu %15s %zu %lu %lu %lu %lu %15s %15s", b.payload, &b.bytes, &b.warm_up,
                        &b.iterations, &b.depth, &b.rate, b.waiting, b.way);
    b.written = fields == 8 && !strcmp(b.payload, "written+read");
    b.step = b.written ? (b.bytes + 63) / 64 * 64 : 0;
    if (fields != 8 || strcmp(b.waiting, "polling") || strcmp(b.way, "send") || b.depth < 1 || b.depth > MAX_DEPTH
        || b.bytes > MAX_BYTES || b.depth * b.step > (size_t)WINDOW * MAX_BYTES) {
        fprintf(conductor, "error no such order: %s", line);
        return;
    }
    wrong = 0;
    uint64_t turn = 0;
    MPI_Barrier(MPI_COMM_WORLD); /* all ranks are awake */
    for (; turn < b.warm_up; turn++) cpu_window(&b, turn);
    struct usage before = usage_now();
    for (; turn < b.warm_up + b.iterations; turn++)
        if (b.rate) cpu_paced(&b, turn);
        else cpu_window(&b, turn);
    struct usage after = usage_now();
    MPI_Barrier(MPI_COMM_WORLD); /* nobody leaves the library while a message is under way */
    if (wrong) fprintf(conductor, "error %d messages arrived damaged\n", wrong);
    else
        fprintf(conductor, "%lu %lu %lu %lu %lu 0\n", after.wall - before.wall, after.processor - before.processor,
                after.user - before.user, after.system - before.system, b.iterations * b.depth);
}
