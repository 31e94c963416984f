/* Handlers: the library's thread calls the program when a descriptor is done, and when a connection breaks.
 *
 *   vip_notify server | vip_notify client HOST | deckrun -n 2 -- vip_notify
 */
#include <pthread.h>

#include "vip_common.h"

enum { MESSAGES = 100 };

typedef struct {
    VIP_MEM_HANDLE handle;
    VIP_DESCRIPTOR *receive;
    unsigned *in;
    unsigned came;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} state;

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error) {
    (void)context;
    fprintf(stderr, "error %d of resource %d\n", (int)error->ErrorCode, (int)error->ResourceCode);
    exit(1);
}

static void post(state *s, VIP_VI_HANDLE vi) {
    one_segment(s->receive, s->in, sizeof *s->in, s->handle);
    CHECK(VipPostRecv(vi, s->receive, s->handle));
}

static void on_receive(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor) {
    state *s = (state *)context;
    (void)nic;
    EXPECT(descriptor == s->receive && (descriptor->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
    EXPECT(*s->in == s->came);
    /* A handler is called once: it asks again. */
    if (s->came + 1 < MESSAGES) {
        post(s, vi);
        CHECK(VipRecvNotify(vi, s, on_receive));
    }
    pthread_mutex_lock(&s->lock);
    s->came++;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void wait_for(state *s, unsigned count) {
    pthread_mutex_lock(&s->lock);
    while (s->came < count) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

int main(int argc, char **argv) {
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE ptag;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *done;
    const char *host;
    state s;
    int serves = role(argc, argv, &host);
    CHECK(VipOpenNic("VINIC0", &nic));
    CHECK(VipErrorCallback(nic, NULL, on_error));
    CHECK(VipCreatePtag(nic, &ptag));
    block m = make_memory(nic, 4096, ptag, VIP_FALSE, VIP_FALSE);
    VIP_DESCRIPTOR *send = (VIP_DESCRIPTOR *)(void *)m.bytes;
    unsigned *out = (unsigned *)(void *)(m.bytes + 1024);
    memset(&s, 0, sizeof s);
    s.handle = m.handle;
    s.receive = send + 1;
    s.in = out + 1;
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.changed, NULL);

    VIP_VI_ATTRIBUTES attributes = usual_attributes(ptag, VIP_FALSE);
    CHECK(VipCreateVi(nic, &attributes, NULL, NULL, &vi));
    post(&s, vi);
    CHECK(VipRecvNotify(vi, &s, on_receive));
    connect_pair(nic, vi, serves, host, "notify");

    /* In turns: there is one descriptor for what comes. */
    for (unsigned turn = 0; turn < MESSAGES; turn++) {
        if (serves) wait_for(&s, turn + 1);
        *out = turn;
        one_segment(send, out, sizeof *out, m.handle);
        CHECK(VipPostSend(vi, send, m.handle));
        CHECK(VipSendWait(vi, TIMEOUT, &done));
        EXPECT(done == send && (done->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
        if (!serves) wait_for(&s, turn + 1);
    }
    printf("%s: the handler was called %u times\n", serves ? "server" : "client", s.came);

    CHECK(VipDisconnect(vi));
    CHECK(VipDestroyVi(vi));
    free_memory(nic, &m);
    CHECK(VipDestroyPtag(nic, ptag));
    CHECK(VipCloseNic(nic));
    return 0;
}
