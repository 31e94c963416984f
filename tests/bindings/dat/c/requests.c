/* Connection requests: unanswered ones, more than are answered, requests of a reserved service point that ends, and of other
 * adapters. */

#include <dirent.h>
#include <unistd.h>

#include "test.h"

/* Number of threads of this process that make connects. */
static int askers(void) {
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    int count = 0;
    CHECK(tasks != NULL);
    while ((task = readdir(tasks)) != NULL) {
        char path[300], name[32] = "";
        FILE *file;
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        file = fopen(path, "r");
        if (file == NULL) continue;
        if (fgets(name, sizeof name, file) != NULL && strncmp(name, "deck-dat-call", 13) == 0) count++;
        fclose(file);
    }
    closedir(tasks);
    return count;
}

static void nobody_asks(void) {
    int looks;
    for (looks = 0; looks < 20000 && askers() > 0; looks++) usleep(1000);
    CHECK(askers() == 0);
}

static void ask(DAT_EP_HANDLE handle, DAT_CONN_QUAL whom, DAT_TIMEOUT timeout) {
    OK(dat_ep_connect(handle, ia_attr.ia_address_ptr, whom, timeout, 0, NULL, 0, 0));
}

static DAT_CR_HANDLE asked(void) {
    return NEXT(cr_evd, DAT_CONNECTION_REQUEST_EVENT).event_data.cr_arrival_event_data.cr_handle;
}

/* A request that nobody answers ends with its end point. */
static void ends_with_its_end_point(void) {
    DAT_CR_HANDLE cr;
    make_ep(A);
    ask(ep[A], qualifier, DAT_TIMEOUT_INFINITE);
    cr = asked();
    CHECK(askers() == 1);
    OK(dat_ep_free(ep[A]));
    nobody_asks();
    OK(dat_cr_reject(cr, 0, NULL));
    make_ep(A);
    ask(ep[A], qualifier, DAT_TIMEOUT_INFINITE);
    cr = asked();
    OK(dat_ep_disconnect(ep[A], DAT_CLOSE_ABRUPT_FLAG));
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_DISCONNECTED);
    nobody_asks();
    OK(dat_cr_reject(cr, 0, NULL));
    /* Or it ends at its time limit. */
    OK(dat_ep_reset(ep[A]));
    ask(ep[A], qualifier, 100000);
    cr = asked();
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_TIMED_OUT);
    nobody_asks();
    CHECK(state_of(ep[A]) == DAT_EP_STATE_DISCONNECTED);
    OK(dat_cr_reject(cr, 0, NULL));
    OK(dat_ep_free(ep[A]));
}

enum { MANY = 200, MOST = 128 };

/* A service point holds a bounded number of unanswered requests, and accepts the next one when one of them is answered. */
static void are_not_more_than_so_many(void) {
    static DAT_EP_HANDLE all[MANY];
    static DAT_CR_HANDLE crs[MANY];
    DAT_EVENT event;
    DAT_COUNT more;
    int at;
    for (at = 0; at < MANY; at++) {
        OK(dat_ep_create(ia, pz, recv_evd[A], request_evd[A], connect_evd[A], NULL, &all[at]));
        ask(all[at], qualifier, DAT_TIMEOUT_INFINITE);
    }
    for (at = 0; at < MOST; at++) crs[at] = asked();
    FAILS(dat_evd_wait(cr_evd, 300000, 1, &event, &more), DAT_TIMEOUT_EXPIRED, 0);
    for (at = 0; at < MANY; at++) {
        OK(dat_cr_reject(crs[at], 0, NULL));
        if (at + MOST < MANY) crs[at + MOST] = asked();
    }
    for (at = 0; at < MANY; at++) NEXT(connect_evd[A], DAT_CONNECTION_EVENT_PEER_REJECTED);
    NOTHING(cr_evd);
    for (at = 0; at < MANY; at++) OK(dat_ep_free(all[at]));
    nobody_asks();
}

