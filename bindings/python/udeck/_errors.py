"""Exceptions. Each carries the rank and the mailbox that it is about, where there is one."""

from __future__ import annotations


class Error(Exception):
    """A call of the library failed. Its text says what was tried, with whom, and what to do."""

    rank: int | None = None
    mailbox: str | None = None


class PeerLost(Error):
    """Another rank died. A mailbox says so once for each rank, and can be used on."""


class RankFinished(Error):
    """The rank whose messages were waited for has finished."""


class NobodyLeft(Error):
    """All other ranks have finished or are lost: nobody can post any more."""


class Deadline(Error, TimeoutError):
    """The time was up. The text says who was waited for."""


class WouldBlock(Error):
    """A call that does not wait would have to."""


class NoSuchMailbox(Error):
    """No mailbox has that name."""


class NameTaken(Error):
    """A mailbox of that name exists already."""


class BadName(Error, ValueError):
    """No mailbox can have that name."""


class MailboxGone(Error):
    """The mailbox was closed by its owner."""


class Unreachable(Error):
    """No transport leads to the mailbox."""


class WrongType(Error, TypeError):
    """The message, or the mailbox, is of another type."""


class TooSmall(Error, ValueError):
    """The message does not fit into the array. It stays the next one."""


class TooLarge(Error, ValueError):
    """The message is longer than any that can be sent."""


class NoMemory(Error, MemoryError):
    """This program itself has all of its rank's message memory."""


class Undelivered(Error):
    """Messages that were posted earlier did not arrive."""


class SetAsideFull(Error):
    """Too many other messages came before the one that was asked for."""


class NoSuchRank(Error, ValueError):
    """The job has no such rank."""


class InvalidArgument(Error, ValueError):
    """An argument makes no sense. The text says which."""


class CallMismatch(Error):
    """Members of a group made different calls."""


class GroupFailed(Error):
    """An earlier call of the group failed, so that it cannot be used any more."""


class ConfigError(Error, ValueError):
    """A setting makes no sense."""


class Closed(Error):
    """The world, the mailbox or the postbox was closed by this program."""


class Busy(Error):
    """Another thread or task of this rank uses it."""


class ArrayInUse(Error, BufferError):
    """Other arrays are views of the memory that is to be posted."""


class ArrayPosted(Error, ValueError):
    """The array was posted: its memory is the message now."""
