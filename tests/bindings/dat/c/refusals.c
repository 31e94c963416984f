/* Refusals of each call: handles that are invalid, of another kind, or freed, and arguments out of range, by the provider's table.
 * Refusals of each call: handles that are invalid, of another kind, or freed, and arguments out of range, by the provider's table. */

#define DAT_EXTENSIONS 1

#include <stddef.h>

#include "test.h"

enum { SLOTS = 79 };

static DAT_PROVIDER *calls;
/* Slots of the table that were tried. */
static char tried[SLOTS];

/* Memory for results of calls. */
static union {
    DAT_HANDLE handle;
    DAT_EVENT event;
    DAT_EP_PARAM ep;
    DAT_LMR_PARAM lmr;
    DAT_RMR_PARAM rmr;
    DAT_EVD_PARAM evd;
    DAT_CNO_PARAM cno;
    DAT_CR_PARAM cr;
    DAT_PSP_PARAM psp;
    DAT_RSP_PARAM rsp;
    DAT_PZ_PARAM pz;
    DAT_SRQ_PARAM srq;
    DAT_CONTEXT context;
    DAT_HANDLE_TYPE type;
    DAT_CONN_QUAL qualifier;
    DAT_RMR_CONTEXT rmr_context;
    DAT_LMR_CONTEXT lmr_context;
    DAT_COUNT count;
    DAT_FD fd;
} out;
static DAT_COUNT more;

/* Handles, in turn: NULL, of another kind, and freed. */
static DAT_HANDLE wrong;

#define HANDLE_AS(other, freed, call, type, subtype)                     \
    do {                                                                 \
        DAT_HANDLE all_[] = {DAT_HANDLE_NULL, (other), (freed)};         \
        int nth_;                                                        \
        for (nth_ = 0; nth_ < 3; nth_++) {                               \
            wrong = all_[nth_];                                          \
            FAILS(call, type, subtype);                                  \
        }                                                                \
    } while (0)
#define HANDLE(other, freed, call, subtype) HANDLE_AS(other, freed, call, DAT_INVALID_HANDLE, subtype)
/* The nth argument, from 1. */
#define ARGUMENT(nth, call) FAILS(call, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1 + (nth) - 1)
/* A slot of the table that is tried from here on. */
#define CALL(name) \
    (tried[(offsetof(DAT_PROVIDER, name##_func) - offsetof(DAT_PROVIDER, ia_open_func)) / sizeof(void *)] = 1, calls->name##_func)

static DAT_HANDLE freed_ia, freed_ep, freed_lmr, freed_rmr, freed_pz, freed_psp, freed_rsp, freed_cr, freed_cno, freed_evd, freed_srq;
static DAT_RMR_HANDLE rmr;
static DAT_RSP_HANDLE rsp;
static DAT_CR_HANDLE cr;
static DAT_CNO_HANDLE cno;
static DAT_SRQ_HANDLE srq;
static DAT_EP_HANDLE reserved;

static const DAT_OS_WAIT_PROXY_AGENT nobody = {NULL, NULL};

static DAT_HANDLE ask_for_request(void) {
    OK(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, qualifier, 20 * SECOND, 0, NULL, 0, 0));
    return NEXT(cr_evd, DAT_CONNECTION_REQUEST_EVENT).event_data.cr_arrival_event_data.cr_handle;
}

static void make_and_free(void) {
    DAT_REGION_DESCRIPTION region;
    DAT_SRQ_ATTR srq_attr = {8, 1, 0};
    DAT_EVD_HANDLE other_async = DAT_HANDLE_NULL;
    DAT_PZ_PARAM pz_param;
    DAT_PZ_HANDLE other_pz;
    calls = *(DAT_PROVIDER **)pz;
    make_ep(A);
    make_ep(B);
    OK(dat_ep_create(ia, pz, recv_evd[B], request_evd[B], connect_evd[B], NULL, &reserved));
    OK(dat_ep_create(ia, pz, recv_evd[B], request_evd[B], connect_evd[B], NULL, &freed_ep));
    OK(dat_rmr_create(pz, &rmr));
    OK(dat_rmr_create(pz, &freed_rmr));
    OK(dat_pz_create(ia, &freed_pz));
    OK(dat_cno_create(ia, nobody, &cno));
    OK(dat_cno_create(ia, nobody, &freed_cno));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &freed_evd));
    OK(dat_srq_create(ia, pz, &srq_attr, &srq));
    OK(dat_srq_create(ia, pz, &srq_attr, &freed_srq));
    region.for_va = memory[A];
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 8, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &freed_lmr, &out.lmr_context, NULL, NULL,
                      NULL));
    OK(dat_psp_create(ia, 501, cr_evd, DAT_PSP_CONSUMER_FLAG, &freed_psp));
    OK(dat_rsp_create(ia, 502, reserved, cr_evd, &freed_rsp));
    freed_cr = ask_for_request();
    OK(dat_cr_reject(freed_cr, 0, NULL));
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_PEER_REJECTED);
    OK(dat_ep_reset(ep[A]));
    OK(dat_rsp_free(freed_rsp));
    OK(dat_psp_free(freed_psp));
    OK(dat_lmr_free(freed_lmr));
    OK(dat_srq_free(freed_srq));
    OK(dat_evd_free(freed_evd));
    OK(dat_cno_free(freed_cno));
    OK(dat_pz_free(freed_pz));
    OK(dat_rmr_free(freed_rmr));
    OK(dat_ep_free(freed_ep));
    OK(dat_ia_open("udeck", 8, &other_async, &freed_ia));
    OK(dat_pz_create(freed_ia, &other_pz));
    OK(dat_pz_query(other_pz, DAT_PZ_FIELD_ALL, &pz_param));
    OK(dat_ia_close(freed_ia, DAT_CLOSE_ABRUPT_FLAG));
    freed_ia = pz_param.ia_handle;
}

