"""µDECK: mailboxes of numpy arrays between the processes of a parallel program.

    import udeck

    with udeck.init() as world:                  # without a launcher: a world of one rank
        if world.rank == 0:
            inbox = world.mailbox("sums")
            for _ in range(world.size - 1):
                message = inbox.retrieve_message()
                print(message.source, "sent", message.value.sum())   # a view of the sender's memory
        else:
            sums = world.postbox("sums")         # waits until the mailbox exists
            array = world.empty(1 << 17)         # float64, in registered memory
            array.fill(world.rank)
            sums.post(array)                     # moved: no copy, no wait

Run it as four ranks by ``deckrun -n 4 -- python program.py``.
"""

from . import _array  # noqa: F401
from ._errors import (
    Abandoned,
    ArrayInUse,
    ArrayPosted,
    BadName,
    Busy,
    CallMismatch,
    Closed,
    ConfigError,
    Deadline,
    Error,
    GroupFailed,
    InvalidArgument,
    MailboxGone,
    NameTaken,
    NobodyLeft,
    NoMemory,
    NoSuchMailbox,
    NoSuchRank,
    NotSent,
    PeerLost,
    RankFailed,
    RankFinished,
    SetAsideFull,
    TooLarge,
    TooSmall,
    Undelivered,
    Unreachable,
    WouldBlock,
    WrongType,
)
from ._local import run_local
from ._pool import Pool
from ._udeck import (
    Group,
    Mailbox,
    Message,
    Postbox,
    Request,
    SharedArray,
    SharedLock,
    World,
    __version__,
    init,
    select,
)

__all__ = [
    "Abandoned",
    "ArrayInUse",
    "ArrayPosted",
    "BadName",
    "Busy",
    "CallMismatch",
    "Closed",
    "ConfigError",
    "Deadline",
    "Error",
    "Group",
    "GroupFailed",
    "InvalidArgument",
    "Mailbox",
    "MailboxGone",
    "Message",
    "NameTaken",
    "NoMemory",
    "NoSuchMailbox",
    "NoSuchRank",
    "NobodyLeft",
    "NotSent",
    "PeerLost",
    "Pool",
    "Postbox",
    "RankFailed",
    "RankFinished",
    "Request",
    "SetAsideFull",
    "SharedArray",
    "SharedLock",
    "TooLarge",
    "TooSmall",
    "Undelivered",
    "Unreachable",
    "World",
    "WouldBlock",
    "WrongType",
    "__version__",
    "init",
    "run_local",
    "select",
]
