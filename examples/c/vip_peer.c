/* Two equals that ask each other for a connection: neither has to know who came first.
 *
 *   vip_peer HOST                 on two hosts, each with the other's name; or twice on one, with `localhost`
 *   deckrun -n 2 -- vip_peer
 */
#include "vip_common.h"

int main(int argc, char **argv) {
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE ptag;
    VIP_VI_HANDLE vi;
    VIP_VI_ATTRIBUTES theirs;
    VIP_DESCRIPTOR *done;
    net_address local, remote;
    int rank = rank_of_launcher();
    const char *host = argc > 1 ? argv[1] : rank == 0 ? "rank1" : rank == 1 ? "rank0" : "localhost";

    CHECK(VipOpenNic("VINIC0", &nic));
    CHECK(VipCreatePtag(nic, &ptag));
    block m = make_memory(nic, 4096, ptag, VIP_FALSE, VIP_FALSE);
    VIP_DESCRIPTOR *send = (VIP_DESCRIPTOR *)(void *)m.bytes, *receive = send + 1;
    char *out = (char *)(receive + 1), *in = out + 64;
    VIP_VI_ATTRIBUTES attributes = usual_attributes(ptag, VIP_FALSE);
    CHECK(VipCreateVi(nic, &attributes, NULL, NULL, &vi));
    one_segment(receive, in, 64, m.handle);
    CHECK(VipPostRecv(vi, receive, m.handle));

    memset(&local, 0, sizeof local);
    memset(&remote, 0, sizeof remote);
    own_address(nic, &local, "peers");
    host_address(nic, &remote, host, "peers");
    CHECK(VipConnectPeerRequest(vi, &local.address, &remote.address, TIMEOUT));
    VIP_RETURN now = VipConnectPeerDone(vi, &theirs); /* does not wait */
    if (now == VIP_NOT_DONE) CHECK(VipConnectPeerWait(vi, &theirs));
    else CHECK(now);
    EXPECT(theirs.ReliabilityLevel == VIP_SERVICE_RELIABLE_DELIVERY);

    strcpy(out, "hello, peer");
    one_segment(send, out, (VIP_UINT32)strlen(out) + 1, m.handle);
    CHECK(VipPostSend(vi, send, m.handle));
    CHECK(VipSendWait(vi, TIMEOUT, &done));
    CHECK(VipRecvWait(vi, TIMEOUT, &done));
    EXPECT(done == receive && (done->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
    EXPECT(strcmp(in, "hello, peer") == 0);
    printf("peer: %s\n", in);

    CHECK(VipDisconnect(vi));
    CHECK(VipDestroyVi(vi));
    free_memory(nic, &m);
    CHECK(VipDestroyPtag(nic, ptag));
    CHECK(VipCloseNic(nic));
    return 0;
}