/* A freed object is recognised only while its place is free: from here on no call that makes an object succeeds. */

static void adapters(void) {
    DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
    DAT_IA_OPEN_FUNC open = CALL(ia_open);
    ARGUMENT(1, open(NULL, 8, &evd, &out.handle));
    ARGUMENT(2, open("udeck", -1, &evd, &out.handle));
    ARGUMENT(3, open("udeck", 8, NULL, &out.handle));
    ARGUMENT(4, open("udeck", 8, &evd, NULL));
    FAILS(open("no such adapter", 8, &evd, &out.handle), DAT_PROVIDER_NOT_FOUND, 0);
    evd = cr_evd;
    FAILS(open("udeck", 8, &evd, &out.handle), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_ASYNC);
    HANDLE(pz, freed_ia, CALL(ia_query)(wrong, NULL, 0, NULL, 0, NULL), DAT_INVALID_HANDLE_IA);
    ARGUMENT(4, CALL(ia_query)(inner, NULL, DAT_IA_FIELD_ALL, NULL, 0, NULL));
    ARGUMENT(6, CALL(ia_query)(inner, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, NULL));
    HANDLE(pz, freed_ia, CALL(ia_close)(wrong, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE_IA);
    ARGUMENT(2, CALL(ia_close)(inner, 77));
    FAILS(CALL(ia_close)(inner, DAT_CLOSE_GRACEFUL_FLAG), DAT_INVALID_STATE, DAT_INVALID_STATE_IA_IN_USE);
    FAILS(CALL(set_consumer_context)(DAT_HANDLE_NULL, (DAT_CONTEXT){0}), DAT_INVALID_HANDLE, 0);
    FAILS(CALL(set_consumer_context)(freed_ep, (DAT_CONTEXT){0}), DAT_INVALID_HANDLE, 0);
    FAILS(CALL(get_consumer_context)(DAT_HANDLE_NULL, &out.context), DAT_INVALID_HANDLE, 0);
    FAILS(CALL(get_consumer_context)(freed_ep, &out.context), DAT_INVALID_HANDLE, 0);
    ARGUMENT(2, CALL(get_consumer_context)(pz, NULL));
    FAILS(CALL(get_handle_type)(DAT_HANDLE_NULL, &out.type), DAT_INVALID_HANDLE, 0);
    FAILS(CALL(get_handle_type)(freed_ep, &out.type), DAT_INVALID_HANDLE, 0);
    ARGUMENT(2, CALL(get_handle_type)(pz, NULL));
}

static void notification_objects(void) {
    HANDLE(pz, freed_ia, CALL(cno_create)(wrong, nobody, &out.handle), DAT_INVALID_HANDLE_IA);
    ARGUMENT(3, CALL(cno_create)(inner, nobody, NULL));
    HANDLE(pz, freed_ia, CALL(cno_fd_create)(wrong, &out.fd, &out.handle), DAT_INVALID_HANDLE_IA);
    ARGUMENT(2, CALL(cno_fd_create)(inner, NULL, &out.handle));
    ARGUMENT(3, CALL(cno_fd_create)(inner, &out.fd, NULL));
    HANDLE(pz, freed_cno, CALL(cno_modify_agent)(wrong, nobody), DAT_INVALID_HANDLE_CNO);
    OK(CALL(cno_modify_agent)(cno, nobody));
    HANDLE(pz, freed_cno, CALL(cno_query)(wrong, DAT_CNO_FIELD_ALL, &out.cno), DAT_INVALID_HANDLE_CNO);
    ARGUMENT(3, CALL(cno_query)(cno, DAT_CNO_FIELD_ALL, NULL));
    HANDLE(pz, freed_cno, CALL(cno_wait)(wrong, 0, &out.handle), DAT_INVALID_HANDLE_CNO);
    ARGUMENT(3, CALL(cno_wait)(cno, 0, NULL));
    FAILS(CALL(cno_wait)(cno, 0, &out.handle), DAT_TIMEOUT_EXPIRED, 0);
    HANDLE(pz, freed_cno, CALL(cno_trigger)(wrong, &out.handle), DAT_INVALID_HANDLE_CNO);
    ARGUMENT(2, CALL(cno_trigger)(cno, NULL));
    FAILS(CALL(cno_trigger)(cno, &out.handle), DAT_QUEUE_EMPTY, 0);
    HANDLE(pz, freed_cno, CALL(cno_free)(wrong), DAT_INVALID_HANDLE_CNO);
    OK(CALL(cno_free)(cno));
}

static void dispatchers(void) {
    DAT_EVENT event;
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    HANDLE(pz, freed_ia, CALL(evd_create)(wrong, 8, NULL, DAT_EVD_DTO_FLAG, &out.handle), DAT_INVALID_HANDLE_IA);
    ARGUMENT(2, CALL(evd_create)(inner, -1, NULL, DAT_EVD_DTO_FLAG, &out.handle));
    FAILS(CALL(evd_create)(inner, 8, pz, DAT_EVD_DTO_FLAG, &out.handle), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CNO);
    FAILS(CALL(evd_create)(inner, 8, freed_cno, DAT_EVD_DTO_FLAG, &out.handle), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CNO);
    ARGUMENT(4, CALL(evd_create)(inner, 8, NULL, 0, &out.handle));
    ARGUMENT(4, CALL(evd_create)(inner, 8, NULL, 0x1000, &out.handle));
    ARGUMENT(5, CALL(evd_create)(inner, 8, NULL, DAT_EVD_DTO_FLAG, NULL));
    HANDLE(pz, freed_evd, CALL(evd_query)(wrong, DAT_EVD_FIELD_ALL, &out.evd), DAT_INVALID_HANDLE1);
    ARGUMENT(3, CALL(evd_query)(cr_evd, DAT_EVD_FIELD_ALL, NULL));
    HANDLE(pz, freed_evd, CALL(evd_modify_cno)(wrong, NULL), DAT_INVALID_HANDLE1);
    FAILS(CALL(evd_modify_cno)(cr_evd, pz), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CNO);
    HANDLE(pz, freed_evd, CALL(evd_enable)(wrong), DAT_INVALID_HANDLE1);
    OK(CALL(evd_enable)(cr_evd));
    HANDLE(pz, freed_evd, CALL(evd_disable)(wrong), DAT_INVALID_HANDLE1);
    OK(CALL(evd_disable)(cr_evd));
    HANDLE(pz, freed_evd, CALL(evd_set_unwaitable)(wrong), DAT_INVALID_HANDLE1);
    OK(CALL(evd_set_unwaitable)(cr_evd));
    FAILS(CALL(evd_wait)(cr_evd, 0, 1, &out.event, &more), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_UNWAITABLE);
    HANDLE(pz, freed_evd, CALL(evd_clear_unwaitable)(wrong), DAT_INVALID_HANDLE1);
    OK(CALL(evd_clear_unwaitable)(cr_evd));
    HANDLE(pz, freed_evd, CALL(evd_wait)(wrong, 0, 1, &out.event, &more), DAT_INVALID_HANDLE1);
    ARGUMENT(3, CALL(evd_wait)(cr_evd, 0, 0, &out.event, &more));
    ARGUMENT(4, CALL(evd_wait)(cr_evd, 0, 1, NULL, &more));
    ARGUMENT(5, CALL(evd_wait)(cr_evd, 0, 1, &out.event, NULL));
    FAILS(CALL(evd_wait)(cr_evd, 0, 1, &out.event, &more), DAT_TIMEOUT_EXPIRED, 0);
    HANDLE(pz, freed_evd, CALL(evd_resize)(wrong, 8), DAT_INVALID_HANDLE1);
    ARGUMENT(2, CALL(evd_resize)(cr_evd, 0));
    HANDLE(pz, freed_evd, CALL(evd_post_se)(wrong, &event), DAT_INVALID_HANDLE1);
    ARGUMENT(2, CALL(evd_post_se)(cr_evd, NULL));
    FAILS(CALL(evd_post_se)(cr_evd, &event), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE1); /* The event is not of this stream. */
    HANDLE(pz, freed_evd, CALL(evd_dequeue)(wrong, &out.event), DAT_INVALID_HANDLE1);
    ARGUMENT(2, CALL(evd_dequeue)(cr_evd, NULL));
    HANDLE(pz, freed_evd, CALL(evd_free)(wrong), DAT_INVALID_HANDLE1);
    FAILS(CALL(evd_free)(recv_evd[A]), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
}

static void service_points(void) {
    HANDLE(pz, freed_ia, CALL(psp_create)(wrong, 503, cr_evd, DAT_PSP_CONSUMER_FLAG, &out.handle), DAT_INVALID_HANDLE_IA);
    HANDLE(recv_evd[A], freed_evd, CALL(psp_create)(inner, 503, wrong, DAT_PSP_CONSUMER_FLAG, &out.handle),
           DAT_INVALID_HANDLE_EVD_CR);
    ARGUMENT(4, CALL(psp_create)(inner, 503, cr_evd, 77, &out.handle));
    ARGUMENT(5, CALL(psp_create)(inner, 503, cr_evd, DAT_PSP_CONSUMER_FLAG, NULL));
    FAILS(CALL(psp_create)(inner, qualifier, cr_evd, DAT_PSP_CONSUMER_FLAG, &out.handle), DAT_CONN_QUAL_IN_USE, 0);
    HANDLE(pz, freed_ia, CALL(psp_create_any)(wrong, &out.qualifier, cr_evd, DAT_PSP_CONSUMER_FLAG, &out.handle),
           DAT_INVALID_HANDLE_IA);
    ARGUMENT(2, CALL(psp_create_any)(inner, NULL, cr_evd, DAT_PSP_CONSUMER_FLAG, &out.handle));
    HANDLE(recv_evd[A], freed_evd, CALL(psp_create_any)(inner, &out.qualifier, wrong, DAT_PSP_CONSUMER_FLAG, &out.handle),
           DAT_INVALID_HANDLE_EVD_CR);
    ARGUMENT(4, CALL(psp_create_any)(inner, &out.qualifier, cr_evd, 77, &out.handle));
    ARGUMENT(5, CALL(psp_create_any)(inner, &out.qualifier, cr_evd, DAT_PSP_CONSUMER_FLAG, NULL));
    HANDLE(pz, freed_psp, CALL(psp_query)(wrong, DAT_PSP_FIELD_ALL, &out.psp), DAT_INVALID_HANDLE_PSP);
    ARGUMENT(3, CALL(psp_query)(psp, DAT_PSP_FIELD_ALL, NULL));
    HANDLE(pz, freed_psp, CALL(psp_free)(wrong), DAT_INVALID_HANDLE_PSP);
    HANDLE(pz, freed_ia, CALL(rsp_create)(wrong, 504, reserved, cr_evd, &out.handle), DAT_INVALID_HANDLE_IA);
    HANDLE(pz, freed_ep, CALL(rsp_create)(inner, 504, wrong, cr_evd, &out.handle), DAT_INVALID_HANDLE_EP);
    HANDLE(recv_evd[A], freed_evd, CALL(rsp_create)(inner, 504, reserved, wrong, &out.handle), DAT_INVALID_HANDLE_EVD_CR);
    ARGUMENT(5, CALL(rsp_create)(inner, 504, reserved, cr_evd, NULL));
    CHECK(state_of(reserved) == DAT_EP_STATE_UNCONNECTED);
    OK(CALL(rsp_create)(inner, 504, reserved, cr_evd, &rsp));
    HANDLE(pz, psp, CALL(rsp_query)(wrong, DAT_RSP_FIELD_ALL, &out.rsp), DAT_INVALID_HANDLE_RSP);
    ARGUMENT(3, CALL(rsp_query)(rsp, DAT_RSP_FIELD_ALL, NULL));
    HANDLE(pz, psp, CALL(rsp_free)(wrong), DAT_INVALID_HANDLE_RSP);
    OK(CALL(rsp_free)(rsp));
    FAILS(CALL(rsp_free)(rsp), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_RSP);
    HANDLE(pz, freed_cr, CALL(cr_query)(wrong, DAT_CR_FIELD_ALL, &out.cr), DAT_INVALID_HANDLE_CR);
    HANDLE(pz, freed_cr, CALL(cr_accept)(wrong, ep[B], 0, NULL), DAT_INVALID_HANDLE_CR);
    HANDLE(pz, freed_cr, CALL(cr_reject)(wrong, 0, NULL), DAT_INVALID_HANDLE_CR);
    cr = ask_for_request();
    ARGUMENT(3, CALL(cr_query)(cr, DAT_CR_FIELD_ALL, NULL));
    HANDLE(pz, freed_ep, CALL(cr_accept)(cr, wrong, 0, NULL), DAT_INVALID_HANDLE_EP);
    ARGUMENT(3, CALL(cr_accept)(cr, ep[B], -1, NULL));
    ARGUMENT(3, CALL(cr_accept)(cr, ep[B], 100000, memory[A]));
    ARGUMENT(4, CALL(cr_accept)(cr, ep[B], 4, NULL));
    FAILS(CALL(cr_accept)(cr, ep[A], 0, NULL), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_ACTCONNPENDING);
    ARGUMENT(2, CALL(cr_reject)(cr, -1, NULL));
    ARGUMENT(2, CALL(cr_reject)(cr, 100000, memory[A]));
    ARGUMENT(3, CALL(cr_reject)(cr, 4, NULL));
    OK(CALL(cr_reject)(cr, 0, NULL));
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_PEER_REJECTED);
    OK(dat_ep_reset(ep[A]));
}

static void end_points(void) {
    DAT_EP_ATTR attr;
    DAT_EP_PARAM param;
    DAT_IA_ADDRESS_PTR to = ia_attr.ia_address_ptr;
    struct sockaddr unknown = {.sa_family = 77};
    OK(dat_ep_query(ep[A], DAT_EP_FIELD_ALL, &param));
    attr = param.ep_attr;
    attr.max_recv_dtos = -1;
    HANDLE(pz, freed_ia, CALL(ep_create)(wrong, pz, NULL, NULL, NULL, NULL, &out.handle), DAT_INVALID_HANDLE_IA);
    FAILS(CALL(ep_create)(inner, psp, NULL, NULL, NULL, NULL, &out.handle), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
    FAILS(CALL(ep_create)(inner, freed_pz, NULL, NULL, NULL, NULL, &out.handle), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
    FAILS(CALL(ep_create)(inner, pz, cr_evd, NULL, NULL, NULL, &out.handle), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_RECV);
    FAILS(CALL(ep_create)(inner, pz, NULL, cr_evd, NULL, NULL, &out.handle), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_REQUEST);
    FAILS(CALL(ep_create)(inner, pz, NULL, NULL, cr_evd, NULL, &out.handle), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_CONN);
    ARGUMENT(6, CALL(ep_create)(inner, pz, NULL, NULL, NULL, &attr, &out.handle));
    ARGUMENT(7, CALL(ep_create)(inner, pz, NULL, NULL, NULL, NULL, NULL));
    HANDLE(pz, freed_srq, CALL(ep_create_with_srq)(inner, pz, NULL, NULL, NULL, wrong, NULL, &out.handle), DAT_INVALID_HANDLE_SRQ);
    ARGUMENT(7, CALL(ep_create_with_srq)(inner, pz, NULL, NULL, NULL, srq, &attr, &out.handle));
    ARGUMENT(8, CALL(ep_create_with_srq)(inner, pz, NULL, NULL, NULL, srq, NULL, NULL));
    HANDLE(pz, freed_ep, CALL(ep_query)(wrong, DAT_EP_FIELD_ALL, &out.ep), DAT_INVALID_HANDLE_EP);
    ARGUMENT(3, CALL(ep_query)(ep[A], DAT_EP_FIELD_ALL, NULL));
    HANDLE(pz, freed_ep, CALL(ep_modify)(wrong, DAT_EP_FIELD_PZ_HANDLE, &param), DAT_INVALID_HANDLE_EP);
    ARGUMENT(2, CALL(ep_modify)(ep[A], DAT_EP_FIELD_EP_STATE, &param));
    ARGUMENT(3, CALL(ep_modify)(ep[A], DAT_EP_FIELD_PZ_HANDLE, NULL));
    param.ep_attr = attr;
    ARGUMENT(3, CALL(ep_modify)(ep[A], DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, &param));
    HANDLE(pz, freed_ep, CALL(ep_connect)(wrong, to, qualifier, SECOND, 0, NULL, 0, 0), DAT_INVALID_HANDLE_EP);
    ARGUMENT(2, CALL(ep_connect)(ep[A], NULL, qualifier, SECOND, 0, NULL, 0, 0));
    FAILS(CALL(ep_connect)(ep[A], &unknown, qualifier, SECOND, 0, NULL, 0, 0), DAT_INVALID_ADDRESS, DAT_INVALID_ADDRESS_UNSUPPORTED);
    ARGUMENT(4, CALL(ep_connect)(ep[A], to, qualifier, 0, 0, NULL, 0, 0));
    ARGUMENT(5, CALL(ep_connect)(ep[A], to, qualifier, SECOND, -1, NULL, 0, 0));
    ARGUMENT(5, CALL(ep_connect)(ep[A], to, qualifier, SECOND, 100000, memory[A], 0, 0));
    ARGUMENT(6, CALL(ep_connect)(ep[A], to, qualifier, SECOND, 4, NULL, 0, 0));
    FAILS(CALL(ep_connect)(ep[A], to, qualifier, SECOND, 0, NULL, 0, DAT_CONNECT_MULTIPATH_REQUIRED_FLAG), DAT_MODEL_NOT_SUPPORTED, 0);
    ARGUMENT(8, CALL(ep_connect)(ep[A], to, qualifier, SECOND, 0, NULL, 0, (DAT_CONNECT_FLAGS)0x40));
    HANDLE(pz, freed_ep, CALL(ep_dup_connect)(wrong, ep[A], SECOND, 0, NULL, 0), DAT_INVALID_HANDLE_EP);
    HANDLE(pz, freed_ep, CALL(ep_dup_connect)(ep[A], wrong, SECOND, 0, NULL, 0), DAT_INVALID_HANDLE_EP);
    FAILS(CALL(ep_dup_connect)(ep[A], ep[B], SECOND, 0, NULL, 0), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONNECTED);
    HANDLE(pz, freed_ep, CALL(ep_disconnect)(wrong, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE_EP);
    ARGUMENT(2, CALL(ep_disconnect)(ep[A], 77));
    FAILS(CALL(ep_disconnect)(ep[A], DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONNECTED);
    HANDLE(pz, freed_ep, CALL(ep_get_status)(wrong, NULL, NULL, NULL), DAT_INVALID_HANDLE_EP);
    OK(CALL(ep_get_status)(ep[A], NULL, NULL, NULL));
    HANDLE(pz, freed_ep, CALL(ep_recv_query)(wrong, &more, &more), DAT_INVALID_HANDLE_EP);
    OK(CALL(ep_recv_query)(ep[A], NULL, NULL));
    HANDLE(pz, freed_ep, CALL(ep_reset)(wrong), DAT_INVALID_HANDLE_EP);
    OK(CALL(ep_reset)(ep[A]));
}

static void transfers(void) {
    DAT_LMR_TRIPLET part = piece(A, 0, 8), beyond = piece(A, SIZE - 4, 8);
    DAT_RMR_TRIPLET there = remote(B, 0, 8, rmr_context[B]), small = remote(B, 0, 4, rmr_context[B]);
    const DAT_COUNT TOO_MANY = 100000;
    const DAT_COMPLETION_FLAGS NONE = (DAT_COMPLETION_FLAGS)0x1000;
    HANDLE(pz, freed_ep, CALL(ep_post_send)(wrong, 1, &part, cookie(1), 0), DAT_INVALID_HANDLE_EP);
    HANDLE(pz, freed_ep, CALL(ep_post_send_with_invalidate)(wrong, 1, &part, cookie(1), 0, 1, 7), DAT_INVALID_HANDLE_EP);
    HANDLE(pz, freed_ep, CALL(ep_post_recv)(wrong, 1, &part, cookie(1), 0), DAT_INVALID_HANDLE_EP);
    HANDLE(pz, freed_ep, CALL(ep_post_rdma_read)(wrong, 1, &part, cookie(1), &there, 0), DAT_INVALID_HANDLE_EP);
    HANDLE(pz, freed_ep, CALL(ep_post_rdma_write)(wrong, 1, &part, cookie(1), &there, 0), DAT_INVALID_HANDLE_EP);
    connect_both();
    ARGUMENT(2, CALL(ep_post_send)(ep[A], -1, &part, cookie(1), 0));
    ARGUMENT(2, CALL(ep_post_send)(ep[A], TOO_MANY, &part, cookie(1), 0));
    ARGUMENT(3, CALL(ep_post_send)(ep[A], 1, NULL, cookie(1), 0));
    ARGUMENT(5, CALL(ep_post_send)(ep[A], 1, &part, cookie(1), NONE));
    FAILS(CALL(ep_post_send)(ep[A], 1, &beyond, cookie(1), 0), DAT_PROTECTION_VIOLATION, DAT_PROTECTION_READ);
    ARGUMENT(2, CALL(ep_post_send_with_invalidate)(ep[A], -1, &part, cookie(1), 0, 1, 7));
    ARGUMENT(3, CALL(ep_post_send_with_invalidate)(ep[A], 1, NULL, cookie(1), 0, 1, 7));
    ARGUMENT(5, CALL(ep_post_send_with_invalidate)(ep[A], 1, &part, cookie(1), NONE, 1, 7));
    ARGUMENT(2, CALL(ep_post_recv)(ep[A], -1, &part, cookie(1), 0));
    ARGUMENT(2, CALL(ep_post_recv)(ep[A], TOO_MANY, &part, cookie(1), 0));
    ARGUMENT(3, CALL(ep_post_recv)(ep[A], 1, NULL, cookie(1), 0));
    ARGUMENT(5, CALL(ep_post_recv)(ep[A], 1, &part, cookie(1), NONE));
    ARGUMENT(2, CALL(ep_post_rdma_read)(ep[A], -1, &part, cookie(1), &there, 0));
    ARGUMENT(3, CALL(ep_post_rdma_read)(ep[A], 1, NULL, cookie(1), &there, 0));
    ARGUMENT(5, CALL(ep_post_rdma_read)(ep[A], 1, &part, cookie(1), NULL, 0));
    ARGUMENT(6, CALL(ep_post_rdma_read)(ep[A], 1, &part, cookie(1), &there, NONE));
    there.segment_length = 9;
    FAILS(CALL(ep_post_rdma_read)(ep[A], 1, &part, cookie(1), &there, 0), DAT_LENGTH_ERROR, 0);
    there.segment_length = 8;
    FAILS(CALL(ep_post_rdma_read)(ep[A], 1, &beyond, cookie(1), &there, 0), DAT_PROTECTION_VIOLATION, DAT_PROTECTION_WRITE);
    ARGUMENT(2, CALL(ep_post_rdma_write)(ep[A], -1, &part, cookie(1), &there, 0));
    ARGUMENT(3, CALL(ep_post_rdma_write)(ep[A], 1, NULL, cookie(1), &there, 0));
    ARGUMENT(5, CALL(ep_post_rdma_write)(ep[A], 1, &part, cookie(1), NULL, 0));
    ARGUMENT(6, CALL(ep_post_rdma_write)(ep[A], 1, &part, cookie(1), &there, NONE));
    FAILS(CALL(ep_post_rdma_write)(ep[A], 1, &part, cookie(1), &small, 0), DAT_LENGTH_ERROR, 0);
    FAILS(CALL(ep_reset)(ep[A]), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_CONNECTED);
    ARGUMENT(3, CALL(ep_dup_connect)(ep[B], ep[A], 0, 0, NULL, 0));
    ARGUMENT(4, CALL(ep_dup_connect)(ep[B], ep[A], SECOND, -1, NULL, 0));
    ARGUMENT(4, CALL(ep_dup_connect)(ep[B], ep[A], SECOND, 100000, memory[A], 0));
    ARGUMENT(5, CALL(ep_dup_connect)(ep[B], ep[A], SECOND, 4, NULL, 0));
    NOTHING(request_evd[A]);
    NOTHING(recv_evd[A]);
    HANDLE(pz, freed_ep, CALL(ep_free)(wrong), DAT_INVALID_HANDLE_EP);
}

static void regions(void) {
    DAT_REGION_DESCRIPTION region, none, of;
    DAT_LMR_TRIPLET part = piece(A, 0, 8), beyond = piece(A, SIZE - 4, 8);
    DAT_LMR_HANDLE made;
    const DAT_MEM_PRIV_FLAGS all = DAT_MEM_PRIV_ALL_FLAG;
    region.for_va = memory[A];
    none.for_va = NULL;
#define CREATE(adapter, type, what, len, zone, rights, va, to) \
    CALL(lmr_create)(adapter, type, what, len, zone, rights, va, to, &out.lmr_context, NULL, NULL, NULL)
    HANDLE(pz, freed_ia, CREATE(wrong, DAT_MEM_TYPE_VIRTUAL, region, 8, pz, all, DAT_VA_TYPE_VA, &made), DAT_INVALID_HANDLE_IA);
    HANDLE(psp, freed_pz, CREATE(inner, DAT_MEM_TYPE_VIRTUAL, region, 8, wrong, all, DAT_VA_TYPE_VA, &made), DAT_INVALID_HANDLE_PZ);
    HANDLE(psp, freed_lmr, (of.for_lmr_handle = wrong, CREATE(inner, DAT_MEM_TYPE_LMR, of, 8, pz, all, DAT_VA_TYPE_VA, &made)),
           DAT_INVALID_HANDLE_LMR);
    FAILS(CREATE(inner, DAT_MEM_TYPE_SHARED_VIRTUAL, region, 8, pz, all, DAT_VA_TYPE_VA, &made), DAT_MODEL_NOT_SUPPORTED, 0);
    ARGUMENT(3, CREATE(inner, DAT_MEM_TYPE_VIRTUAL, none, 8, pz, all, DAT_VA_TYPE_VA, &made));
    ARGUMENT(4, CREATE(inner, DAT_MEM_TYPE_VIRTUAL, region, 0, pz, all, DAT_VA_TYPE_VA, &made));
    ARGUMENT(4, CREATE(inner, DAT_MEM_TYPE_VIRTUAL, region, ~(DAT_VLEN)0, pz, all, DAT_VA_TYPE_VA, &made));
    ARGUMENT(6, CREATE(inner, DAT_MEM_TYPE_VIRTUAL, region, 8, pz, 0x100, DAT_VA_TYPE_VA, &made));
    ARGUMENT(7, CREATE(inner, DAT_MEM_TYPE_VIRTUAL, region, 8, pz, all, 7, &made));
    ARGUMENT(8, CREATE(inner, DAT_MEM_TYPE_VIRTUAL, region, 8, pz, all, DAT_VA_TYPE_VA, NULL));
    HANDLE(pz, freed_lmr, CALL(lmr_query)(wrong, DAT_LMR_FIELD_ALL, &out.lmr), DAT_INVALID_HANDLE_LMR);
    ARGUMENT(3, CALL(lmr_query)(lmr[A], DAT_LMR_FIELD_ALL, NULL));
    HANDLE(pz, freed_lmr, CALL(lmr_free)(wrong), DAT_INVALID_HANDLE_LMR);
    HANDLE(pz, freed_ia, CALL(lmr_sync_rdma_read)(wrong, &part, 1), DAT_INVALID_HANDLE_IA);
    ARGUMENT(2, CALL(lmr_sync_rdma_read)(inner, NULL, 1));
    HANDLE(pz, freed_ia, CALL(lmr_sync_rdma_write)(wrong, &part, 1), DAT_INVALID_HANDLE_IA);
    ARGUMENT(2, CALL(lmr_sync_rdma_write)(inner, NULL, 1));
    HANDLE(psp, freed_pz, CALL(rmr_create)(wrong, &out.handle), DAT_INVALID_HANDLE_PZ);
    ARGUMENT(2, CALL(rmr_create)(pz, NULL));
    HANDLE(pz, freed_rmr, CALL(rmr_query)(wrong, DAT_RMR_FIELD_ALL, &out.rmr), DAT_INVALID_HANDLE_RMR);
    ARGUMENT(3, CALL(rmr_query)(rmr, DAT_RMR_FIELD_ALL, NULL));
#define BIND(handle, whole, what, rights, va, point, flags) \
    CALL(rmr_bind)(handle, whole, what, rights, va, point, cookie(1), flags, &out.rmr_context)
    HANDLE(pz, freed_rmr, BIND(wrong, lmr[A], &part, all, DAT_VA_TYPE_VA, ep[A], 0), DAT_INVALID_HANDLE_RMR);
    HANDLE(pz, freed_lmr, BIND(rmr, wrong, &part, all, DAT_VA_TYPE_VA, ep[A], 0), DAT_INVALID_HANDLE_LMR);
    HANDLE(pz, freed_ep, BIND(rmr, lmr[A], &part, all, DAT_VA_TYPE_VA, wrong, 0), DAT_INVALID_HANDLE_EP);
    ARGUMENT(3, BIND(rmr, lmr[A], NULL, all, DAT_VA_TYPE_VA, ep[A], 0));
    ARGUMENT(3, BIND(rmr, lmr[A], &beyond, all, DAT_VA_TYPE_VA, ep[A], 0));
    ARGUMENT(4, BIND(rmr, lmr[A], &part, 0x100, DAT_VA_TYPE_VA, ep[A], 0));
    ARGUMENT(5, BIND(rmr, lmr[A], &part, all, 7, ep[A], 0));
    ARGUMENT(8, BIND(rmr, lmr[A], &part, all, DAT_VA_TYPE_VA, ep[A], 0x1000));
    NOTHING(request_evd[A]);
    HANDLE(pz, freed_rmr, CALL(rmr_free)(wrong), DAT_INVALID_HANDLE_RMR);
    OK(CALL(rmr_free)(rmr));
    HANDLE(pz, freed_ia, CALL(pz_create)(wrong, &out.handle), DAT_INVALID_HANDLE_IA);
    ARGUMENT(2, CALL(pz_create)(inner, NULL));
    HANDLE(psp, freed_pz, CALL(pz_query)(wrong, DAT_PZ_FIELD_ALL, &out.pz), DAT_INVALID_HANDLE_PZ);
    ARGUMENT(3, CALL(pz_query)(pz, DAT_PZ_FIELD_ALL, NULL));
    HANDLE(psp, freed_pz, CALL(pz_free)(wrong), DAT_INVALID_HANDLE_PZ);
    FAILS(CALL(pz_free)(pz), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE);
}

static void shared_queues(void) {
    DAT_LMR_TRIPLET part = piece(A, 0, 8);
    DAT_SRQ_ATTR attr = {8, 1, 0}, bad = {0, 1, 0};
    HANDLE(pz, freed_ia, CALL(srq_create)(wrong, pz, &attr, &out.handle), DAT_INVALID_HANDLE_IA);
    HANDLE(psp, freed_pz, CALL(srq_create)(inner, wrong, &attr, &out.handle), DAT_INVALID_HANDLE_PZ);
    ARGUMENT(3, CALL(srq_create)(inner, pz, NULL, &out.handle));
    ARGUMENT(3, CALL(srq_create)(inner, pz, &bad, &out.handle));
    ARGUMENT(4, CALL(srq_create)(inner, pz, &attr, NULL));
    HANDLE(pz, freed_srq, CALL(srq_post_recv)(wrong, 1, &part, cookie(1)), DAT_INVALID_HANDLE_SRQ);
    ARGUMENT(2, CALL(srq_post_recv)(srq, -1, &part, cookie(1)));
    ARGUMENT(3, CALL(srq_post_recv)(srq, 1, NULL, cookie(1)));
    HANDLE(pz, freed_srq, CALL(srq_query)(wrong, DAT_SRQ_FIELD_ALL, &out.srq), DAT_INVALID_HANDLE_SRQ);
    ARGUMENT(3, CALL(srq_query)(srq, DAT_SRQ_FIELD_ALL, NULL));
    HANDLE(pz, freed_srq, CALL(srq_resize)(wrong, 8), DAT_INVALID_HANDLE_SRQ);
    ARGUMENT(2, CALL(srq_resize)(srq, 0));
    HANDLE(pz, freed_srq, CALL(srq_set_lw)(wrong, 1), DAT_INVALID_HANDLE_SRQ);
    ARGUMENT(2, CALL(srq_set_lw)(srq, -1));
    HANDLE(pz, freed_srq, CALL(srq_free)(wrong), DAT_INVALID_HANDLE_SRQ);
    OK(CALL(srq_free)(srq));
}

static void not_served(void) {
    DAT_LMR_TRIPLET part = piece(A, 0, 8);
    DAT_RMR_TRIPLET there = remote(B, 0, 8, rmr_context[B]), here = remote(A, 0, 8, rmr_context[A]);
    DAT_COMM comm = {0, 0, 0};
    DAT_BOOLEAN answer;
    va_list nothing;
    memset(&nothing, 0, sizeof nothing);
#define MISSING(call) FAILS(call, DAT_NOT_IMPLEMENTED, 0)
    MISSING(CALL(cr_handoff)(cr, 7));
    MISSING(CALL(ep_set_watermark)(ep[A], 1, 1));
    MISSING(CALL(csp_create)(inner, &comm, ia_attr.ia_address_ptr, cr_evd, &out.handle));
    MISSING(CALL(csp_query)(pz, 0, NULL));
    MISSING(CALL(csp_free)(pz));
    MISSING(CALL(ep_common_connect)(ep[A], ia_attr.ia_address_ptr, SECOND, 0, NULL));
    MISSING(CALL(rmr_create_for_ep)(pz, &out.handle));
    MISSING(CALL(ep_post_rdma_read_to_rmr)(ep[A], &here, cookie(1), &there, 0));
    MISSING(CALL(ia_ha_related)(inner, "udeck", &answer));
    MISSING(CALL(handle_extendedop)(pz, 0, nothing));
    (void)part;
}

int main(void) {
    int slot;
    open_all();
    make_and_free();
    adapters();
    notification_objects();
    dispatchers();
    service_points();
    end_points();
    transfers();
    regions();
    shared_queues();
    not_served();
    for (slot = 0; slot < SLOTS; slot++) {
        if (!tried[slot]) {
            fprintf(stderr, "slot %d was not tried\n", slot);
            return 1;
        }
    }
    close_all();
    return 0;
}
