/* Messages, writes and reads as long as the NIC says that they may be. */
#include "vip_test.h"

static end whole(pair *p, VIP_ULONG length) {
    end e;
    VIP_VI_ATTRIBUTES attributes = usual_attributes(p->ptag, 1);
    attributes.MaxTransferSize = 0; /* The value 0 stands for the NIC's limit. */
    e.memory = make_memory(p->nic, SLOT + length, p->ptag, VIP_TRUE, VIP_TRUE);
    OK(VipCreateVi(p->nic, &attributes, NULL, NULL, &e.vi));
    return e;
}

static unsigned char *of_slot_1(end *e) { return e->memory.bytes + SLOT; }

int main(void) {
    pair p;
    VIP_NIC_ATTRIBUTES nic;
    OK(VipOpenNic("VINIC0", &p.nic));
    OK(VipQueryNic(p.nic, &nic));
    OK(VipCreatePtag(p.nic, &p.ptag));
    VIP_ULONG length = nic.MaxTransferSize;
    p.a = whole(&p, length);
    p.b = whole(&p, length);
    join(&p, p.a.vi, p.b.vi);
    static const VIP_UINT16 operations[] = {VIP_CONTROL_OP_SENDRECV, VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE,
                                            VIP_CONTROL_OP_RDMAREAD};
    for (int i = 0; i < 3; i++) {
        end *to = i < 2 ? &p.b : &p.a, *from = i < 2 ? &p.a : &p.b;
        VIP_DESCRIPTOR *d = descriptor(&p.a, 0);
        memset(of_slot_1(to), 0, length);
        memset(of_slot_1(from), 0x50 + i, length);
        if (i < 2) {
            one_segment(descriptor(&p.b, 0), of_slot_1(&p.b), (VIP_UINT32)length, p.b.memory.handle);
            OK(VipPostRecv(p.b.vi, descriptor(&p.b, 0), p.b.memory.handle));
        }
        one_segment(d, of_slot_1(&p.a), (VIP_UINT32)length, p.a.memory.handle);
        if (i > 0) {
            d->CS.Control = operations[i];
            d->CS.SegCount = 2;
            d->DS[1] = d->DS[0];
            d->DS[0].Remote.Data.AddressBits = (VIP_UINT64)(uintptr_t)of_slot_1(&p.b);
            d->DS[0].Remote.Handle = p.b.memory.handle;
        }
        OK(VipPostSend(p.a.vi, d, p.a.memory.handle));
        sent(&p.a, 0, 0);
        HOLDS(d->CS.Length == length);
        if (i < 2) received(&p.b, 0, 0);
        HOLDS(of_slot_1(to)[0] == 0x50 + i && of_slot_1(to)[length - 1] == 0x50 + i);
    }
    end_pair(&p);
    OK(VipCloseNic(p.nic));
    printf("the longest messages arrive\n");
    return 0;
}
