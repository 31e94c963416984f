"""A task farm: rank 0 gives a worker its next task when the result of the last one has come."""

import udeck


def collatz(start: int) -> int:
    steps = 0
    while start != 1:
        start, steps = (start // 2 if start % 2 == 0 else 3 * start + 1), steps + 1
    return steps


with udeck.init() as world:
    inbox = world.mailboxes("farm", objects=True)
    if world.rank == 0:
        tasks, results = iter(range(1, 301)), dict[int, int]()
        workers = {rank: world.postbox_of("farm", rank) for rank in range(1, world.size)}
        for out in workers.values():
            out.post_object(next(tasks, None))
        while len(results) < 300:
            message = inbox.retrieve_message()
            task, result = message.value
            results[task] = result
            workers[message.source].post_object(next(tasks, None))
        longest = max(results, key=lambda task: (results[task], -task))
        print(f"{len(results)} tasks, the longest from {longest}: {results[longest]} steps")
    else:
        master = world.postbox_of("farm", 0)
        while (task := inbox.retrieve()) is not None:
            master.post_object((task, collatz(task)))
