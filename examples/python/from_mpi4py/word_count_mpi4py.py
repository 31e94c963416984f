"""Word count: each rank counts the words of its part of a text, and rank 0 adds up the counts."""

from collections import Counter

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
lines = None
if rank == 0:
    words = "a message goes to a mailbox and not to a rank".split()
    text = [" ".join(words[: 1 + line % len(words)]) for line in range(1000)]
    lines = [text[part::size] for part in range(size)]
mine = comm.scatter(lines, root=0)
counts = Counter(word for line in mine for word in line.split())
total = comm.reduce(counts, op=MPI.SUM, root=0)
longest = comm.allreduce(max(map(len, mine)), op=MPI.MAX)
if rank == 0:
    print(f"{sum(total.values())} words, the longest line has {longest} letters; {sorted(total.items())}")
