"""A token goes around the ranks: `deckrun -n 4 -- python examples/python/ring.py`."""

import numpy

import udeck

ROUNDS = 3

with udeck.init() as world:
    inbox = world.mailboxes("ring")
    following = world.postbox_of("ring", (world.rank + 1) % world.size)
    for lap in range(1, ROUNDS + 1):
        if world.rank == 0:
            following.post(numpy.zeros(1, dtype=numpy.int64))
        token = inbox.retrieve()  # read only, where it lies
        if world.rank == 0:
            print(f"round {lap}: {token[0] + 1} ranks have had the token", flush=True)
        else:
            following.post(token + 1)
    # Nobody closes a mailbox that is still posted to.
    world.barrier()
