/* Macros and functions that the tests in C share. */
#ifndef TEST_H
#define TEST_H

#include <deck.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Checks that the call has this result. */
#define GIVES(expected, call)                                                                              \
    do {                                                                                                   \
        int result_ = (call);                                                                              \
        if (result_ != (expected)) {                                                                       \
            fprintf(stderr, "%s:%d: %s is %d (%s), not %s: %s\n", __FILE__, __LINE__, #call, result_,      \
                    deck_strerror(result_), #expected, deck_errmsg());                                     \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

#define OK(call) GIVES(DECK_OK, call)

#define HOLDS(condition)                                                                                   \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            fprintf(stderr, "%s:%d: rank %lu: not so: %s\n", __FILE__, __LINE__, deck_node(), #condition); \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

/* Checks that the last error's text contains these words. */
#define SAYS(words)                                                                                        \
    do {                                                                                                   \
        if (!strstr(deck_errmsg(), words)) {                                                               \
            fprintf(stderr, "%s:%d: no \"%s\" in: %s\n", __FILE__, __LINE__, words, deck_errmsg());        \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

#endif
