"""Word count: each rank counts the words of its part of a text, and rank 0 adds up the counts."""

from collections import Counter

import udeck

with udeck.init() as world:
    rank, size, everybody = world.rank, world.size, world.all()
    lines = None
    if rank == 0:
        words = "a message goes to a mailbox and not to a rank".split()
        text = [" ".join(words[: 1 + line % len(words)]) for line in range(1000)]
        lines = [text[part::size] for part in range(size)]
    mine = everybody.scatter_object(lines, root=0)
    counts = Counter(word for line in mine for word in line.split())
    total = everybody.reduce_object(counts, "sum", root=0)
    longest = everybody.allreduce(max(map(len, mine)), "max")
    if total is not None:
        print(f"{sum(total.values())} words, the longest line has {longest} letters; {sorted(total.items())}")
