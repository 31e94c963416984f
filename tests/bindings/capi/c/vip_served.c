/* Service of peers: each is served whatever the program polls meanwhile, and no peer's error is reported endlessly. */
#include "vip_test.h"

/* VIs on two NICs of this process: a thread that waits at one NIC serves no other. */
typedef struct {
    pair there, here;
} far_pair;

/* Errors that were reported while the program did not poll. */
static told unlooked;

static void join_far(far_pair *f, VIP_VI_HANDLE asks, VIP_VI_HANDLE accepts) {
    pthread_t thread;
    asking a = {&f->here, asks, VIP_NOT_DONE, TIMEOUT, "far"};
    HOLDS(pthread_create(&thread, NULL, ask, &a) == 0);
    OK(VipConnectAccept(wait_for_request(f->there.nic, "far"), accepts));
    pthread_join(thread, NULL);
    OK(a.result);
}

static void open_end(pair *p, VIP_RELIABILITY_LEVEL level) {
    OK(VipOpenNic("VINIC0", &p->nic));
    OK(VipErrorCallback(p->nic, &unlooked, tell));
    OK(VipCreatePtag(p->nic, &p->ptag));
    make_end(p, &p->a, level, 1, NULL);
    make_end(p, &p->b, level, 1, NULL);
}

static far_pair far_connected(VIP_RELIABILITY_LEVEL level) {
    far_pair f;
    open_end(&f.there, level);
    open_end(&f.here, level);
    VIP_DESCRIPTOR *none;
    join_far(&f, f.here.a.vi, f.there.a.vi);
    /* The peer has connected: a message without a receive is an error from now on. */
    GIVES(VIP_NOT_DONE, VipRecvDone(f.there.a.vi, &none));
    return f;
}

static void close_far(far_pair *f) {
    end_pair(&f->here);
    end_pair(&f->there);
    OK(VipCloseNic(f->here.nic));
    OK(VipCloseNic(f->there.nic));
}

/* The program polls one VI all the time, and a peer reads memory through another one. */
static void looks_elsewhere(void) {
    far_pair f = far_connected(VIP_SERVICE_RELIABLE_DELIVERY);
    VIP_DESCRIPTOR *done = NULL;
    time_t until = time(NULL) + 60;
    VIP_RETURN result;
    post_rdma(&f.here.a, 0, VIP_CONTROL_OP_RDMAREAD, data(&f.there.a, 1), f.there.a.memory.handle, 100);
    do {
        VIP_DESCRIPTOR *none;
        GIVES(VIP_NOT_DONE, VipRecvDone(f.there.b.vi, &none));
        result = VipSendDone(f.here.a.vi, &done);
    } while (result == VIP_NOT_DONE && time(NULL) < until);
    OK(result);
    HOLDS(done == descriptor(&f.here.a, 0) && (done->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
    close_far(&f);
}

static int count_of(told *t, VIP_VI_HANDLE vi, VIP_ERROR_CODE code) {
    int count = 0;
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < t->count; i++) count += t->vis[i] == vi && t->codes[i] == code;
    pthread_mutex_unlock(&t->lock);
    return count;
}

/* A peer that repeatedly requests forbidden memory is reported once. */
static void asks_in_vain(told *t) {
    enum { READS = 30 };
    far_pair f = far_connected(VIP_SERVICE_RELIABLE_DELIVERY);
    VIP_VI_HANDLE there = f.there.a.vi;
    t->count = 0;
    OK(VipErrorCallback(f.there.nic, t, tell));
    /* The peer does not poll for answers in between. */
    for (int i = 0; i < READS; i++)
        post_rdma(&f.here.a, i, VIP_CONTROL_OP_RDMAREAD, data(&f.there.a, 1), f.there.a.memory.handle ^ 0x10000, 8);
    was_told(t, there, VIP_ERROR_RDMAR_PROT);
    sent(&f.here.a, 0, VIP_STATUS_RDMA_PROT_ERROR);
    for (int i = 1; i < READS; i++) sent(&f.here.a, i, VIP_STATUS_DESC_FLUSHED_ERROR);
    close_far(&f); /* All handlers have been called. */
    HOLDS(count_of(t, there, VIP_ERROR_RDMAR_PROT) == 1);
}

/* A post for which the peer had no place fails with this; a read before it has no error of its own. */
static void breaks_behind_a_read(VIP_RELIABILITY_LEVEL level) {
    for (int round = 0; round < 5; round++) {
        far_pair f = far_connected(level);
        VIP_DESCRIPTOR *done;
        post_rdma(&f.here.a, 0, VIP_CONTROL_OP_RDMAREAD, data(&f.there.a, 1), f.there.a.memory.handle, 100);
        post_send(&f.here.a, 1, 8);
        OK(VipSendWait(f.here.a.vi, TIMEOUT, &done));
        HOLDS(done == descriptor(&f.here.a, 0));
        HOLDS((done->CS.Status & VIP_STATUS_ERROR_MASK & ~(VIP_UINT32)VIP_STATUS_DESC_FLUSHED_ERROR) == 0);
        sent(&f.here.a, 1, level == VIP_SERVICE_RELIABLE_RECEPTION ? VIP_STATUS_REMOTE_DESC_ERROR : 0U);
        close_far(&f);
    }
}

int main(void) {
    told t;
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES a;
    memset(&t, 0, sizeof t);
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.changed, NULL);
    pthread_mutex_init(&unlooked.lock, NULL);
    pthread_cond_init(&unlooked.changed, NULL);
    OK(VipOpenNic("VINIC0", &nic));
    OK(VipQueryNic(nic, &a));
    OK(VipCloseNic(nic));
    looks_elsewhere();
    asks_in_vain(&t);
    breaks_behind_a_read(VIP_SERVICE_RELIABLE_DELIVERY);
    if (a.ReliabilityLevelSupport & VIP_SERVICE_RELIABLE_RECEPTION) breaks_behind_a_read(VIP_SERVICE_RELIABLE_RECEPTION);
    printf("all are served\n");
    return 0;
}
