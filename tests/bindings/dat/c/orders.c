/* Messages without receives, binds that wait for their turn, and slow agents. */

#include <pthread.h>
#include <unistd.h>

#include "test.h"

enum { POSTED = 4096 };

/* The context of a bind becomes valid when the bind is carried out, and not before. */
static void binds_in_its_turn(void) {
    DAT_EP_ATTR attr;
    DAT_RMR_HANDLE rmr;
    DAT_RMR_CONTEXT context;
    DAT_LMR_TRIPLET part = piece(A, 0, 8), window = piece(A, 4096, 8), from = piece(B, 0, 8);
    DAT_RMR_TRIPLET there;
    DAT_EP_PARAM param;
    DAT_EVENT event;
    DAT_COUNT more;
    int posted, pass;
    OK(dat_rmr_create(pz, &rmr));
    make_ep(A);
    OK(dat_ep_query(ep[A], DAT_EP_FIELD_ALL, &param));
    OK(dat_ep_free(ep[A]));
    attr = param.ep_attr;
    attr.max_request_dtos = POSTED + 1;
    for (pass = 0; pass < 2; pass++) {
        OK(dat_ep_create(ia, pz, recv_evd[A], request_evd[A], connect_evd[A], &attr, &ep[A]));
        OK(dat_ep_create(ia, pz, recv_evd[B], request_evd[B], connect_evd[B], &attr, &ep[B]));
        connect_both();
        /* B has no receives: A's messages fill the connection, and the bind waits behind them. */
        for (posted = 0; pass == 0 && posted < POSTED; posted++) {
            OK(dat_ep_post_send(ep[A], 1, &part, cookie(1), DAT_COMPLETION_SUPPRESS_FLAG));
        }
        memset(memory[A] + 4096, 7, 8);
        memset(memory[B], 8, 8);
        OK(dat_rmr_bind(rmr, lmr[A], &window, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, DAT_VA_TYPE_VA, ep[A], cookie(2), DAT_COMPLETION_DEFAULT_FLAG,
                        &context));
        if (pass == 1) NEXT(request_evd[A], DAT_RMR_BIND_COMPLETION_EVENT);
        NOTHING(request_evd[A]);
        there = remote(A, 4096, 8, context);
        OK(dat_ep_post_rdma_write(ep[B], 1, &from, cookie(3), &there, DAT_COMPLETION_DEFAULT_FLAG));
        DONE(request_evd[B], 3, DAT_DTO_SUCCESS);
        if (pass == 0) {
            NEXT(connect_evd[A], DAT_CONNECTION_EVENT_BROKEN);
            CHECK(memory[A][4096] == 7);
            /* A message without a receive keeps the end point from learning that soon. */
            OK(dat_ep_disconnect(ep[B], DAT_CLOSE_ABRUPT_FLAG));
            OK(dat_evd_wait(connect_evd[B], 20 * SECOND, 1, &event, &more));
            do OK(dat_evd_dequeue(request_evd[A], &event));
            while (event.event_number != DAT_RMR_BIND_COMPLETION_EVENT);
            CHECK(event.event_data.rmr_completion_event_data.status == DAT_DTO_ERR_FLUSHED);
        } else {
            /* The write has arrived when a message behind it has. */
            part = piece(A, 0, 8);
            OK(dat_ep_post_recv(ep[A], 1, &part, cookie(4), 0));
            OK(dat_ep_post_send(ep[B], 1, &from, cookie(5), DAT_COMPLETION_SUPPRESS_FLAG));
            DONE(recv_evd[A], 4, DAT_DTO_SUCCESS);
            CHECK(memory[A][4096] == 8);
            OK(dat_ep_disconnect(ep[A], DAT_CLOSE_ABRUPT_FLAG));
            NEXT(connect_evd[A], DAT_CONNECTION_EVENT_DISCONNECTED);
            NEXT(connect_evd[B], DAT_CONNECTION_EVENT_DISCONNECTED);
        }
        OK(dat_ep_free(ep[A]));
        OK(dat_ep_free(ep[B]));
    }
    OK(dat_rmr_free(rmr));
}

enum { LARGE = 48 << 20, CONNECTIONS = 4 };

/* Messages without receives wait, but no more of them than an adapter bears: the others fail at once. */
static void bears_so_many_bytes_without_a_receive(void) {
    DAT_EP_HANDLE senders[CONNECTIONS], receivers[CONNECTIONS];
    DAT_LMR_HANDLE large;
    DAT_LMR_TRIPLET whole_of_it;
    DAT_REGION_DESCRIPTION region;
    DAT_EVENT event;
    char *bytes = calloc(1, LARGE);
    int at;
    region.for_va = bytes;
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, LARGE, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &large, &whole_of_it.lmr_context,
                      NULL, NULL, NULL));
    whole_of_it.virtual_address = (DAT_VADDR)(uintptr_t)bytes;
    whole_of_it.segment_length = LARGE;
    bytes[LARGE - 1] = 'z';
    for (at = 0; at < CONNECTIONS; at++) {
        make_ep(A);
        make_ep(B);
        connect_both();
        senders[at] = ep[A];
        receivers[at] = ep[B];
        OK(dat_ep_post_send(ep[A], 1, &whole_of_it, cookie(at), DAT_COMPLETION_DEFAULT_FLAG));
        if (at < CONNECTIONS - 1) DONE(request_evd[A], at, DAT_DTO_SUCCESS);
    }
    event = NEXT(connect_evd[B], DAT_CONNECTION_EVENT_BROKEN);
    CHECK(event.event_data.connect_event_data.ep_handle == receivers[CONNECTIONS - 1]);
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_BROKEN);
    for (at = 0; at < CONNECTIONS - 1; at++) {
        CHECK(state_of(receivers[at]) == DAT_EP_STATE_CONNECTED);
        OK(dat_ep_post_recv(receivers[at], 1, &whole_of_it, cookie(10 + at), 0));
        CHECK(DONE(recv_evd[B], 10 + at, DAT_DTO_SUCCESS).transfered_length == LARGE);
        CHECK(bytes[LARGE - 1] == 'z');
    }
    for (at = 0; at < CONNECTIONS; at++) {
        OK(dat_ep_free(senders[at]));
        OK(dat_ep_free(receivers[at]));
    }
    OK(dat_lmr_free(large));
    free(bytes);
    while (DAT_GET_TYPE(dat_evd_dequeue(request_evd[A], &event)) != DAT_QUEUE_EMPTY) continue;
    while (DAT_GET_TYPE(dat_evd_dequeue(connect_evd[B], &event)) != DAT_QUEUE_EMPTY) continue;
}

