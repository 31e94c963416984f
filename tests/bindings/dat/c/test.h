/* Code that the project's uDAPL programs share. Each program is one process that connects to itself, and prints "well" at its end.
 * Code that the project's uDAPL programs share. Each program is one process that connects to itself, and prints "well" at its end. */

#include <dat2/udat.h>
#include <dat2/udat_redirection.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000u

/* Checks that a call succeeds. */
#define OK(call) is(call, DAT_SUCCESS, #call, __LINE__)
/* Checks that a call fails with this type and subtype. */
#define FAILS(call, type, subtype) is(call, DAT_CLASS_ERROR | (type) | (subtype), #call, __LINE__)
#define CHECK(what) ((what) ? (void)0 : fail(#what, __LINE__))

static inline void fail(const char *what, int line) {
    fprintf(stderr, "line %d: not so: %s\n", line, what);
    exit(1);
}

static inline void is(DAT_RETURN got, DAT_RETURN wanted, const char *what, int line) {
    if (got != wanted) {
        fprintf(stderr, "line %d: %s: %#x, expected %#x\n", line, what, (unsigned)got, (unsigned)wanted);
        exit(1);
    }
}

/* Waits for the next event, which must be of this kind. */
static inline DAT_EVENT next(DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number, int line) {
    DAT_EVENT event;
    DAT_COUNT more;
    is(dat_evd_wait(evd, 20 * SECOND, 1, &event, &more), DAT_SUCCESS, "dat_evd_wait", line);
    if (event.event_number != number) {
        fprintf(stderr, "line %d: event %#x, expected %#x\n", line, event.event_number, number);
        exit(1);
    }
    CHECK(event.evd_handle == evd);
    return event;
}
#define NEXT(evd, number) next(evd, number, __LINE__)

/* Waits for the next completion, and checks its cookie and status. */
static inline DAT_DTO_COMPLETION_EVENT_DATA done(DAT_EVD_HANDLE evd, DAT_UINT64 cookie, int status, int line) {
    DAT_EVENT event = next(evd, DAT_DTO_COMPLETION_EVENT, line);
    DAT_DTO_COMPLETION_EVENT_DATA data = event.event_data.dto_completion_event_data;
    if (data.user_cookie.as_64 != cookie || (int)data.status != status) {
        fprintf(stderr, "line %d: completion %llu with status %d, expected %llu with %d\n", line,
                (unsigned long long)data.user_cookie.as_64, data.status, (unsigned long long)cookie, status);
        exit(1);
    }
    return data;
}
#define DONE(evd, cookie, status) done(evd, cookie, status, __LINE__)

static inline DAT_DTO_COOKIE cookie(DAT_UINT64 number) {
    DAT_DTO_COOKIE cookie;
    cookie.as_64 = number;
    return cookie;
}

static inline void nothing(DAT_EVD_HANDLE evd, int line) {
    DAT_EVENT event;
    if (DAT_GET_TYPE(dat_evd_dequeue(evd, &event)) != DAT_QUEUE_EMPTY) {
        fprintf(stderr, "line %d: an event %#x, expected none\n", line, event.event_number);
        exit(1);
    }
}
#define NOTHING(evd) nothing(evd, __LINE__)

enum { A, B, SIZE = 65536 };

/* The registry has a number for an adapter. It lacks some calls, which take the provider's own handle. */
static DAT_IA_HANDLE ia, inner;
static DAT_EVD_HANDLE async_evd, cr_evd;
static DAT_PZ_HANDLE pz;
static DAT_PSP_HANDLE psp;
static DAT_CONN_QUAL qualifier;
static DAT_IA_ATTR ia_attr;
/* Objects of both ends. */
static DAT_EP_HANDLE ep[2];
static DAT_EVD_HANDLE recv_evd[2], request_evd[2], connect_evd[2];
static DAT_LMR_HANDLE lmr[2];
static DAT_LMR_TRIPLET whole[2];
static DAT_RMR_CONTEXT rmr_context[2];
static char *memory[2];

static inline DAT_LMR_TRIPLET piece(int of, int at, int len) {
    DAT_LMR_TRIPLET triplet = whole[of];
    triplet.virtual_address += at;
    triplet.segment_length = len;
    return triplet;
}

static inline DAT_RMR_TRIPLET remote(int of, int at, int len, DAT_RMR_CONTEXT context) {
    DAT_RMR_TRIPLET triplet;
    triplet.virtual_address = whole[of].virtual_address + at;
    triplet.segment_length = len;
    triplet.rmr_context = context;
    return triplet;
}

static inline void open_all(void) {
    DAT_REGION_DESCRIPTION region;
    DAT_PZ_PARAM pz_param;
    int end;
    async_evd = DAT_HANDLE_NULL;
    OK(dat_ia_open("udeck", 8, &async_evd, &ia));
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &ia_attr, 0, NULL));
    OK(dat_pz_create(ia, &pz));
    OK(dat_pz_query(pz, DAT_PZ_FIELD_ALL, &pz_param));
    inner = pz_param.ia_handle;
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &cr_evd));
    OK(dat_psp_create_any(ia, &qualifier, cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
    for (end = A; end <= B; end++) {
        OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &recv_evd[end]));
        OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG, &request_evd[end]));
        OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connect_evd[end]));
        memory[end] = calloc(1, SIZE);
        region.for_va = memory[end];
        OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, SIZE, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &lmr[end],
                          &whole[end].lmr_context, &rmr_context[end], NULL, NULL));
        whole[end].virtual_address = (DAT_VADDR)(uintptr_t)memory[end];
        whole[end].segment_length = SIZE;
    }
}

static inline void make_ep(int end) {
    OK(dat_ep_create(ia, pz, recv_evd[end], request_evd[end], connect_evd[end], NULL, &ep[end]));
}

/* A connects, B accepts. */
static inline void connect_both(void) {
    DAT_EVENT event;
    OK(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, qualifier, 20 * SECOND, 2, "hi", DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    event = NEXT(cr_evd, DAT_CONNECTION_REQUEST_EVENT);
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ep[B], 3, "you"));
    event = NEXT(connect_evd[B], DAT_CONNECTION_EVENT_ESTABLISHED);
    CHECK(event.event_data.connect_event_data.ep_handle == ep[B]);
    event = NEXT(connect_evd[A], DAT_CONNECTION_EVENT_ESTABLISHED);
    CHECK(event.event_data.connect_event_data.ep_handle == ep[A]);
    CHECK(event.event_data.connect_event_data.private_data_size == 3);
    CHECK(memcmp(event.event_data.connect_event_data.private_data, "you", 3) == 0);
}

static inline DAT_EP_STATE state_of(DAT_EP_HANDLE handle) {
    DAT_EP_STATE state;
    OK(dat_ep_get_status(handle, &state, NULL, NULL));
    return state;
}

static inline void close_all(void) {
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    free(memory[A]);
    free(memory[B]);
    puts("well");
}
