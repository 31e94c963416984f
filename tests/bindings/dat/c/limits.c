/* Refusals of calls because of the objects' states: states of end points, rights, full queues, and waiting threads. (`refusals.c` has
   wrong handles and arguments.) */

#include <pthread.h>
#include <unistd.h>

#include "test.h"

enum { FEW = 2, MANY_EVENTS = 9000 };

static DAT_RMR_HANDLE rmr;

/* An end point without a protection zone, and an end point without a connection. */
static void states(void) {
    DAT_LMR_TRIPLET part = piece(A, 0, 8);
    DAT_RMR_TRIPLET there = remote(B, 0, 8, rmr_context[B]);
    DAT_PROVIDER *calls = *(DAT_PROVIDER **)pz;
    DAT_RMR_CONTEXT context;
    DAT_RSP_HANDLE rsp;
    DAT_EP_HANDLE raw;
    OK(dat_ep_create(ia, DAT_HANDLE_NULL, recv_evd[A], request_evd[A], connect_evd[A], NULL, &raw));
    FAILS(dat_ep_post_recv(raw, 1, &part, cookie(1), 0), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONFIGURED);
    FAILS(dat_ep_post_send(raw, 1, &part, cookie(1), 0), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONFIGURED);
    FAILS(dat_ep_connect(raw, ia_attr.ia_address_ptr, qualifier, SECOND, 0, NULL, 0, 0), DAT_INVALID_STATE,
          DAT_INVALID_STATE_EP_UNCONFIGURED);
    FAILS(dat_rsp_create(ia, 601, raw, cr_evd, &rsp), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONFIGURED);
    OK(dat_ep_free(raw));
#define UNCONNECTED(call) FAILS(call, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONNECTED)
    UNCONNECTED(dat_ep_post_rdma_write(ep[A], 1, &part, cookie(1), &there, 0));
    UNCONNECTED(dat_ep_post_rdma_read(ep[A], 1, &part, cookie(1), &there, 0));
    UNCONNECTED(calls->ep_post_send_with_invalidate_func(ep[A], 1, &part, cookie(1), 0, DAT_TRUE, 7));
    UNCONNECTED(dat_rmr_bind(rmr, lmr[A], &part, DAT_MEM_PRIV_REMOTE_READ_FLAG, DAT_VA_TYPE_VA, ep[A], cookie(1), 0, &context));
    NOTHING(request_evd[A]);
}

/* Memory without the right that a call needs, and memory of another zone. */
static void rights(void) {
    DAT_LMR_TRIPLET part = piece(A, 0, 8), read_only = part, write_only = part, none;
    DAT_RMR_TRIPLET there = remote(B, 0, 8, rmr_context[B]);
    DAT_LMR_HANDLE readable, writable;
    DAT_RMR_HANDLE foreign;
    DAT_PZ_HANDLE other;
    DAT_RMR_CONTEXT context;
    DAT_REGION_DESCRIPTION region;
    region.for_va = memory[A];
#define REGION(flags, handle, triplet) \
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, SIZE, pz, flags, DAT_VA_TYPE_VA, handle, &(triplet).lmr_context, NULL, NULL, NULL))
    REGION(DAT_MEM_PRIV_LOCAL_READ_FLAG, &readable, read_only);
    REGION(DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &writable, write_only);
    /* Registered memory can be sent. */
    FAILS(dat_ep_post_rdma_read(ep[A], 1, &read_only, cookie(1), &there, 0), DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_WRITE);
#define BIND(handle, of, what, flags) dat_rmr_bind(handle, of, what, flags, DAT_VA_TYPE_VA, ep[A], cookie(1), 0, &context)
    FAILS(BIND(rmr, readable, &read_only, DAT_MEM_PRIV_REMOTE_WRITE_FLAG), DAT_PRIVILEGES_VIOLATION, 0);
    FAILS(BIND(rmr, writable, &write_only, DAT_MEM_PRIV_REMOTE_READ_FLAG), DAT_PRIVILEGES_VIOLATION, 0);
    OK(dat_pz_create(ia, &other));
    OK(dat_rmr_create(other, &foreign));
    FAILS(BIND(foreign, lmr[A], &part, DAT_MEM_PRIV_REMOTE_READ_FLAG), DAT_PROTECTION_VIOLATION, DAT_PROTECTION_RDMA_READ);
    /* A bind of zero bytes names no region, but an end point of another zone refuses it. */
    none = part;
    none.segment_length = 0;
    FAILS(BIND(foreign, DAT_HANDLE_NULL, &none, DAT_MEM_PRIV_REMOTE_READ_FLAG), DAT_PROTECTION_VIOLATION, DAT_PROTECTION_RDMA_READ);
    NOTHING(request_evd[A]);
    OK(dat_rmr_free(foreign));
    OK(dat_pz_free(other));
    OK(dat_lmr_free(readable));
    OK(dat_lmr_free(writable));
}

