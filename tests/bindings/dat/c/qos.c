/* Qualities of service: a connection has the requested quality if the adapter has service levels, and otherwise is best effort. */

#include "test.h"

static DAT_PROVIDER_ATTR provider;

/* Quality that an end point has after this request. */
static DAT_QOS has(DAT_QOS asked) {
    return (DAT_QOS)(provider.dat_qos_supported & asked);
}

static DAT_QOS qos_of(DAT_EP_HANDLE handle) {
    DAT_EP_PARAM param;
    OK(dat_ep_query(handle, DAT_EP_FIELD_EP_ATTR_QOS, &param));
    return param.ep_attr.qos;
}

static void accepts(DAT_EP_HANDLE asks) {
    DAT_EVENT event = NEXT(cr_evd, DAT_CONNECTION_REQUEST_EVENT);
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ep[B], 0, NULL));
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_ESTABLISHED);
    event = NEXT(connect_evd[A], DAT_CONNECTION_EVENT_ESTABLISHED);
    CHECK(event.event_data.connect_event_data.ep_handle == asks);
}

static void ends(DAT_EP_HANDLE asked) {
    OK(dat_ep_disconnect(asked, DAT_CLOSE_ABRUPT_FLAG));
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_DISCONNECTED);
    NEXT(connect_evd[B], DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_reset(asked));
    OK(dat_ep_reset(ep[B]));
}

static void attributes_ask_for_one(void) {
    DAT_EP_ATTR attr;
    DAT_EP_PARAM param;
    memset(&attr, 0, sizeof attr);
    memset(&param, 0, sizeof param);
    attr.qos = (DAT_QOS)3; /* A set of qualities is no quality. */
    FAILS(dat_ep_create(ia, pz, recv_evd[B], request_evd[B], connect_evd[B], &attr, &ep[B]), DAT_INVALID_PARAMETER, DAT_INVALID_ARG6);
    attr.qos = DAT_QOS_ECONOMY;
    OK(dat_ep_create(ia, pz, recv_evd[B], request_evd[B], connect_evd[B], &attr, &ep[B]));
    make_ep(A);
    CHECK(qos_of(ep[A]) == DAT_QOS_BEST_EFFORT && qos_of(ep[B]) == has(DAT_QOS_ECONOMY));
    param.ep_attr.qos = (DAT_QOS)16;
    FAILS(dat_ep_modify(ep[A], DAT_EP_FIELD_EP_ATTR_QOS, &param), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    param.ep_attr.qos = DAT_QOS_PREMIUM;
    OK(dat_ep_modify(ep[A], DAT_EP_FIELD_EP_ATTR_QOS, &param));
    CHECK(qos_of(ep[A]) == has(DAT_QOS_PREMIUM));
    /* Attributes that are not named stay as they are. */
    param.ep_attr.qos = DAT_QOS_ECONOMY;
    param.ep_attr.max_recv_dtos = 8;
    OK(dat_ep_modify(ep[A], DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, &param));
    CHECK(qos_of(ep[A]) == has(DAT_QOS_PREMIUM));
}

static void calls_ask_for_one(void) {
    DAT_EP_HANDLE third;
    DAT_LMR_TRIPLET part = piece(A, 0, 8), other = piece(B, 0, 8);
    FAILS(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, qualifier, 20 * SECOND, 0, NULL, (DAT_QOS)5, 0), DAT_INVALID_PARAMETER, DAT_INVALID_ARG7);
    CHECK(state_of(ep[A]) == DAT_EP_STATE_UNCONNECTED);
    OK(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, qualifier, 20 * SECOND, 0, NULL, DAT_QOS_LOW_LATENCY, 0));
    accepts(ep[A]);
    CHECK(qos_of(ep[A]) == has(DAT_QOS_LOW_LATENCY) && qos_of(ep[B]) == has(DAT_QOS_ECONOMY));
    memcpy(memory[A], "message", 8);
    OK(dat_ep_post_recv(ep[B], 1, &other, cookie(1), 0));
    OK(dat_ep_post_send(ep[A], 1, &part, cookie(2), 0));
    DONE(recv_evd[B], 1, DAT_DTO_SUCCESS);
    CHECK(strcmp(memory[B], "message") == 0);
    DONE(request_evd[A], 2, DAT_DTO_SUCCESS);
    ends(ep[A]);
    CHECK(qos_of(ep[A]) == has(DAT_QOS_PREMIUM));
    /* Best effort requests nothing, so the attributes apply. */
    OK(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, qualifier, 20 * SECOND, 0, NULL, DAT_QOS_BEST_EFFORT, 0));
    accepts(ep[A]);
    CHECK(qos_of(ep[A]) == has(DAT_QOS_PREMIUM));
    OK(dat_ep_create(ia, pz, recv_evd[A], request_evd[A], connect_evd[A], NULL, &third));
    FAILS(dat_ep_dup_connect(third, ep[A], 20 * SECOND, 0, NULL, (DAT_QOS)6), DAT_INVALID_PARAMETER, DAT_INVALID_ARG6);
    OK(dat_ep_create(ia, pz, recv_evd[B], request_evd[B], connect_evd[B], NULL, &ep[B]));
    OK(dat_ep_dup_connect(third, ep[A], 20 * SECOND, 0, NULL, DAT_QOS_HIGH_THROUGHPUT));
    accepts(third);
    CHECK(qos_of(third) == has(DAT_QOS_HIGH_THROUGHPUT) && qos_of(ep[B]) == DAT_QOS_BEST_EFFORT);
    ends(third);
}

int main(void) {
    open_all();
    OK(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &provider));
    CHECK(provider.dat_qos_supported == (getenv("DECK_LEVELS") != NULL ? 15 : DAT_QOS_BEST_EFFORT));
    attributes_ask_for_one();
    calls_ask_for_one();
    close_all();
    return 0;
}
