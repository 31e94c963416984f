"""A parameter server: rank 0 keeps the weights of a linear model, the others send gradients of their data and get new weights.

`deckrun -n 4 -- python examples/python/parameter_server.py [STEPS]`. The gradients are made in message memory, so posting them
copies nothing; the server reads each where its worker wrote it.
"""

import sys

import numpy

import udeck

FEATURES, SAMPLES, RATE = 64, 4096, 0.1
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
truth = numpy.random.default_rng(7).normal(size=FEATURES)


def serve(world: udeck.World) -> None:
    gradients = world.mailbox("gradients")
    workers = [world.postbox_of("weights", rank) for rank in range(1, world.size)]
    weights = numpy.zeros(FEATURES)
    for _ in range(steps):
        for worker in workers:
            worker.post(weights)
        for _ in workers:
            weights -= RATE / len(workers) * gradients.retrieve()
    print(f"after {steps} steps of {len(workers)} workers the largest error is {abs(weights - truth).max():.1e}")


def work(world: udeck.World) -> None:
    random = numpy.random.default_rng(world.rank)
    data = random.normal(size=(SAMPLES, FEATURES))
    wanted = data @ truth
    weights = world.mailboxes("weights")
    gradients = world.postbox("gradients")
    for _ in range(steps):
        gradient = world.empty(FEATURES)
        numpy.matmul(data.T, data @ weights.retrieve() - wanted, out=gradient)
        gradient /= SAMPLES
        gradients.post(gradient)  # moved: it cannot be used here any more


with udeck.init() as world:
    if world.size < 2:
        sys.exit("two ranks or more, please: deckrun -n 4 -- python parameter_server.py")
    if world.rank == 0:
        serve(world)
    else:
        work(world)
    world.barrier()
