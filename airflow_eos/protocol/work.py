"""Prepared work: what one task wrote for one participant and did not make visible."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from airflow_eos.errors import CheckpointFormatError, ConfigurationError

Int64 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

DEFAULT_PARTICIPANT = "sink"
"""The name of a pipeline's only participant, where nobody has given it one."""

SPARED = 0.1
"""Of its timeout, what must be left of work that is promised: to settle it, or to recover."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}", re.ASCII)
_KEY = re.compile(r"[A-Za-z0-9._-]{1,250}", re.ASCII)


class WorkIdentity(msgspec.Struct, frozen=True, order=True):
    """One piece of prepared work, by a key that is never used again in its system.

    Attributes:
        kind: who understands it: ``kafka``, ``files``, …
        participant: the name that the user gave to the system that takes part.
        key: letters, digits, dots, underscores and hyphens: it is a part of file names.
    """

    kind: str
    participant: str
    key: str

    def __str__(self) -> str:
        return f"{self.key} ({self.kind} {self.participant!r})"


class PreparedWork(msgspec.Struct, frozen=True):
    """All that another process needs to commit, abort or inspect what one task wrote.

    ``fingerprint`` is an order-independent sum of row hashes (32 hex digits); together with
    ``rows`` it stands for the content. ``opened_at_ms`` is milliseconds since the epoch;
    ``timeout_ms`` is None where the system ends nothing by itself. ``detail`` is a JSON object
    that only its kind reads.
    """

    kind: str
    participant: str
    key: str
    rows: Int64
    fingerprint: str
    opened_at_ms: Int64
    timeout_ms: Int64 | None
    detail: dict[str, Any]

    @property
    def identity(self) -> WorkIdentity:
        """The name of this work among all."""
        return WorkIdentity(self.kind, self.participant, self.key)

    @property
    def ends_at_ms(self) -> int | None:
        """When its system ends it by itself, ms since the epoch; None: never."""
        return None if self.timeout_ms is None else self.opened_at_ms + self.timeout_ms

    @property
    def content(self) -> tuple[int, str]:
        """What pairs a replayed task with a promised one: (rows, fingerprint)."""
        return self.rows, self.fingerprint

    @property
    def follows(self) -> bool:
        """Whether it has no rows of its own, and says how far the others are.

        It is committed when readers have all rows of its batch, and never before.
        """
        return self.rows == 0


class OpenWork(msgspec.Struct, frozen=True):
    """Prepared work that its system says has not ended; see :class:`PreparedWork`.

    ``opened_at_ms`` is by that system's clock. ``places`` tell people where its rows are.
    ``whose`` says of what program it is by the form of its key, where that is not one of ours.
    """

    kind: str
    participant: str
    key: str
    opened_at_ms: int
    timeout_ms: int | None
    places: tuple[str, ...] = ()
    whose: str = ""

    @property
    def identity(self) -> WorkIdentity:
        """The name of this work among all."""
        return WorkIdentity(self.kind, self.participant, self.key)

    @property
    def ends_at_ms(self) -> int | None:
        """When its system ends it by itself, ms since the epoch by its clock; None: never."""
        return None if self.timeout_ms is None else self.opened_at_ms + self.timeout_ms


class Outcome(enum.Enum):
    """What became of prepared work, as the system itself tells it: by the witness alone."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    UNKNOWN = "unknown"
    """The system no longer tells: a person decides, we never guess."""


def by_time_left(work: PreparedWork) -> float:
    """A sort key: what its system ends first, and last what nothing ends but us."""
    return math.inf if work.ends_at_ms is None else work.ends_at_ms


def check_name(name: str) -> str:
    """Return ``name`` if a participant may be called so.

    Raises:
        ConfigurationError: it is empty, too long, or has other characters.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"Participant {name!r}: expected 1 to 50 letters, digits, underscores or hyphens."
        )
    return name


def is_key(text: str) -> bool:
    """Whether it may be the key of prepared work: a name of a file, and never a path."""
    return _KEY.fullmatch(text) is not None and text.strip(".") != ""


def require_own(works: Iterable[PreparedWork | WorkIdentity], kind: str, participant: str) -> None:
    """Refuse work of another participant: its answers would be told under the wrong name.

    Raises:
        CheckpointFormatError: with the work and whom it was handed to.
    """
    for work in works:
        if (work.kind, work.participant) != (kind, participant):
            raise CheckpointFormatError(
                f"Work {work.key!r} is of {work.kind} {work.participant!r}, and was handed to "
                f"{kind} {participant!r}. Nothing was done with it. Was the checkpoint written by "
                "a newer release? Then use that one."
            )
