/* Ends: peer requests that were withdrawn or answered disturb no later ones, and closing a NIC ends the waits at it. */
#include "vip_test.h"

static void a_while(long milliseconds) {
    struct timespec t = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static void two(pair *p, VIP_NIC_HANDLE nic) {
    p->nic = nic;
    OK(VipCreatePtag(nic, &p->ptag));
    make_end(p, &p->a, VIP_SERVICE_RELIABLE_DELIVERY, 0, NULL);
    make_end(p, &p->b, VIP_SERVICE_RELIABLE_DELIVERY, 0, NULL);
}

static void ask_peer(pair *p, end *e, const char *name, VIP_ULONG timeout) {
    net_address here;
    own_address(p->nic, &here, name);
    OK(VipConnectPeerRequest(e->vi, &here.address, &here.address, timeout));
}

/* Each VI connects after the other, and one side is slower. */
static void one_after_the_other(VIP_NIC_HANDLE nic) {
    pair p;
    VIP_VI_ATTRIBUTES theirs;
    two(&p, nic);
    for (int round = 0; round < 5; round++) {
        ask_peer(&p, &p.a, "turns", 10000);
        a_while(20);
        ask_peer(&p, &p.b, "turns", 10000);
        OK(VipConnectPeerWait(p.a.vi, &theirs));
        OK(VipConnectPeerWait(p.b.vi, &theirs));
        OK(VipDisconnect(p.a.vi));
        OK(VipDisconnect(p.b.vi));
    }
    end_pair(&p);
}

/* A request that was withdrawn before any peer came is found by none. */
static void withdrawn(VIP_NIC_HANDLE nic) {
    pair p, q;
    VIP_VI_ATTRIBUTES theirs;
    two(&p, nic);
    two(&q, nic);
    ask_peer(&p, &p.a, "withdrawn", VIP_INFINITE);
    a_while(200); /* The request is usually known by then. */
    OK(VipDisconnect(p.a.vi));
    a_while(200);
    ask_peer(&q, &q.a, "withdrawn", 10000);
    a_while(200);
    ask_peer(&q, &q.b, "withdrawn", 10000);
    OK(VipConnectPeerWait(q.a.vi, &theirs));
    OK(VipConnectPeerWait(q.b.vi, &theirs));
    end_pair(&q);
    end_pair(&p);
}

typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_RETURN result;
} waiting;

static void *wait_without_end(void *argument) {
    waiting *w = (waiting *)argument;
    net_address local, remote;
    VIP_VI_ATTRIBUTES theirs;
    VIP_CONN_HANDLE request;
    own_address(w->nic, &local, "never");
    w->result = VipConnectWait(w->nic, &local.address, VIP_INFINITE, &remote.address, &theirs, &request);
    return NULL;
}

/* Threads that wait for connections, or for a peer that waits for them, when the NIC closes. */
static void closes(void) {
    pthread_t threads[2];
    pair p;
    waiting w;
    asking a = {&p, NULL, VIP_SUCCESS, VIP_INFINITE, "nobody waits there"};
    OK(VipOpenNic("VINIC0", &p.nic));
    two(&p, p.nic);
    w.nic = p.nic;
    w.result = VIP_SUCCESS;
    a.vi = p.a.vi;
    HOLDS(pthread_create(&threads[0], NULL, wait_without_end, &w) == 0);
    HOLDS(pthread_create(&threads[1], NULL, ask, &a) == 0);
    a_while(300); /* Both threads usually wait by then; otherwise the NIC's handle is already invalid. */
    OK(VipCloseNic(p.nic));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    HOLDS(w.result != VIP_SUCCESS && a.result != VIP_SUCCESS);
}

int main(void) {
    VIP_NIC_HANDLE nic;
    OK(VipOpenNic("VINIC0", &nic));
    one_after_the_other(nic);
    withdrawn(nic);
    OK(VipCloseNic(nic));
    closes();
    printf("what has ended is over\n");
    return 0;
}
