"""A task farm that survives the deaths of workers: `deckrun -n 4 --on-failure survive -- python examples/python/farm.py [RANK [SECONDS]]`.

Rank 0 hands out tasks, and gives the tasks of a dead worker to others. Rank RANK is killed after SECONDS. Each task counts the primes
among some numbers. The number of all primes below 200,000 is known.
"""

import os
import signal
import sys
import threading
from collections import deque

import numpy

import udeck

NUMBERS, TASKS, PRIMES = 500, 400, 17_984
IN_HAND = 2  # tasks of a worker: the next one is there when one is done


def primes(task: int) -> int:
    numbers = numpy.arange(max(2, task * NUMBERS), (task + 1) * NUMBERS)
    divisors = numpy.arange(2, int((NUMBERS * TASKS) ** 0.5) + 1)
    return int((((numbers[:, None] % divisors) != 0) | (numbers[:, None] <= divisors)).all(axis=1).sum())


def work(world: udeck.World) -> None:
    orders = world.mailboxes("orders")
    results = world.postbox("results")
    while (order := orders.retrieve()).size:
        results.post(numpy.array([order[0], primes(int(order[0]))]))


def hand_out(world: udeck.World) -> None:
    results = world.mailbox("results")
    results.expect(*range(1, world.size))  # so that a wait is told of each loss
    waiting = deque(range(TASKS))
    counts: dict[int, int] = {}
    workers: dict[int, udeck.Postbox] = {}
    in_hand: dict[int, set[int]] = {}

    def lose(rank: int | None) -> None:
        if rank is None or workers.pop(rank, None) is None:
            return
        waiting.extend(task for task in in_hand.pop(rank) if task not in counts)

    for rank in range(1, world.size):
        try:
            workers[rank], in_hand[rank] = world.postbox_of("orders", rank), set()
        except udeck.PeerLost:
            pass  # it died before it had a mailbox
    while len(counts) < TASKS:
        for rank, worker in list(workers.items()):
            while rank in workers and waiting and len(in_hand[rank]) < IN_HAND:
                task = waiting.popleft()
                in_hand[rank].add(task)
                try:
                    worker.post(numpy.array([task]))
                except (udeck.PeerLost, udeck.MailboxGone, udeck.Undelivered):
                    lose(rank)
        if not workers:  # nobody else is left
            task = waiting.popleft()
            counts[task] = primes(task)
            continue
        try:
            message = results.retrieve_message()
        except udeck.PeerLost as error:
            lose(error.rank)
            continue
        task, count = (int(number) for number in message.value)
        counts[task] = count
        in_hand.get(message.source, set()).discard(task)
    for worker in workers.values():
        try:
            worker.post(numpy.array([], dtype=int))
        except udeck.Error:
            pass  # a worker that has died meanwhile is no loss
    print(f"{sum(counts.values())} primes; {len(workers)} workers are left")
    assert sum(counts.values()) == PRIMES


with udeck.init() as world:
    if sys.argv[1:2] == [str(world.rank)]:
        seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1
        threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    if world.rank == 0:
        hand_out(world)
    else:
        work(world)