struct agent {
    int calls, is_inside, may_return;
    DAT_CNO_HANDLE frees;
};

static void take_time(DAT_PVOID data, DAT_EVD_HANDLE evd) {
    struct agent *agent = data;
    (void)evd;
    __atomic_add_fetch(&agent->calls, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&agent->is_inside, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&agent->may_return, __ATOMIC_SEQ_CST)) usleep(1000);
    __atomic_store_n(&agent->is_inside, 0, __ATOMIC_SEQ_CST);
}

static void *let_return(void *data) {
    struct agent *agent = data;
    usleep(100000);
    __atomic_store_n(&agent->may_return, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void free_own(DAT_PVOID data, DAT_EVD_HANDLE evd) {
    struct agent *agent = data;
    OK(dat_evd_modify_cno(evd, DAT_HANDLE_NULL));
    OK(dat_cno_free(agent->frees));
    __atomic_add_fetch(&agent->calls, 1, __ATOMIC_SEQ_CST);
}

static void until(int *what, int wanted) {
    int looks;
    for (looks = 0; looks < 20000 && __atomic_load_n(what, __ATOMIC_SEQ_CST) != wanted; looks++) usleep(1000);
    CHECK(__atomic_load_n(what, __ATOMIC_SEQ_CST) == wanted);
}

/* An agent's call is over when its object is free; news wait for it once. */
static void ends_with_its_agent(void) {
    struct agent agent = {0, 0, 0, DAT_HANDLE_NULL};
    DAT_OS_WAIT_PROXY_AGENT proxy = {&agent, take_time}, freeing = {&agent, free_own};
    DAT_EVD_HANDLE evd;
    DAT_CNO_HANDLE cno;
    DAT_EVENT event;
    pthread_t thread;
    int at;
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_cno_create(ia, proxy, &cno));
    OK(dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
    OK(dat_evd_post_se(evd, &event));
    until(&agent.is_inside, 1);
    for (at = 0; at < 1000; at++) OK(dat_evd_post_se(evd, &event));
    agent.may_return = 1;
    until(&agent.is_inside, 0);
    until(&agent.calls, 2); /* The agent is called once for all thousand. */
    usleep(50000);
    CHECK(agent.calls == 2);
    until(&agent.is_inside, 0);
    agent.may_return = 0;
    OK(dat_evd_post_se(evd, &event));
    until(&agent.is_inside, 1);
    OK(dat_evd_modify_cno(evd, DAT_HANDLE_NULL));
    pthread_create(&thread, NULL, let_return, &agent);
    OK(dat_cno_free(cno));
    CHECK(!agent.is_inside);
    pthread_join(thread, NULL);
    /* An agent may free its own object. */
    agent.calls = 0;
    OK(dat_cno_create(ia, freeing, &cno));
    agent.frees = cno;
    OK(dat_evd_modify_cno(evd, cno));
    until(&agent.calls, 1);
    OK(dat_evd_free(evd));
}

/* A message without a receive does not delay the answer to a read: the program may post the receive after it has read. */
static void reads_while_a_message_waits(void) {
    DAT_LMR_TRIPLET message = piece(A, 0, 8), into = piece(B, 0, 8);
    DAT_RMR_TRIPLET there = remote(A, 64, 8, rmr_context[A]);
    int at;
    make_ep(A);
    make_ep(B);
    connect_both();
    memcpy(memory[A] + 64, "answer", 7);
    for (at = 0; at < 20; at++) OK(dat_ep_post_send(ep[A], 1, &message, cookie(at), DAT_COMPLETION_SUPPRESS_FLAG));
    OK(dat_ep_post_rdma_read(ep[B], 1, &into, cookie(1), &there, DAT_COMPLETION_DEFAULT_FLAG));
    DONE(request_evd[B], 1, DAT_DTO_SUCCESS);
    CHECK(strcmp(memory[B], "answer") == 0);
    for (at = 0; at < 20; at++) OK(dat_ep_post_recv(ep[B], 1, &into, cookie(at), 0));
    for (at = 0; at < 20; at++) DONE(recv_evd[B], at, DAT_DTO_SUCCESS);
    OK(dat_ep_disconnect(ep[A], DAT_CLOSE_GRACEFUL_FLAG));
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_DISCONNECTED);
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_free(ep[A]));
    OK(dat_ep_free(ep[B]));
}

int main(void) {
    open_all();
    reads_while_a_message_waits();
    binds_in_its_turn();
    /* Elsewhere this number of bytes may take longer than a message waits. */
    if (strcmp(ia_attr.adapter_name, "shm0") == 0) bears_so_many_bytes_without_a_receive();
    ends_with_its_agent();
    close_all();
    return 0;
}
