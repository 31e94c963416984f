"""Arrays in memory that the ranks of a host share."""


def test_ranks_share_an_array(job):
    done = job(
        3,
        """
        with udeck.init() as world:
            assert world.host_ranks() == [0, 1, 2]
            grid = world.shared("grid", (3, 4), "f4")
            assert grid.array.dtype == "f4" and grid.array.flags.writeable and not grid.array.any() and grid.ranks == [0, 1, 2]
            grid.barrier()
            grid.array[world.rank] = world.rank + 1
            grid.barrier()
            assert (grid.array.sum(axis=1) == [4, 8, 12]).all()
            grid.barrier(timeout=60)
            for _ in range(300):
                with grid.lock() as nobody:
                    grid.array[0, 0] += 1
            assert nobody is None
            grid.barrier()
            assert grid.array[0, 0] == 901
            # Some of the ranks, a structure, and a name that is used again.
            if world.rank > 0:
                for _ in range(2):
                    pair = world.shared("pair", 2, [("at", "i8"), ("sum", "f8")], ranks=[1, 2])
                    pair.array["sum"][world.rank - 1] = 7
                    pair.barrier()
                    assert pair.array["sum"].tolist() == [7, 7] and repr(pair).startswith('SharedArray("pair", (2,), ')
                    pair.barrier()
        # A view keeps the memory.
        view = grid.array[1:]
        del grid
        assert view.sum() == 20
        print("done")
        """,
    )
    assert done.code == 0 and done.out == "done\n" * 3, done


def test_a_lock_of_a_dead_rank_says_so_until_it_is_recovered(job):
    done = job(
        2,
        """
        if True:
            with udeck.init() as world:
                grid = world.shared("grid", 4)
                grid.array[:] = 5
                grid.barrier()
                # Rank 0 made the memory, and dies with the lock.
                if world.rank == 0:
                    with grid.lock():
                        grid.array[0] = 6
                        world.postbox("held").post(numpy.zeros(1))
                        world.postbox("held").flush()
                        os._exit(7)
                held = world.mailbox("held")
                held.retrieve()
                for _ in range(2):
                    try:
                        with grid.lock():
                            print("not reached")
                    except udeck.Abandoned as error:
                        print("abandoned by", error.rank)
                assert grid.array.tolist() == [6, 5, 5, 5]
                try:
                    with grid.recover():
                        raise LookupError("half repaired")
                except LookupError:
                    print("not recovered")
                with grid.recover() as rank:
                    print("recovered from", rank)
                    grid.array[0] = 5
                with grid.lock() as rank:
                    print("locked", rank)
                try:
                    grid.barrier()
                except udeck.PeerLost as error:
                    print("lost", error.rank)
        """,
        ["--on-failure", "continue"],
    )
    assert done.out.splitlines() == ["abandoned by 0"] * 2 + ["not recovered", "recovered from 0", "locked None", "lost 0"], done


def test_the_block_releases_the_lock_and_waits_for_it(job):
    done = job(
        1,
        """
        with udeck.init() as world:
            grid = world.shared("grid", 4)
            try:
                with grid.lock():
                    raise LookupError
            except LookupError:
                pass
            with grid.lock():
                try:
                    with grid.lock(timeout=0.01):
                        print("not reached")
                except udeck.Deadline as error:
                    assert "rank 0, this rank itself" in str(error), error
            with grid.lock():
                print("again")
            for make, error in [
                (lambda: world.shared("objects", 3, object), TypeError),
                (lambda: world.shared("ranks", 3, ranks=[]), udeck.InvalidArgument),
                (lambda: world.shared("", 3), udeck.BadName),
            ]:
                try:
                    make()
                except error:
                    print("refused")
        """,
    )
    assert done.code == 0 and done.out.split() == ["again", "refused", "refused", "refused"], done


def test_other_lengths_are_refused(job):
    done = job(
        2,
        """
        with udeck.init() as world:
            try:
                world.shared("grid", 4 + world.rank, "u1")
            except udeck.CallMismatch as error:
                print("mismatch of", error.rank)
        """,
        DECK_DEADLINE="5",
    )
    assert "mismatch of 0" in done.out, done