/* The request of a reserved service point outlives it. */
static void stays_when_its_service_point_goes(void) {
    DAT_RSP_HANDLE rsp;
    DAT_CR_HANDLE cr;
    make_ep(A);
    make_ep(B);
    OK(dat_rsp_create(ia, 99, ep[B], cr_evd, &rsp));
    ask(ep[A], 99, 20 * SECOND);
    cr = asked();
    OK(dat_rsp_free(rsp));
    CHECK(state_of(ep[B]) == DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING);
    FAILS(dat_ep_free(ep[B]), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_TENTCONNPENDING);
    OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_ESTABLISHED);
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_ESTABLISHED);
    OK(dat_ep_free(ep[A]));
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_reset(ep[B]));
    make_ep(A);
    /* When the request is refused, its end point is free. */
    OK(dat_rsp_create(ia, 99, ep[B], cr_evd, &rsp));
    ask(ep[A], 99, 20 * SECOND);
    cr = asked();
    OK(dat_rsp_free(rsp));
    OK(dat_cr_reject(cr, 0, NULL));
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_PEER_REJECTED);
    CHECK(state_of(ep[B]) == DAT_EP_STATE_UNCONNECTED);
    /* When the request is refused while the service point exists, the end point stays reserved. */
    OK(dat_ep_reset(ep[A]));
    OK(dat_rsp_create(ia, 99, ep[B], cr_evd, &rsp));
    ask(ep[A], 99, 20 * SECOND);
    OK(dat_cr_reject(asked(), 0, NULL));
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_PEER_REJECTED);
    CHECK(state_of(ep[B]) == DAT_EP_STATE_RESERVED);
    OK(dat_rsp_free(rsp));
    CHECK(state_of(ep[B]) == DAT_EP_STATE_UNCONNECTED);
    OK(dat_ep_free(ep[A]));
    OK(dat_ep_free(ep[B]));
}

/* The peer's data stay valid as long as an event points to them, whatever becomes of the end point. */
static void keeps_what_a_peer_has_said(void) {
    static const char words[] = "what a peer has said is there when its event is taken";
    DAT_EVENT event;
    void *others[1000];
    int at;
    make_ep(A);
    make_ep(B);
    ask(ep[A], qualifier, 20 * SECOND);
    OK(dat_cr_accept(asked(), ep[B], sizeof words, (DAT_PVOID)words));
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_ESTABLISHED);
    for (at = 0; at < 20000 && state_of(ep[A]) != DAT_EP_STATE_CONNECTED; at++) usleep(1000);
    OK(dat_ep_disconnect(ep[A], DAT_CLOSE_ABRUPT_FLAG));
    OK(dat_ep_reset(ep[A]));
    OK(dat_ep_free(ep[A]));
    for (at = 0; at < 1000; at++) others[at] = memset(malloc(sizeof words), 'x', sizeof words);
    event = NEXT(connect_evd[A], DAT_CONNECTION_EVENT_ESTABLISHED);
    CHECK(event.event_data.connect_event_data.private_data_size == sizeof words);
    CHECK(memcmp(event.event_data.connect_event_data.private_data, words, sizeof words) == 0);
    for (at = 0; at < 1000; at++) free(others[at]);
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_DISCONNECTED);
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_free(ep[B]));
}