/* A message beyond the largest length, and a full queue of receives. */
static void sizes(void) {
    DAT_LMR_TRIPLET part = piece(A, 0, 8), long_one;
    DAT_SEG_LENGTH len = ia_attr.max_message_size + 1;
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_HANDLE large;
    DAT_EP_PARAM param;
    DAT_EP_HANDLE small;
    int at;
    char *bytes = calloc(1, len);
    region.for_va = bytes;
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, len, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &large, &long_one.lmr_context, NULL,
                      NULL, NULL));
    long_one.virtual_address = (DAT_VADDR)(uintptr_t)bytes;
    long_one.segment_length = len;
    FAILS(dat_ep_post_send(ep[A], 1, &long_one, cookie(1), 0), DAT_LENGTH_ERROR, 0);
    NOTHING(request_evd[A]);
    OK(dat_lmr_free(large));
    free(bytes);
    OK(dat_ep_query(ep[A], DAT_EP_FIELD_ALL, &param));
    param.ep_attr.max_recv_dtos = FEW;
    OK(dat_ep_create(ia, pz, recv_evd[A], request_evd[A], connect_evd[A], &param.ep_attr, &small));
    for (at = 0; at < FEW; at++) OK(dat_ep_post_recv(small, 1, &part, cookie(at), 0));
    FAILS(dat_ep_post_recv(small, 1, &part, cookie(FEW), 0), DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY);
    NOTHING(recv_evd[A]);
    OK(dat_ep_free(small));
    for (at = 0; at < FEW; at++) DONE(recv_evd[A], at, DAT_DTO_ERR_FLUSHED);
}

/* A qualifier in use, end points of the provider, and a request for another end point. */
static void service_points(void) {
    DAT_RSP_HANDLE rsp;
    DAT_PSP_HANDLE made;
    DAT_CONN_QUAL any;
    DAT_EP_HANDLE wanted, other;
    DAT_CR_HANDLE cr;
    OK(dat_ep_create(ia, pz, recv_evd[B], request_evd[B], connect_evd[B], NULL, &wanted));
    OK(dat_ep_create(ia, pz, recv_evd[A], request_evd[A], connect_evd[A], NULL, &other));
    FAILS(dat_rsp_create(ia, qualifier, wanted, cr_evd, &rsp), DAT_CONN_QUAL_IN_USE, 0);
    CHECK(state_of(wanted) == DAT_EP_STATE_UNCONNECTED);
    FAILS(dat_psp_create_any(ia, &any, cr_evd, DAT_PSP_PROVIDER_FLAG, &made), DAT_MODEL_NOT_SUPPORTED, 0);
    OK(dat_rsp_create(ia, 602, wanted, cr_evd, &rsp));
    OK(dat_ep_connect(other, ia_attr.ia_address_ptr, 602, 20 * SECOND, 0, NULL, 0, 0));
    cr = NEXT(cr_evd, DAT_CONNECTION_REQUEST_EVENT).event_data.cr_arrival_event_data.cr_handle;
    FAILS(dat_cr_accept(cr, ep[B], 0, NULL), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    OK(dat_cr_reject(cr, 0, NULL));
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_PEER_REJECTED);
    OK(dat_rsp_free(rsp));
    OK(dat_ep_free(wanted));
    OK(dat_ep_free(other));
}

static void *wait_for_its_end(void *evd) {
    DAT_RETURN got;
    DAT_EVENT event;
    DAT_COUNT more;
    do got = dat_evd_wait((DAT_EVD_HANDLE)evd, 20 * SECOND, 1, &event, &more);
    while (got == (DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_EVD_WAITER));
    is(got, DAT_CLASS_ERROR | DAT_ABORT, "dat_evd_wait", __LINE__);
    return NULL;
}

/* A dispatcher that a thread waits at, that notifies an object, or that holds more events than its new size. */
static void dispatchers(void) {
    const DAT_OS_WAIT_PROXY_AGENT nobody = {NULL, NULL};
    const DAT_RETURN waiter = DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_EVD_WAITER;
    DAT_EVD_HANDLE evd;
    DAT_CNO_HANDLE cno;
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_RETURN got;
    pthread_t thread;
    int at;
    OK(dat_cno_create(ia, nobody, &cno));
    OK(dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
    FAILS(dat_evd_wait(evd, 1000, 2, &event, &more), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_CONFIG_NOTIFY);
    FAILS(dat_evd_wait(evd, 1000, 1, &event, &more), DAT_TIMEOUT_EXPIRED, 0);
    OK(dat_evd_disable(evd));
    FAILS(dat_evd_wait(evd, 1000, 2, &event, &more), DAT_TIMEOUT_EXPIRED, 0);
    OK(dat_evd_free(evd));
    OK(dat_cno_free(cno));

    OK(dat_evd_create(ia, MANY_EVENTS, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &evd));
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    for (at = 0; at < MANY_EVENTS; at++) OK(dat_evd_post_se(evd, &event));
    FAILS(dat_evd_post_se(evd, &event), DAT_QUEUE_FULL, 0);
    FAILS(dat_evd_resize(evd, 8), DAT_INVALID_STATE, 0);
    for (at = 0; at < MANY_EVENTS; at++) OK(dat_evd_dequeue(evd, &event));
    OK(dat_evd_resize(evd, 8));
    pthread_create(&thread, NULL, wait_for_its_end, evd);
    for (at = 0, got = 0; at < 20000 && got != waiter; at++) {
        got = dat_evd_wait(evd, 0, 1, &event, &more);
        usleep(1000);
    }
    CHECK(got == waiter);
    OK(dat_evd_free(evd));
    pthread_join(thread, NULL);
}

int main(void) {
    open_all();
    OK(dat_rmr_create(pz, &rmr));
    make_ep(A);
    make_ep(B);
    states();
    service_points();
    dispatchers();
    connect_both();
    rights();
    sizes();
    OK(dat_rmr_free(rmr));
    close_all();
    return 0;
}
