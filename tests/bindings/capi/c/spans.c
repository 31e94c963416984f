/* Spans of the program's own. The test reads the trace. */
#include "test.h"
#include <sys/wait.h>
#include <unistd.h>

static void *on_a_thread(void *arg)
{
    /* Another thread's spans are not this one's. */
    GIVES(DECK_EINVAL, deck_span_end());
    SAYS("no open span");
    OK(deck_span_begin("on a thread"));
    OK(deck_span_end());
    OK(deck_span_begin("never ends"));
    return arg;
}

int main(int argc, char **argv)
{
    char longer[1001];
    deck_thread_t thread;
    pid_t child;
    int i, status;

    GIVES(DECK_ESTATE, deck_span_begin("early"));
    OK(deck_init(&argc, &argv));
    GIVES(DECK_EINVAL, deck_span_end());
    GIVES(DECK_EINVAL, deck_span_begin(NULL));
    SAYS("name is NULL");

    OK(deck_span_begin("step"));
    for (i = 0; i < 3; i++) {
        OK(deck_span_begin("solve"));
        OK(deck_barrier());
        OK(deck_span_end());
    }
    OK(deck_thread_create(&thread, on_a_thread, NULL));
    OK(deck_thread_join(&thread, NULL));
    OK(deck_span_end());
    GIVES(DECK_EINVAL, deck_span_end());

    /* A name is shown as far as possible. */
    memset(longer, 'x', 1000);
    longer[1000] = '\0';
    OK(deck_span_begin(longer));
    OK(deck_span_end());
    OK(deck_span_begin("caf\xe9"));
    OK(deck_span_end());
    OK(deck_span_begin(""));
    OK(deck_span_end());

    /* Spans deeper than those that are traced are counted. */
    for (i = 0; i < 100; i++)
        OK(deck_span_begin("deep"));
    for (i = 0; i < 100; i++)
        OK(deck_span_end());
    GIVES(DECK_EINVAL, deck_span_end());

    OK(deck_span_begin("forks"));
    child = fork();
    if (child == 0) {
        GIVES(DECK_EIO, deck_span_begin("of a child"));
        GIVES(DECK_EIO, deck_span_end());
        _exit(0);
    }
    HOLDS(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    OK(deck_span_end());
    OK(deck_span_begin("open at the end"));
    OK(deck_done());
    GIVES(DECK_ESTATE, deck_span_end());
    puts("all spans are as they should be");
    return 0;
}