/* The peer's address that a query has returned stays readable as long as the end point exists. */
static void keeps_the_address_of_its_peer(void) {
    DAT_EP_PARAM param;
    struct sockaddr_in *of_a, *of_b;
    void *others[1000];
    int round, at;
    make_ep(A);
    make_ep(B);
    for (round = 0; round < 2; round++) {
        ask(ep[A], qualifier, 20 * SECOND);
        OK(dat_ep_query(ep[A], DAT_EP_FIELD_ALL, &param));
        of_a = (struct sockaddr_in *)param.remote_ia_address_ptr;
        CHECK(of_a != NULL);
        OK(dat_cr_accept(asked(), ep[B], 0, NULL));
        NEXT(connect_evd[B], DAT_CONNECTION_EVENT_ESTABLISHED);
        NEXT(connect_evd[A], DAT_CONNECTION_EVENT_ESTABLISHED);
        OK(dat_ep_query(ep[B], DAT_EP_FIELD_ALL, &param));
        of_b = (struct sockaddr_in *)param.remote_ia_address_ptr;
        for (at = 0; at < 1000; at++) others[at] = memset(malloc(32), 'x', 32);
        CHECK(of_a->sin_family == AF_INET && of_a->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
        OK(dat_ep_disconnect(ep[A], DAT_CLOSE_ABRUPT_FLAG));
        NEXT(connect_evd[A], DAT_CONNECTION_EVENT_DISCONNECTED);
        NEXT(connect_evd[B], DAT_CONNECTION_EVENT_DISCONNECTED);
        OK(dat_ep_reset(ep[A]));
        OK(dat_ep_reset(ep[B]));
        for (at = 0; at < 1000; at++) free(others[at]);
        for (at = 0; at < 1000; at++) others[at] = memset(malloc(32), 'x', 32);
        CHECK(of_a->sin_family == AF_INET && of_a->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
        CHECK(of_b->sin_family == AF_INET && of_b->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
        for (at = 0; at < 1000; at++) free(others[at]);
        OK(dat_ep_query(ep[A], DAT_EP_FIELD_ALL, &param));
        CHECK(param.remote_ia_address_ptr == NULL);
        /* No service point listens there. */
        ask(ep[A], 7, 100000);
        OK(dat_ep_query(ep[A], DAT_EP_FIELD_ALL, &param));
        of_a = (struct sockaddr_in *)param.remote_ia_address_ptr;
        while (state_of(ep[A]) != DAT_EP_STATE_DISCONNECTED) usleep(1000);
        CHECK(of_a->sin_family == AF_INET);
        NEXT(connect_evd[A], DAT_CONNECTION_EVENT_TIMED_OUT);
        OK(dat_ep_reset(ep[A]));
    }
    OK(dat_ep_free(ep[A]));
    OK(dat_ep_free(ep[B]));
}

enum { ROUNDS = 200, ASKERS = 4 };

/* A service point closes while requests arrive: each request named by an event is valid, and there is no other. */
static void are_there_when_an_event_names_them(void) {
    DAT_EP_HANDLE all[ASKERS];
    DAT_PSP_HANDLE closes;
    DAT_EVENT event;
    int round, at;
    for (round = 0; round < ROUNDS; round++) {
        OK(dat_psp_create(ia, 1000 + round, cr_evd, DAT_PSP_CONSUMER_FLAG, &closes));
        for (at = 0; at < ASKERS; at++) {
            OK(dat_ep_create(ia, pz, recv_evd[A], request_evd[A], connect_evd[A], NULL, &all[at]));
            ask(all[at], 1000 + round, DAT_TIMEOUT_INFINITE);
        }
        usleep(50 * (round % 20));
        OK(dat_psp_free(closes));
        while (DAT_GET_TYPE(dat_evd_dequeue(cr_evd, &event)) == DAT_SUCCESS) {
            CHECK(event.event_data.cr_arrival_event_data.conn_qual == (DAT_CONN_QUAL)(1000 + round));
            OK(dat_cr_reject(event.event_data.cr_arrival_event_data.cr_handle, 0, NULL));
        }
        for (at = 0; at < ASKERS; at++) OK(dat_ep_free(all[at]));
        NOTHING(cr_evd);
        while (DAT_GET_TYPE(dat_evd_dequeue(connect_evd[A], &event)) == DAT_SUCCESS) continue;
    }
    /* A thread that has just begun has no name yet. */
    for (at = 0; at < 100; at = askers() == 0 ? at + 1 : 0) usleep(1000);
}

/* Objects of another adapter are invalid at this one. */
static void are_not_of_another_adapter(void) {
    DAT_IA_HANDLE other;
    DAT_EVD_HANDLE other_async = DAT_HANDLE_NULL, other_evd, made_evd;
    DAT_PZ_HANDLE other_pz;
    DAT_EP_HANDLE other_ep, made;
    DAT_CNO_HANDLE other_cno;
    DAT_SRQ_HANDLE other_srq;
    DAT_LMR_HANDLE other_lmr, made_lmr;
    DAT_RMR_HANDLE rmr;
    DAT_RSP_HANDLE rsp;
    DAT_PSP_HANDLE made_psp;
    DAT_SRQ_ATTR srq_attr = {8, 1, 0};
    DAT_EP_PARAM param;
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_CONTEXT context;
    DAT_LMR_TRIPLET part = piece(A, 0, 8);
    DAT_CR_HANDLE cr;
    OK(dat_ia_open("udeck", 8, &other_async, &other));
    OK(dat_pz_create(other, &other_pz));
    OK(dat_evd_create(other, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG | DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG, &other_evd));
    OK(dat_cno_create(other, DAT_OS_WAIT_PROXY_AGENT_NULL, &other_cno));
    OK(dat_srq_create(other, other_pz, &srq_attr, &other_srq));
    OK(dat_ep_create(other, other_pz, other_evd, other_evd, other_evd, NULL, &other_ep));
    region.for_va = memory[A];
    OK(dat_lmr_create(other, DAT_MEM_TYPE_VIRTUAL, region, SIZE, other_pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &other_lmr, &context,
                      NULL, NULL, NULL));
    make_ep(A);
    FAILS(dat_ep_create(ia, other_pz, recv_evd[A], request_evd[A], connect_evd[A], NULL, &made), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
    FAILS(dat_ep_create(ia, pz, other_evd, request_evd[A], connect_evd[A], NULL, &made), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_RECV);
    FAILS(dat_ep_create(ia, pz, recv_evd[A], other_evd, connect_evd[A], NULL, &made), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_REQUEST);
    /* The program chooses the dispatcher of connection events. */
    OK(dat_ep_create(ia, pz, recv_evd[A], request_evd[A], other_evd, NULL, &made));
    OK(dat_ep_free(made));
    FAILS(dat_ep_create_with_srq(ia, pz, recv_evd[A], request_evd[A], connect_evd[A], other_srq, NULL, &made), DAT_INVALID_HANDLE,
          DAT_INVALID_HANDLE_SRQ);
    OK(dat_ep_query(ep[A], DAT_EP_FIELD_ALL, &param));
    param.pz_handle = other_pz;
    param.recv_evd_handle = param.request_evd_handle = param.connect_evd_handle = other_evd;
    FAILS(dat_ep_modify(ep[A], DAT_EP_FIELD_PZ_HANDLE, &param), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
    FAILS(dat_ep_modify(ep[A], DAT_EP_FIELD_RECV_EVD_HANDLE, &param), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_RECV);
    FAILS(dat_evd_create(ia, 8, other_cno, DAT_EVD_SOFTWARE_FLAG, &made_evd), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CNO);
    FAILS(dat_evd_modify_cno(cr_evd, other_cno), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CNO);
    FAILS(dat_psp_create(ia, 77, other_evd, DAT_PSP_CONSUMER_FLAG, &made_psp), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_CR);
    FAILS(dat_rsp_create(ia, 77, ep[A], other_evd, &rsp), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_CR);
    CHECK(state_of(ep[A]) == DAT_EP_STATE_UNCONNECTED);
    FAILS(dat_rsp_create(ia, 77, other_ep, cr_evd, &rsp), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    FAILS(dat_srq_create(ia, other_pz, &srq_attr, &other_srq), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
    FAILS(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, SIZE, other_pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &made_lmr, &context,
                         NULL, NULL, NULL), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
    region.for_lmr_handle = other_lmr;
    FAILS(dat_lmr_create(ia, DAT_MEM_TYPE_LMR, region, SIZE, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &made_lmr, &context, NULL, NULL,
                         NULL), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR);
    OK(dat_rmr_create(pz, &rmr));
    FAILS(dat_rmr_bind(rmr, other_lmr, &part, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, DAT_VA_TYPE_VA, ep[A], cookie(1), 0, &context),
          DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR);
    FAILS(dat_rmr_bind(rmr, lmr[A], &part, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, DAT_VA_TYPE_VA, other_ep, cookie(1), 0, &context),
          DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    OK(dat_rmr_free(rmr));
    FAILS(dat_ep_dup_connect(ep[A], other_ep, SECOND, 0, NULL, 0), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    /* A request that is accepted with the wrong end point stays valid. */
    ask(ep[A], qualifier, 20 * SECOND);
    cr = asked();
    FAILS(dat_cr_accept(cr, other_ep, 0, NULL), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    OK(dat_cr_reject(cr, 0, NULL));
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_PEER_REJECTED);
    OK(dat_ep_free(ep[A]));
    OK(dat_ia_close(other, DAT_CLOSE_ABRUPT_FLAG));
}

/* The end of the adapter leaves no connecting thread either. */
static void ends_with_its_adapter(void) {
    make_ep(A);
    ask(ep[A], qualifier, DAT_TIMEOUT_INFINITE);
    (void)asked();
    CHECK(askers() == 1);
    close_all();
    nobody_asks();
}

int main(void) {
    open_all();
    ends_with_its_end_point();
    /* Over UDP each datagram wakes all connecting threads: two hundred of them take a minute on few processors. */
    if (strcmp(ia_attr.adapter_name, "udp0") != 0) are_not_more_than_so_many();
    stays_when_its_service_point_goes();
    keeps_what_a_peer_has_said();
    keeps_the_address_of_its_peer();
    are_there_when_an_event_names_them();
    are_not_of_another_adapter();
    ends_with_its_adapter();
    return 0;
}
