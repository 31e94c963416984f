/* A shared receive queue of two end points. */

#include "test.h"

int main(void) {
    DAT_SRQ_ATTR attr = {8, 2, 2};
    DAT_SRQ_HANDLE srq;
    DAT_SRQ_PARAM param;
    DAT_LMR_TRIPLET part;
    DAT_EVENT event;
    DAT_COUNT posted, span;
    int i;
    open_all();
    OK(dat_srq_create(ia, pz, &attr, &srq));
    make_ep(A);
    OK(dat_ep_create_with_srq(ia, pz, recv_evd[B], request_evd[B], connect_evd[B], srq, NULL, &ep[B]));
    for (i = 0; i < 8; i++) {
        part = piece(B, 64 * i, 64);
        OK(dat_srq_post_recv(srq, 1, &part, cookie(i)));
    }
    FAILS(dat_srq_post_recv(srq, 1, &part, cookie(8)), DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY);
    OK(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
    CHECK(param.available_dto_count == 8 && param.max_recv_dtos == 8 && param.srq_state == DAT_SRQ_STATE_OPERATIONAL);
    FAILS(dat_srq_resize(srq, 4), DAT_INVALID_STATE, DAT_INVALID_STATE_SRQ_IN_USE);
    FAILS(dat_srq_free(srq), DAT_INVALID_STATE, DAT_INVALID_STATE_SRQ_IN_USE);
    CHECK(DAT_GET_TYPE(dat_ep_post_recv(ep[B], 1, &part, cookie(9), 0)) == DAT_INVALID_HANDLE);
    OK(dat_ep_recv_query(ep[B], &posted, &span));
    CHECK(posted == 8);
    connect_both();
    for (i = 0; i < 7; i++) {
        part = piece(A, 0, 64);
        memory[A][0] = 'a' + i;
        OK(dat_ep_post_send(ep[A], 1, &part, cookie(20 + i), 0));
        DONE(request_evd[A], 20 + i, DAT_DTO_SUCCESS);
        CHECK(DONE(recv_evd[B], i, DAT_DTO_SUCCESS).ep_handle == ep[B]);
        CHECK(memory[B][64 * i] == 'a' + i);
    }
    /* Fewer than two receives are left, which is reported once. */
    event = NEXT(async_evd, DAT_ASYNC_ERROR_EP_BROKEN);
    CHECK(event.event_data.asynch_error_event_data.dat_handle == srq);
    CHECK(event.event_data.asynch_error_event_data.reason == DAT_SRQ_LOW_WATERMARK_EVENT);
    NOTHING(async_evd);
    /* A message that finds no receive waits for one. */
    for (i = 0; i < 2; i++) {
        OK(dat_ep_post_send(ep[A], 1, &part, cookie(30 + i), 0));
        DONE(request_evd[A], 30 + i, DAT_DTO_SUCCESS);
    }
    DONE(recv_evd[B], 7, DAT_DTO_SUCCESS);
    NOTHING(recv_evd[B]);
    part = piece(B, 0, 64);
    OK(dat_srq_post_recv(srq, 1, &part, cookie(40)));
    DONE(recv_evd[B], 40, DAT_DTO_SUCCESS);
    OK(dat_ep_disconnect(ep[A], DAT_CLOSE_GRACEFUL_FLAG));
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_DISCONNECTED);
    event = NEXT(async_evd, DAT_ASYNC_ERROR_EP_BROKEN);
    CHECK(event.event_data.asynch_error_event_data.dat_handle == ep[B]);
    OK(dat_ep_free(ep[B]));
    OK(dat_srq_free(srq));
    close_all();
    return 0;
}
