/* States of end points: each state, and its refusals. */

#include "test.h"

static void refuses_before_it_is_connected(void) {
    DAT_LMR_TRIPLET part = piece(A, 0, 8);
    make_ep(A);
    CHECK(state_of(ep[A]) == DAT_EP_STATE_UNCONNECTED);
    FAILS(dat_ep_post_send(ep[A], 1, &part, cookie(1), 0), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONNECTED);
    FAILS(dat_ep_disconnect(ep[A], DAT_CLOSE_DEFAULT), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONNECTED);
    FAILS(dat_ep_connect(ep[A], NULL, qualifier, SECOND, 0, NULL, 0, 0), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    FAILS(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, qualifier, 0, 0, NULL, 0, 0), DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
    OK(dat_ep_post_recv(ep[A], 1, &part, cookie(2), 0));
    OK(dat_ep_reset(ep[A]));
    FAILS(dat_ep_post_recv(ep[A], -1, &part, cookie(2), 0), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    OK(dat_ep_free(ep[A]));
    DONE(recv_evd[A], 2, DAT_DTO_ERR_FLUSHED);
}

static void is_told_that_nobody_listens(void) {
    DAT_EVENT event;
    make_ep(A);
    OK(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, 7, 20 * SECOND, 0, NULL, 0, 0));
    CHECK(state_of(ep[A]) == DAT_EP_STATE_ACTIVE_CONNECTION_PENDING || state_of(ep[A]) == DAT_EP_STATE_DISCONNECTED);
    event = NEXT(connect_evd[A], DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
    CHECK(event.event_data.connect_event_data.ep_handle == ep[A]);
    CHECK(state_of(ep[A]) == DAT_EP_STATE_DISCONNECTED);
    FAILS(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, 7, SECOND, 0, NULL, 0, 0), DAT_INVALID_STATE,
          DAT_INVALID_STATE_EP_DISCONNECTED);
    OK(dat_ep_reset(ep[A]));
    CHECK(state_of(ep[A]) == DAT_EP_STATE_UNCONNECTED);
}

static void is_rejected_with_words(void) {
    DAT_EVENT event;
    DAT_CR_PARAM param;
    DAT_CR_HANDLE cr;
    OK(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, qualifier, 20 * SECOND, 5, "hello", 0, 0));
    event = NEXT(cr_evd, DAT_CONNECTION_REQUEST_EVENT);
    cr = event.event_data.cr_arrival_event_data.cr_handle;
    CHECK(event.event_data.cr_arrival_event_data.conn_qual == qualifier);
    CHECK(event.event_data.cr_arrival_event_data.sp_handle.psp_handle == psp);
    OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
    CHECK(param.private_data_size == 5 && memcmp(param.private_data, "hello", 5) == 0);
    CHECK(((struct sockaddr_in *)param.remote_ia_address_ptr)->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    OK(dat_cr_reject(cr, 2, "no"));
    FAILS(dat_cr_reject(cr, 0, NULL), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CR);
    event = NEXT(connect_evd[A], DAT_CONNECTION_EVENT_PEER_REJECTED);
    CHECK(event.event_data.connect_event_data.private_data_size == 2);
    CHECK(memcmp(event.event_data.connect_event_data.private_data, "no", 2) == 0);
    OK(dat_ep_reset(ep[A]));
}

static void is_connected_and_ends(void) {
    DAT_LMR_TRIPLET part = piece(A, 0, 8), other = piece(B, 0, 8);
    DAT_EP_PARAM param;
    make_ep(B);
    OK(dat_ep_post_recv(ep[B], 1, &other, cookie(3), 0));
    connect_both();
    CHECK(state_of(ep[A]) == DAT_EP_STATE_CONNECTED && state_of(ep[B]) == DAT_EP_STATE_CONNECTED);
    FAILS(dat_ep_reset(ep[A]), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_CONNECTED);
    memset(&param, 0, sizeof param);
    FAILS(dat_ep_modify(ep[A], DAT_EP_FIELD_PZ_HANDLE, &param), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
    OK(dat_ep_query(ep[A], DAT_EP_FIELD_ALL, &param));
    CHECK(param.ep_state == DAT_EP_STATE_CONNECTED && param.pz_handle == pz && param.remote_port_qual == qualifier);
    memcpy(memory[A], "message", 8);
    OK(dat_ep_post_send(ep[A], 1, &part, cookie(4), DAT_COMPLETION_DEFAULT_FLAG));
    DONE(request_evd[A], 4, DAT_DTO_SUCCESS);
    CHECK(DONE(recv_evd[B], 3, DAT_DTO_SUCCESS).transfered_length == 8);
    CHECK(strcmp(memory[B], "message") == 0);
    /* Suppressed completions are not reported, and posts after the end are flushed. */
    OK(dat_ep_post_recv(ep[B], 1, &other, cookie(5), 0));
    OK(dat_ep_post_send(ep[A], 1, &part, cookie(6), DAT_COMPLETION_SUPPRESS_FLAG));
    DONE(recv_evd[B], 5, DAT_DTO_SUCCESS);
    NOTHING(request_evd[A]);
    OK(dat_ep_post_recv(ep[B], 1, &other, cookie(7), 0));
    OK(dat_ep_disconnect(ep[A], DAT_CLOSE_GRACEFUL_FLAG));
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_DISCONNECTED);
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_DISCONNECTED);
    DONE(recv_evd[B], 7, DAT_DTO_ERR_FLUSHED);
    OK(dat_ep_post_send(ep[A], 1, &part, cookie(8), DAT_COMPLETION_SUPPRESS_FLAG));
    DONE(request_evd[A], 8, DAT_DTO_ERR_FLUSHED);
    OK(dat_ep_post_recv(ep[A], 1, &part, cookie(9), 0));
    DONE(recv_evd[A], 9, DAT_DTO_ERR_FLUSHED);
    OK(dat_ep_disconnect(ep[A], DAT_CLOSE_DEFAULT));
    NOTHING(connect_evd[A]);
    /* The same happens again. */
    OK(dat_ep_reset(ep[A]));
    OK(dat_ep_reset(ep[B]));
    connect_both();
    OK(dat_ep_disconnect(ep[B], DAT_CLOSE_ABRUPT_FLAG));
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_DISCONNECTED);
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_DISCONNECTED);
}

