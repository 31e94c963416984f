"""Exceptions of one rank that are raised again in another process."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._errors import MailboxGone, NobodyLeft, PeerLost, RankFailed, RankFinished

#: Exceptions by which a rank learns of another rank's end.
_OF_OTHERS = (PeerLost, MailboxGone, NobodyLeft, RankFinished)


class Failure(NamedTuple):
    """An exception in a form that any process can read."""

    #: The exception's last line, such as "KeyError: 'no way'".
    text: str
    #: The traceback as it would have been printed.
    traceback: str
    #: The pickled exception; None: it has no pickle, or ends the process that raises it (SystemExit and others).
    pickled: bytes | None
    #: When the exception was caught, in seconds of the host's monotonic clock.
    caught_at: float
    #: Whether the exception tells of another rank's end, and so may come of that rank's failure.
    tells_of_another: bool


def capture(error: BaseException, pickler: Any = pickle) -> Failure:
    """Describes an exception that was caught. `pickler` has `dumps`."""
    caught_at = time.monotonic()
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    printed = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Failure(text, printed, _pickled(error, pickler), caught_at, isinstance(error, _OF_OTHERS))


def _pickled(error: BaseException, pickler: Any) -> bytes | None:
    if not isinstance(error, Exception):
        return None
    try:
        pickled: bytes = pickler.dumps(error)
        # A class whose constructor wants other arguments than `args` has a pickle that cannot be read.
        return pickled if isinstance(pickle.loads(pickled), type(error)) else None
    except Exception:
        return None


def restore(failure: Failure, rank: int, size: int, others: Sequence[tuple[int, Failure]] = ()) -> Exception:
    """Returns the exception of `rank`, ready to be raised. Its cause has the rank's traceback, and names the `others` that failed.

    An exception that cannot be read here comes as RankFailed.
    """
    also = "".join(f"\nrank {other} failed, too: {end.text}" for other, end in others)
    about = RankFailed(f"rank {rank} of {size} raised this exception:\n{failure.traceback.rstrip()}{also}")
    about.rank = rank
    error = None
    if failure.pickled is not None:
        try:
            error = pickle.loads(failure.pickled)
        except Exception:
            # This process lacks the class.
            pass
    if not isinstance(error, Exception):
        return about
    error.__cause__ = about
    return error
