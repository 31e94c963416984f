"""Exceptions. Each carries the rank and the mailbox that the error is about, if there is one."""

from __future__ import annotations


class Error(Exception):
    """A call of the library failed. Its text says what was tried, with whom, and what to do."""

    rank: int | None = None
    mailbox: str | None = None


class PeerLost(Error):
    """Another rank died. A mailbox raises this once for each rank, and stays usable."""


class RankFinished(Error):
    """The rank whose messages were waited for has finished."""


class NobodyLeft(Error):
    """All other ranks have finished or are lost: no rank is left that could post."""


class Deadline(Error, TimeoutError):
    """The time limit ended. The text says which rank was waited for."""


class WouldBlock(Error):
    """A call that must not wait would have to wait."""


class NoSuchMailbox(Error):
    """No mailbox has that name."""


class NameTaken(Error):
    """A mailbox of that name exists already."""


class BadName(Error, ValueError):
    """No mailbox can have that name."""


class MailboxGone(Error):
    """The mailbox was closed by its owner."""


class Unreachable(Error):
    """No transport leads to the mailbox; or a rank is on another host, and cannot share memory."""


class WrongType(Error, TypeError):
    """The type of the message, or of the mailbox, differs from the wanted one."""


class TooSmall(Error, ValueError):
    """The message does not fit into the array. The message stays the next one."""


class TooLarge(Error, ValueError):
    """The message is longer than the longest that can be sent."""


class NoMemory(Error, MemoryError):
    """This program itself holds all of its rank's message memory."""


class Undelivered(Error):
    """Messages that were posted earlier did not arrive."""


class SetAsideFull(Error):
    """Too many other messages arrived before the requested one."""


class NoSuchRank(Error, ValueError):
    """The job has no such rank."""


class Abandoned(Error):
    """The rank that held the lock of a shared array died, and may have left the array half written: see SharedArray.recover()."""


class InvalidArgument(Error, ValueError):
    """An argument makes no sense. The text names it."""


class CallMismatch(Error):
    """Members of a group made different calls, or ranks that share an array gave it different lengths."""


class NotSent(Error):
    """Another member could not send its value in a collective call: the text has its reason. The group stays usable."""


class GroupFailed(Error):
    """An earlier call of the group failed, so the group cannot be used any more."""


class ConfigError(Error, ValueError):
    """A setting makes no sense."""


class Closed(Error):
    """The world, the mailbox or the postbox was closed by this program."""


class Busy(Error):
    """Another thread or task of this rank uses the object."""


class RankFailed(Error, RuntimeError):
    """A rank of run_local() raised an exception, or ended without a result.

    Where the rank's own exception is raised, this is its `__cause__`, with the rank's traceback.
    """


class ArrayInUse(Error, BufferError):
    """Other arrays are views of the memory that would be posted."""


class ArrayPosted(Error, ValueError):
    """The array was posted: its memory is now the message."""
