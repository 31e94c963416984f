/* Regions, RMRs, RDMA, and the calls on them that are refused. */

#include "test.h"

static void bind_part(DAT_RMR_HANDLE rmr, int at, int len, DAT_MEM_PRIV_FLAGS rights, DAT_RMR_CONTEXT *context) {
    DAT_LMR_TRIPLET part = piece(B, at, len);
    DAT_RMR_COOKIE mine = cookie(11);
    DAT_EVENT event;
    OK(dat_rmr_bind(rmr, lmr[B], &part, rights, DAT_VA_TYPE_VA, ep[B], mine, DAT_COMPLETION_DEFAULT_FLAG, context));
    event = NEXT(request_evd[B], DAT_RMR_BIND_COMPLETION_EVENT);
    CHECK(event.event_data.rmr_completion_event_data.rmr_handle == rmr);
    CHECK(event.event_data.rmr_completion_event_data.user_cookie.as_64 == 11);
    CHECK(event.event_data.rmr_completion_event_data.status == DAT_DTO_SUCCESS);
}

static void writes_and_reads(DAT_RMR_CONTEXT context) {
    DAT_LMR_TRIPLET from[2] = {piece(A, 0, 3), piece(A, 3, 5)}, to = piece(A, 100, 8);
    DAT_RMR_TRIPLET there = remote(B, 16, 8, context);
    memcpy(memory[A], "written", 8);
    OK(dat_ep_post_rdma_write(ep[A], 2, from, cookie(1), &there, DAT_COMPLETION_DEFAULT_FLAG));
    DONE(request_evd[A], 1, DAT_DTO_SUCCESS);
    OK(dat_ep_post_rdma_read(ep[A], 1, &to, cookie(2), &there, DAT_COMPLETION_DEFAULT_FLAG));
    CHECK(DONE(request_evd[A], 2, DAT_DTO_SUCCESS).operation == DAT_DTO_RDMA_READ);
    CHECK(strcmp(memory[B] + 16, "written") == 0 && strcmp(memory[A] + 100, "written") == 0);
}

static void refuses_at_once(void) {
    DAT_LMR_TRIPLET wrong = piece(A, 0, 8);
    DAT_RMR_TRIPLET there = remote(B, 0, 4, rmr_context[B]);
    FAILS(dat_ep_post_rdma_write(ep[A], 1, &wrong, cookie(1), &there, 0), DAT_LENGTH_ERROR, 0);
    wrong.lmr_context ^= 1;
    FAILS(dat_ep_post_send(ep[A], 1, &wrong, cookie(1), 0), DAT_PROTECTION_VIOLATION, DAT_PROTECTION_READ);
    wrong = piece(A, SIZE - 4, 8);
    FAILS(dat_ep_post_send(ep[A], 1, &wrong, cookie(1), 0), DAT_PROTECTION_VIOLATION, DAT_PROTECTION_READ);
    NOTHING(request_evd[A]);
}

static void ends_a_connection_that_reaches_too_far(DAT_RMR_CONTEXT context, int reads) {
    DAT_LMR_TRIPLET part = piece(A, 0, 8);
    DAT_RMR_TRIPLET there = remote(B, 16, 8, context);
    memset(memory[B], 7, 64);
    if (reads) {
        OK(dat_ep_post_rdma_read(ep[A], 1, &part, cookie(5), &there, 0));
        DONE(request_evd[A], 5, DAT_DTO_ERR_REMOTE_ACCESS);
    } else {
        OK(dat_ep_post_rdma_write(ep[A], 1, &part, cookie(5), &there, 0));
        DONE(request_evd[A], 5, DAT_DTO_SUCCESS); /* The write has left. */
    }
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_BROKEN);
    CHECK(memory[B][16] == 7 && state_of(ep[A]) == DAT_EP_STATE_DISCONNECTED);
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_BROKEN);
    OK(dat_ep_reset(ep[A]));
    OK(dat_ep_reset(ep[B]));
    connect_both();
}

/* Requests that the end of the connection flushed leave nothing open: neither earlier bindings nor those that were due. */
static void flushes_a_bind(int len) {
    DAT_RMR_HANDLE rmr;
    DAT_RMR_CONTEXT before, after;
    DAT_LMR_TRIPLET part = piece(B, 16, len);
    DAT_EVENT event;
    OK(dat_rmr_create(pz, &rmr));
    bind_part(rmr, 16, 8, DAT_MEM_PRIV_REMOTE_READ_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG, &before);
    writes_and_reads(before);
    OK(dat_ep_disconnect(ep[B], DAT_CLOSE_ABRUPT_FLAG));
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_DISCONNECTED);
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_rmr_bind(rmr, lmr[B], &part, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, DAT_VA_TYPE_VA, ep[B], cookie(41), DAT_COMPLETION_DEFAULT_FLAG,
                    &after));
    event = NEXT(request_evd[B], DAT_RMR_BIND_COMPLETION_EVENT);
    CHECK(event.event_data.rmr_completion_event_data.status == DAT_DTO_ERR_FLUSHED);
    OK(dat_ep_reset(ep[A]));
    OK(dat_ep_reset(ep[B]));
    connect_both();
    ends_a_connection_that_reaches_too_far(before, 0);
    ends_a_connection_that_reaches_too_far(after, 0);
    OK(dat_rmr_free(rmr));
}

