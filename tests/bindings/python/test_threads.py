"""Threads that share mailboxes."""

import threading
import time

import numpy
import pytest

import udeck


def test_no_message_is_lost_between_threads(ends):
    inbox, out = ends
    got, posted = [], 500
    over = threading.Event()

    def take():
        try:
            while len(got) < posted:
                got.append(int(inbox.retrieve(timeout=60)[0]))
        finally:
            over.set()

    def squeeze():
        while not over.is_set():
            try:
                inbox.retrieve_into(numpy.zeros(1), timeout=0)
            except udeck.Error:
                pass

    threads = [threading.Thread(target=one, daemon=True) for one in [take, squeeze, squeeze]]
    for thread in threads:
        thread.start()
    for n in range(posted):
        out.post(numpy.full(3, n))
    for thread in threads:
        thread.join(90)
    assert got == list(range(posted))


def test_threads_that_select_do_not_wait_for_each_other_for_ever(world, ends):
    inbox, out = ends
    got = []

    def take(boxes):
        for _ in range(20):
            message = None
            while not message:
                try:
                    message = udeck.select(boxes, timeout=30).try_retrieve()
                except udeck.Busy:  # The other thread polls that mailbox just now.
                    pass
            got.append(message.tag)

    with world.mailbox("second") as second, world.postbox("second") as to_second:
        takers = [threading.Thread(target=take, args=(boxes,)) for boxes in ([inbox, second], [second, inbox])]
        for taker in takers:
            taker.start()
        for n in range(20):
            out.post(numpy.zeros(1), tag=n)
            to_second.post(numpy.zeros(1), tag=n + 20)
        for taker in takers:
            taker.join(60)
    assert sorted(got) == list(range(40))


def test_other_threads_run_while_one_waits(ends):
    inbox, out = ends
    counted = 0
    waiter = threading.Thread(target=inbox.retrieve)
    waiter.start()
    # A wait that held the interpreter's lock would keep this loop from running, and the message from arriving.
    for _ in range(1000):
        counted += 1
    out.post(numpy.zeros(1))
    waiter.join(30)
    assert counted == 1000 and not waiter.is_alive()


def test_two_threads_retrieve_one_after_another(ends):
    inbox, out = ends
    got = []
    waiters = [threading.Thread(target=lambda: got.append(int(inbox.retrieve()[0]))) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    for n in range(4):
        out.post(numpy.full(1, n))
    for waiter in waiters:
        waiter.join(30)
    assert sorted(got) == [0, 1, 2, 3]


class Waiting(threading.Thread):
    """A thread that waits in a call, longer than any test, and the outcome of the call."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.result = call, None
        self.start()
        time.sleep(0.2)  # After this time the thread usually waits; an earlier test covers less, and does not fail.

    def run(self):
        try:
            self.result = self.call()
        except udeck.Error as error:
            self.result = type(error)

    def ends(self):
        self.join(60)
        return self.result


def test_a_thread_that_waits_for_a_tag_keeps_nobody_from_another(ends):
    inbox, out = ends
    waiting = Waiting(lambda: inbox.retrieve_message(tag=2, timeout=600).tag)
    assert inbox.try_retrieve(tag=1) is None
    out.post(numpy.zeros(1), tag=1)
    assert inbox.retrieve_message(tag=1, timeout=60).tag == 1
    out.post(numpy.full(1, 7), tag=3)
    room = numpy.zeros(1, dtype=int)
    assert inbox.retrieve_into(room, tag=3, timeout=60) == 1 and room[0] == 7
    out.post(numpy.zeros(1), tag=4)
    assert udeck.select([inbox], timeout=60) is inbox and inbox.try_retrieve(tag=4).tag == 4
    assert waiting.is_alive()
    out.post(numpy.zeros(1), tag=2)
    assert waiting.ends() == 2


@pytest.mark.parametrize("short", [
    lambda inbox: inbox.retrieve(tag=1, timeout=0.1), lambda inbox: inbox.retrieve(timeout=0.1),
    lambda inbox: inbox.retrieve_into(numpy.zeros(1), timeout=0.1), lambda inbox: udeck.select([inbox], timeout=0.1),
])
def test_each_thread_has_its_own_deadline(ends, short):
    inbox, out = ends
    waiting = [Waiting(lambda: inbox.retrieve_message(tag=2, timeout=600).tag) for _ in range(2)]
    for _ in range(3):
        with pytest.raises(udeck.Deadline, match="to post"):
            short(inbox)
    assert all(thread.is_alive() for thread in waiting)
    for _ in waiting:
        out.post(numpy.zeros(1), tag=2)
    assert [thread.ends() for thread in waiting] == [2, 2]


def test_threads_share_a_mailbox_and_lose_nothing(ends):
    inbox, out = ends
    each, tags = 100, [1, 2, 3, None, None]
    got = []

    def take(tag):
        while True:
            try:
                message = inbox.retrieve_message(tag=tag, timeout=60)
            except udeck.Closed:
                return
            got.append((message.tag, int(message.value[0])))

    takers = [threading.Thread(target=take, args=(tag,), daemon=True) for tag in tags]
    for taker in takers:
        taker.start()
    for n in range(each):
        for tag in [1, 2, 3, 4]:
            out.post(numpy.full(1, n), tag=tag)
    out.flush()
    until = time.monotonic() + 60
    while len(got) < 4 * each and time.monotonic() < until:
        time.sleep(0.01)
    inbox.close()
    for taker in takers:
        taker.join(60)
    assert sorted(got) == sorted((tag, n) for tag in [1, 2, 3, 4] for n in range(each))


def test_a_mailbox_is_closed_beside_threads_that_wait_at_it(world):
    inbox = world.mailbox("closed beside")
    waiting = [Waiting(lambda tag=tag: inbox.retrieve(tag=tag, timeout=600)) for tag in [1, 2, None]]
    waiting.append(Waiting(lambda: udeck.select([inbox], timeout=600)))
    inbox.close()
    assert [thread.ends() for thread in waiting] == [udeck.Closed] * 4