static void is_reserved(void) {
    DAT_RSP_HANDLE rsp;
    DAT_EVENT event;
    OK(dat_ep_reset(ep[A]));
    OK(dat_ep_reset(ep[B]));
    OK(dat_rsp_create(ia, 99, ep[B], cr_evd, &rsp));
    CHECK(state_of(ep[B]) == DAT_EP_STATE_RESERVED);
    FAILS(dat_ep_free(ep[B]), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_RESERVED);
    FAILS(dat_rsp_create(ia, 98, ep[B], cr_evd, &rsp), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_RESERVED);
    OK(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, 99, 20 * SECOND, 0, NULL, 0, 0));
    event = NEXT(cr_evd, DAT_CONNECTION_REQUEST_EVENT);
    CHECK(state_of(ep[B]) == DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING);
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, DAT_HANDLE_NULL, 0, NULL));
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_ESTABLISHED);
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_ESTABLISHED);
    OK(dat_rsp_free(rsp));
    CHECK(state_of(ep[B]) == DAT_EP_STATE_CONNECTED);
}

/* An end point that takes the place of one that was freed during its connect is not connected by that connect. */
static void is_not_who_was_there_before(void) {
    DAT_EP_HANDLE before, late;
    DAT_CR_HANDLE first, second;
    DAT_EVENT event;
    DAT_COUNT more;
    make_ep(A);
    before = ep[A];
    OK(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
    first = NEXT(cr_evd, DAT_CONNECTION_REQUEST_EVENT).event_data.cr_arrival_event_data.cr_handle;
    OK(dat_ep_free(ep[A]));
    make_ep(A);
    CHECK(ep[A] == before); /* Otherwise this test shows nothing. */
    OK(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, qualifier, 20 * SECOND, 0, NULL, 0, 0));
    second = NEXT(cr_evd, DAT_CONNECTION_REQUEST_EVENT).event_data.cr_arrival_event_data.cr_handle;
    OK(dat_ep_create(ia, pz, recv_evd[B], request_evd[B], connect_evd[B], NULL, &late));
    OK(dat_cr_accept(first, late, 0, NULL));
    /* This side may already know that the connect was given up. */
    OK(dat_evd_wait(connect_evd[B], 20 * SECOND, 1, &event, &more));
    if (event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED)
        NEXT(connect_evd[B], DAT_CONNECTION_EVENT_DISCONNECTED);
    else
        CHECK(event.event_number == DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    CHECK(state_of(ep[A]) == DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
    OK(dat_ep_reset(late));
    OK(dat_cr_accept(second, late, 0, NULL));
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_ESTABLISHED);
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_ESTABLISHED);
}

static void refuses_what_it_does_not_know(void) {
    DAT_PSP_HANDLE second;
    DAT_COMM comm = {0, 0, 0};
    DAT_CSP_HANDLE csp;
    FAILS(dat_psp_create(ia, qualifier, cr_evd, DAT_PSP_CONSUMER_FLAG, &second), DAT_CONN_QUAL_IN_USE, 0);
    FAILS(dat_psp_create(ia, 5, cr_evd, DAT_PSP_PROVIDER_FLAG, &second), DAT_MODEL_NOT_SUPPORTED, 0);
    FAILS(DAT_CSP_CREATE(inner, &comm, ia_attr.ia_address_ptr, cr_evd, &csp), DAT_NOT_IMPLEMENTED, 0);
    FAILS(dat_ep_free(cr_evd), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    FAILS(dat_pz_free(pz), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE);
    FAILS(dat_evd_free(recv_evd[A]), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    FAILS(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_INVALID_STATE, DAT_INVALID_STATE_IA_IN_USE);
}

int main(void) {
    open_all();
    refuses_before_it_is_connected();
    is_told_that_nobody_listens();
    is_rejected_with_words();
    is_connected_and_ends();
    is_reserved();
    is_not_who_was_there_before();
    refuses_what_it_does_not_know();
    close_all();
    return 0;
}