/* Peers of one zone reach no memory of another. */
static void binds_nothing_of_another_zone(void) {
    DAT_PZ_HANDLE other;
    DAT_LMR_HANDLE there;
    DAT_LMR_TRIPLET part = piece(B, 0, SIZE);
    DAT_RMR_HANDLE rmr;
    DAT_RMR_CONTEXT context;
    DAT_REGION_DESCRIPTION region;
    region.for_va = memory[B];
    OK(dat_pz_create(ia, &other));
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, SIZE, other, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &there, &part.lmr_context,
                      &context, NULL, NULL));
    OK(dat_rmr_create(pz, &rmr));
    FAILS(dat_rmr_bind(rmr, there, &part, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, DAT_VA_TYPE_VA, ep[B], cookie(42), 0, &context),
          DAT_PROTECTION_VIOLATION, DAT_PROTECTION_RDMA_READ);
    NOTHING(request_evd[B]);
    OK(dat_rmr_free(rmr));
    OK(dat_lmr_free(there));
    OK(dat_pz_free(other));
}

int main(void) {
    DAT_RMR_HANDLE rmr;
    DAT_RMR_CONTEXT context, later;
    DAT_RMR_PARAM param;
    DAT_LMR_TRIPLET none = {0, 0, 0}, part;
    open_all();
    make_ep(A);
    make_ep(B);
    connect_both();
    writes_and_reads(rmr_context[B]);
    refuses_at_once();
    OK(dat_rmr_create(pz, &rmr));
    bind_part(rmr, 16, 8, DAT_MEM_PRIV_REMOTE_READ_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG, &context);
    CHECK(context != rmr_context[B]);
    writes_and_reads(context);
    FAILS(dat_lmr_free(lmr[B]), DAT_INVALID_STATE, DAT_INVALID_STATE_LMR_IN_USE);
    OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
    CHECK(param.rmr_context == context && param.lmr_triplet.segment_length == 8 && param.pz_handle == pz);
    /* A second bind gives it other rights, and another context; the first context is invalid from then on. */
    bind_part(rmr, 16, 8, DAT_MEM_PRIV_REMOTE_READ_FLAG, &later);
    CHECK(later != context);
    ends_a_connection_that_reaches_too_far(context, 1);
    ends_a_connection_that_reaches_too_far(later, 0);
    bind_part(rmr, 0, 0, DAT_MEM_PRIV_NONE_FLAG, &context);
    ends_a_connection_that_reaches_too_far(later, 1);
    /* A message invalidates an RMR of the receiver. */
    bind_part(rmr, 16, 8, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, &context);
    part = piece(B, 0, 16);
    OK(dat_ep_post_recv(ep[B], 1, &part, cookie(21), 0));
    part = piece(A, 0, 16);
    OK(DAT_EP_POST_SEND_WITH_INVALIDATE(ep[A], 1, &part, cookie(22), 0, DAT_TRUE, context));
    CHECK(DONE(recv_evd[B], 21, DAT_DTO_SUCCESS).operation == DAT_DTO_RECEIVE_WITH_INVALIDATE);
    DONE(request_evd[A], 22, DAT_DTO_SUCCESS);
    ends_a_connection_that_reaches_too_far(context, 1);
    OK(dat_rmr_free(rmr));
    flushes_a_bind(0);
    flushes_a_bind(8);
    binds_nothing_of_another_zone();
    /* The receive is too short. */
    part = piece(B, 0, 4);
    OK(dat_ep_post_recv(ep[B], 1, &part, cookie(31), 0));
    part = piece(A, 0, 8);
    OK(dat_ep_post_send(ep[A], 1, &part, cookie(32), 0));
    DONE(recv_evd[B], 31, DAT_DTO_ERR_LOCAL_LENGTH);
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_BROKEN);
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_BROKEN);
    /* Nothing remains in memory that was freed. */
    OK(dat_lmr_free(lmr[B]));
    FAILS(dat_lmr_free(lmr[B]), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR);
    (void)none;
    close_all();
    return 0;
}
