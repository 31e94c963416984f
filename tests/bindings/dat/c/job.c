/* Two ranks of a deckrun job: rank 0 listens, rank 1 connects. With the argument "dies" rank 1 then kills itself, and rank 0
 * learns it. */

#include <signal.h>
#include <unistd.h>

#include "test.h"

enum { SERVICE = 4711, ROUNDS = 100 };

/* Memory that the other rank may read and write, described in a message. */
struct place {
    DAT_VADDR address;
    DAT_RMR_CONTEXT context;
};

static void receive(int at, DAT_UINT64 number) {
    DAT_LMR_TRIPLET part = piece(A, at, 64);
    OK(dat_ep_post_recv(ep[A], 1, &part, cookie(number), 0));
}

static void say(int at) {
    DAT_LMR_TRIPLET part = piece(A, at, 64);
    OK(dat_ep_post_send(ep[A], 1, &part, cookie(9), DAT_COMPLETION_DEFAULT_FLAG));
    DONE(request_evd[A], 9, DAT_DTO_SUCCESS);
}

static void listen_and_accept(void) {
    DAT_PSP_HANDLE service;
    DAT_EVENT event;
    OK(dat_psp_create(ia, SERVICE, cr_evd, DAT_PSP_CONSUMER_FLAG, &service));
    event = NEXT(cr_evd, DAT_CONNECTION_REQUEST_EVENT);
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ep[A], 0, NULL));
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_ESTABLISHED);
}

/* The other rank may not be listening yet. */
static void connect_to_who_listens(void) {
    DAT_EVENT event;
    DAT_COUNT count;
    int attempts;
    for (attempts = 0; attempts < 200; attempts++) {
        OK(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, SERVICE, 20 * SECOND, 0, NULL, 0, 0));
        OK(dat_evd_wait(connect_evd[A], 20 * SECOND, 1, &event, &count));
        if (event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED) return;
        CHECK(event.event_number == DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
        OK(dat_ep_reset(ep[A]));
        usleep(20000);
    }
    fail("nobody listens", __LINE__);
}

int main(int argc, char **argv) {
    const char *rank = getenv("DECK_RANK");
    int listens = rank != NULL && strcmp(rank, "0") == 0, round;
    int dies = argc > 1 && strcmp(argv[1], "dies") == 0;
    struct place *own, *theirs;
    DAT_LMR_TRIPLET part;
    DAT_RMR_TRIPLET there;
    DAT_EVENT event;
    DAT_COUNT count;
    CHECK(rank != NULL);
    open_all();
    make_ep(A);
    own = (struct place *)memory[A];
    theirs = (struct place *)(memory[A] + 64);
    receive(64, 1);
    if (listens) {
        listen_and_accept();
    } else {
        connect_to_who_listens();
    }
    own->address = whole[A].virtual_address + 4096;
    own->context = rmr_context[A];
    say(0);
    DONE(recv_evd[A], 1, DAT_DTO_SUCCESS);
    if (dies && !listens) kill(getpid(), SIGKILL);
    if (dies) {
        receive(64, 2);
        OK(dat_evd_wait(connect_evd[A], 60 * SECOND, 1, &event, &count));
        CHECK(event.event_number == DAT_CONNECTION_EVENT_BROKEN || event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED);
        DONE(recv_evd[A], 2, DAT_DTO_ERR_FLUSHED);
        close_all();
        return 0;
    }
    /* Each rank writes to the other's memory and tells it, and the other reads back what it has written. */
    there.virtual_address = theirs->address;
    there.rmr_context = theirs->context;
    there.segment_length = 1024;
    for (round = 1; round <= ROUNDS; round++) {
        receive(128, 3);
        memset(memory[A] + 8192, round, 1024);
        part = piece(A, 8192, 1024);
        OK(dat_ep_post_rdma_write(ep[A], 1, &part, cookie(4), &there, DAT_COMPLETION_SUPPRESS_FLAG));
        say(192);
        DONE(recv_evd[A], 3, DAT_DTO_SUCCESS);
        CHECK(memory[A][4096] == (char)round && memory[A][4096 + 1023] == (char)round);
        part = piece(A, 16384, 1024);
        OK(dat_ep_post_rdma_read(ep[A], 1, &part, cookie(5), &there, DAT_COMPLETION_DEFAULT_FLAG));
        DONE(request_evd[A], 5, DAT_DTO_SUCCESS);
        CHECK(memory[A][16384] == (char)round);
        /* Neither rank writes again before the other has read. */
        receive(128, 6);
        say(192);
        DONE(recv_evd[A], 6, DAT_DTO_SUCCESS);
    }
    if (listens) {
        OK(dat_ep_disconnect(ep[A], DAT_CLOSE_GRACEFUL_FLAG));
    }
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_DISCONNECTED);
    close_all();
    return 0;
}
