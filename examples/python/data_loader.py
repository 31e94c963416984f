"""Data loaders that feed a trainer: rank 0 trains, the others make batches. `deckrun -n 4 -- python examples/python/data_loader.py [BATCHES]`.

A loader writes each batch into message memory and posts it, which copies nothing; the trainer reads it where the loader wrote it. The
memory of a batch goes back to its loader when the trainer has done with it. A loader that is ahead waits, as the mailbox's queue is bounded.
Every loader also makes a batch for a check now and then: the trainer waits at both mailboxes at once.
"""

import sys

import numpy
from numpy.typing import NDArray

import udeck

FEATURES, BATCH, RATE, EACH = 100, 1000, 0.5, 10
batches = int(sys.argv[1]) if len(sys.argv) > 1 else 60
truth = numpy.random.default_rng(7).normal(size=FEATURES).astype("f4")


def fill(batch: NDArray[numpy.float32], random: numpy.random.Generator) -> None:
    """A batch of noisy features, each row with its class (0 or 1) behind them. A program would read a file here."""
    features, classes = batch[:, :-1], batch[:, -1]
    random.standard_normal(out=batch, dtype="f4")
    classes[:] = features @ truth > 0
    features += 0.1 * random.standard_normal(features.shape, dtype="f4")


def load(world: udeck.World) -> None:
    random = numpy.random.default_rng(world.rank)
    training, checks = world.postbox("training"), world.postbox("checks")
    for nth in range(batches):
        batch = world.empty((BATCH, FEATURES + 1), dtype=numpy.float32)
        fill(batch, random)
        (checks if nth % EACH == EACH - 1 else training).post(batch)  # moved: it cannot be used here any more
    copied = numpy.array([world.stats()["bytes_copied"]])
    world.all().reduce(copied)


def train(world: udeck.World) -> None:
    queue = 16 * BATCH * (FEATURES + 1)
    training, checks = world.mailbox("training", queue=queue), world.mailbox("checks", queue=queue)
    weights, right, checked = numpy.zeros(FEATURES, dtype="f4"), 0, 0
    for _ in range(batches * (world.size - 1)):
        inbox = udeck.select([training, checks])
        batch = inbox.retrieve()
        features, classes = batch[:, :-1], batch[:, -1]
        guess = 1 / (1 + numpy.exp(-features @ weights))
        if inbox is checks:
            right, checked = right + int(((guess > 0.5) == classes).sum()), checked + BATCH
        else:
            weights -= RATE / BATCH * features.T @ (guess - classes)
    angle = weights @ truth / numpy.linalg.norm(weights) / numpy.linalg.norm(truth)
    copied = numpy.zeros(1, dtype=int)
    world.all().reduce(copied)
    print(f"{batches} batches of each of {world.size - 1} loaders, {copied[0]} bytes of them copied")
    print(f"{right / max(checked, 1):.1%} of {checked} rows were right on the way; the model's angle to the truth has cosine {angle:.3f}")


with udeck.init() as world:
    if world.size < 2:
        sys.exit("two ranks or more, please: deckrun -n 4 -- python data_loader.py")
    if world.rank == 0:
        train(world)
    else:
        load(world)
    world.barrier()
