/* Several threads on one NIC: each has a pair of VIs; and two threads post to one VI, while a third takes what comes. */
#include "vip_test.h"

enum { THREADS = 4, ROUNDS = 500, MESSAGES = 1000 };

static VIP_NIC_HANDLE nic;
static pthread_mutex_t connecting = PTHREAD_MUTEX_INITIALIZER;

static void *own_pair(void *argument) {
    (void)argument;
    pthread_mutex_lock(&connecting); /* All threads connect at one discriminator. */
    pair p = connected(nic, VIP_SERVICE_RELIABLE_DELIVERY, 1, NULL);
    pthread_mutex_unlock(&connecting);
    for (int i = 0; i < ROUNDS; i++) {
        post_receive(&p.b, 0, 2000);
        post_send(&p.a, 1, i % 2 == 0 ? 8 : 2000);
        sent(&p.a, 1, 0);
        received(&p.b, 0, 0);
        if (i % 50 == 0) {
            post_rdma(&p.a, 2, VIP_CONTROL_OP_RDMAREAD, data(&p.b, 3), p.b.memory.handle, 100);
            HOLDS(sent(&p.a, 2, 0) == VIP_STATUS_OP_RDMA_READ);
            /* Other threads register and deregister meanwhile. */
            block extra = make_memory(nic, SLOT, p.ptag, 0, 0);
            free_memory(nic, &extra);
        }
    }
    end_pair(&p);
    return NULL;
}

static pair shared;
static block sends;
/* Number of times that each descriptor was given back. */
static int given_back[MESSAGES];

/* Posts its half, and waits once for each post: for the next finished one, which may be the other thread's. A wait for a certain post
   would be in vain after the other thread has got it. */
static void *post_half(void *argument) {
    int half = *(int *)argument;
    VIP_DESCRIPTOR *all = (VIP_DESCRIPTOR *)(void *)sends.bytes, *done;
    for (int i = 0; i < MESSAGES / 2; i++) {
        VIP_DESCRIPTOR *d = all + half * (MESSAGES / 2) + i;
        one_segment(d, data(&shared.a, half), 8, shared.a.memory.handle);
        d->CS.Control |= VIP_CONTROL_IMMEDIATE;
        d->CS.ImmediateData = (VIP_UINT32)half;
        OK(VipPostSend(shared.a.vi, d, sends.handle));
        OK(VipSendWait(shared.a.vi, TIMEOUT, &done));
        HOLDS(done >= all && done < all + MESSAGES);
        HOLDS((done->CS.Status & VIP_STATUS_DONE) != 0 && (done->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
        HOLDS(__atomic_add_fetch(&given_back[done - all], 1, __ATOMIC_SEQ_CST) == 1);
    }
    return NULL;
}

static void one_vi(void) {
    pthread_t threads[2];
    int halves[2] = {0, 1}, came[2] = {0, 0};
    shared = connected(nic, VIP_SERVICE_RELIABLE_DELIVERY, 0, NULL);
    sends = make_memory(nic, MESSAGES * sizeof(VIP_DESCRIPTOR), shared.ptag, 0, 0);
    /* There are as many receives as messages, so nothing delays the posters. */
    block many = make_memory(nic, MESSAGES * sizeof(VIP_DESCRIPTOR), shared.ptag, 0, 0);
    VIP_DESCRIPTOR *receives = (VIP_DESCRIPTOR *)(void *)many.bytes;
    for (int i = 0; i < MESSAGES; i++) {
        one_segment(receives + i, data(&shared.b, 0), 8, shared.b.memory.handle);
        OK(VipPostRecv(shared.b.vi, receives + i, many.handle));
    }
    for (int i = 0; i < 2; i++) HOLDS(pthread_create(&threads[i], NULL, post_half, &halves[i]) == 0);
    for (int i = 0; i < MESSAGES; i++) {
        VIP_DESCRIPTOR *done;
        OK(VipRecvWait(shared.b.vi, TIMEOUT, &done));
        HOLDS(done == receives + i && (done->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
        HOLDS(done->CS.ImmediateData < 2);
        came[done->CS.ImmediateData]++;
    }
    HOLDS(came[0] == MESSAGES / 2 && came[1] == MESSAGES / 2);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < MESSAGES; i++) HOLDS(given_back[i] == 1);
    free_memory(nic, &many);
    free_memory(nic, &sends);
    end_pair(&shared);
}

int main(void) {
    pthread_t threads[THREADS];
    OK(VipOpenNic("VINIC0", &nic));
    for (int i = 0; i < THREADS; i++) HOLDS(pthread_create(&threads[i], NULL, own_pair, NULL) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    one_vi();
    OK(VipCloseNic(nic));
    printf("threads do not disturb each other\n");
    return 0;
}
