/* A program that has closed its standard streams and continues to write. Nothing in the library must get their numbers. */
#include "test.h"
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

/* The three numbers are free. The library's threads hold one for a moment, until they have moved what they opened. */
static void check_numbers(FILE *log)
{
    const struct timespec a_while = {0, 10000000};
    int fd, looks;

    for (fd = 0; fd < 3; fd++)
        for (looks = 0; fcntl(fd, F_GETFD) != -1; looks++) {
            nanosleep(&a_while, NULL);
            if (looks < 1000)
                continue;
            fprintf(log, "rank %lu: descriptor %d is somebody's\n", deck_node(), fd);
            fflush(log);
            _exit(1);
        }
}

#define LEAVES_THEM(call)                                                                                   \
    do {                                                                                                   \
        OK(call);                                                                                          \
        check_numbers(log);                                                                                \
    } while (0)

int main(int argc, char **argv)
{
    FILE *log = fdopen(fcntl(1, F_DUPFD_CLOEXEC, 10), "w");
    char name[32];
    deck_mbox_t in, to;
    deck_msg_t message;
    deck_semaph_t turns;
    deck_shmem_t shared;
    int n;

    stderr = log;
    for (n = 0; n < 3; n++)
        close(n);
    LEAVES_THEM(deck_init(&argc, &argv));
    LEAVES_THEM(deck_barrier());
    sprintf(name, "in %lu", deck_node());
    LEAVES_THEM(deck_mbox_create(&in, name));
    sprintf(name, "in %lu", (deck_node() + 1) % deck_numnodes());
    LEAVES_THEM(deck_mbox_clone(&to, name));
    LEAVES_THEM(deck_msg_create(&message, 1 << 20));
    message.datalen = 1 << 20;
    memset(message.buf, 7, message.datalen);
    LEAVES_THEM(deck_mbox_post(&to, &message));
    LEAVES_THEM(deck_mbox_retrv(&in, &message));
    HOLDS(message.datalen == 1 << 20 && message.buf[(1 << 20) - 1] == 7);
    LEAVES_THEM(deck_semaph_create(&turns, "turns", 1));
    LEAVES_THEM(deck_shmem_create(&shared, "shared", 64));
    LEAVES_THEM(deck_shmem_lock(&shared));
    LEAVES_THEM(deck_shmem_unlock(&shared));
    LEAVES_THEM(deck_barrier());
    LEAVES_THEM(deck_done());
    fprintf(log, "nothing took the place of what was closed\n");
    return 0;
}
