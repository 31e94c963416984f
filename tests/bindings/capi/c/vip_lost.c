/* A peer that dies: what is posted is flushed, the VI is in the error state, and the error callback is told.
 *
 *   vip_lost server | vip_lost client HOST: the client ends by a signal once it is connected
 */
#include <signal.h>
#include <unistd.h>

#include "vip_test.h"

int main(int argc, char **argv) {
    pair p;
    told t;
    const char *host;
    int serves = role(argc, argv, &host);
    memset(&t, 0, sizeof t);
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.changed, NULL);
    OK(VipOpenNic("VINIC0", &p.nic));
    OK(VipErrorCallback(p.nic, &t, tell));
    OK(VipCreatePtag(p.nic, &p.ptag));
    make_end(&p, &p.a, VIP_SERVICE_RELIABLE_DELIVERY, VIP_TRUE, NULL);
    post_receive(&p.a, 0, 8);
    post_receive(&p.a, 1, 8);
    connect_pair(p.nic, p.a.vi, serves, host, "lost");
    if (!serves) {
        post_send(&p.a, 2, 8);
        sent(&p.a, 2, 0);
        VIP_DESCRIPTOR *done;
        OK(VipRecvWait(p.a.vi, TIMEOUT, &done)); /* The other side has the message. */
        kill(getpid(), SIGKILL);
    }
    received(&p.a, 0, 0);
    post_send(&p.a, 2, 8);
    sent(&p.a, 2, 0);
    received(&p.a, 1, VIP_STATUS_DESC_FLUSHED_ERROR);
    HOLDS(state_of(p.a.vi) == VIP_STATE_ERROR);
    was_told(&t, p.a.vi, VIP_ERROR_CONN_LOST);
    post_send(&p.a, 3, 8);
    sent(&p.a, 3, VIP_STATUS_DESC_FLUSHED_ERROR);
    OK(VipDisconnect(p.a.vi));
    OK(VipDestroyVi(p.a.vi));
    free_memory(p.nic, &p.a.memory);
    OK(VipDestroyPtag(p.nic, p.ptag));
    OK(VipCloseNic(p.nic));
    printf("a dead peer is an error\n");
    return 0;
}
