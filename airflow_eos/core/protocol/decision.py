"""Prepared work, the decision about an attempt (made once, never changed), and their codec."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from airflow_eos.errors import CheckpointFormatError, ConfigurationError, Remedy, printable

Int64 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Guarantee = Literal["exactly_once", "at_least_once", "at_most_once"]

DEFAULT_PARTICIPANT = "sink"
"""The name of a pipeline's only participant, where nobody has given it one."""

MIN_TIME_LEFT = 0.1
"""Fraction of its timeout that promised work must have left, to be settled or recovered."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}", re.ASCII)
_KEY = re.compile(r"[A-Za-z0-9._-]{1,250}", re.ASCII)


class WorkIdentity(msgspec.Struct, frozen=True, order=True):
    """The identity of prepared work: its key is never used again in its system.

    Attributes:
        kind: the kind of participant that understands the work: ``kafka``, ``files``, …
        participant: the name that the user gave to the participant.
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
        """The identity of this work: its kind, participant and key."""
        return WorkIdentity(self.kind, self.participant, self.key)

    @property
    def ends_at_ms(self) -> int | None:
        """The time when its system ends the work by itself, ms since the epoch; None: never."""
        return None if self.timeout_ms is None else self.opened_at_ms + self.timeout_ms

    @property
    def content(self) -> tuple[int, str]:
        """The content that pairs a replayed task with promised work: (rows, fingerprint)."""
        return self.rows, self.fingerprint

    @property
    def follows(self) -> bool:
        """Whether the work has no rows, but says how far the rows of the others are.

        Such work is committed when readers have all rows of its batch, and never before.
        """
        return self.rows == 0


class OpenWork(msgspec.Struct, frozen=True):
    """Prepared work that its system says has not ended; see :class:`PreparedWork`.

    ``opened_at_ms`` is by that system's clock. ``places`` tell people where the rows are.
    ``whose`` names the program that the form of the key belongs to, where the form is not ours.
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
        """The identity of this work: its kind, participant and key."""
        return WorkIdentity(self.kind, self.participant, self.key)

    @property
    def ends_at_ms(self) -> int | None:
        """When its system ends the work by itself, ms since the epoch by its clock; None: never."""
        return None if self.timeout_ms is None else self.opened_at_ms + self.timeout_ms


class Outcome(enum.Enum):
    """What became of prepared work, as the system tells it, going by the witness alone."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    UNKNOWN = "unknown"
    """The system no longer tells what became of the work: a person decides, we never guess."""


def by_time_left(work: PreparedWork) -> float:
    """Return a sort key: first work that its system ends soonest, last work that only we end."""
    return math.inf if work.ends_at_ms is None else work.ends_at_ms


def is_formed(value: object, form: str | re.Pattern[str]) -> bool:
    """Whether a value is a text of that form: None, or a function, is not."""
    return isinstance(value, str) and re.fullmatch(form, value) is not None


def check_name(name: str) -> str:
    """Return ``name`` if a participant may be called so.

    Raises:
        ConfigurationError: it is empty, too long, or has other characters.
    """
    if not is_formed(name, _NAME):
        raise ConfigurationError(
            f"Participant {name!r}: expected 1 to 50 letters, digits, underscores or hyphens."
        )
    return name


def is_key(text: str) -> bool:
    """Whether ``text`` may be the key of prepared work: a name of a file, and never a path."""
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


# --- codec ----------------------------------------------------------------------------------------
# Our own objects as JSON: decoded strictly, refused rather than guessed at.
#
# An object says its format version. The reader of an object says how the fields of a former version
# read as those of the next one; so what any release has written stays readable, and what a newer
# release has written is refused.


Fields = dict[str, Any]
Upgrades = Mapping[int, Callable[[Fields], Fields]]
"""Maps a former version to a function from the fields of that version to those of the next."""


class Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of ours in a checkpoint; a subclass begins with its newest ``format_version``.

    Attributes:
        words: names of the fields that are shown to people, in logs and on terminals: their text is
            kept as :func:`one_line`, whoever wrote it.
        at_most: the largest size that is read, in bytes. None: no limit.
        proves: whether delivery rests on the object, which nobody can write anew.
        upgrades: how the fields of a former version read as those of the next one.
    """

    words: ClassVar[tuple[str, ...]] = ()
    at_most: ClassVar[int | None] = None
    proves: ClassVar[bool] = True
    upgrades: ClassVar[Upgrades] = {}

    format_version: int = 1

    def __post_init__(self) -> None:
        for name in self.words:
            said = getattr(self, name)
            if said is not None:
                msgspec.structs.force_setattr(self, name, one_line(said))


class Evidence(Stored, frozen=True, kw_only=True):
    """An object that people and sensors go by, but no delivery: its writer can write it anew."""

    at_most: ClassVar[int | None] = 65_536
    proves: ClassVar[bool] = False


T = TypeVar("T", bound=Stored)


WORDS_AT_MOST = 2000
"""Characters that a field in :attr:`Stored.words` may have: an error with its advice fits."""


def one_line(said: str) -> str:
    """Return ``said`` printable and as part of one line, without terminal commands or newlines."""
    return printable(" ".join(said[:WORDS_AT_MOST].split()))


def encode(value: Stored) -> bytes:
    """Return one line of JSON with every field, also those at their default."""
    return msgspec.json.encode(value) + b"\n"


def decode(data: bytes, kind: type[T], where: str, *, upgrades: Upgrades | None = None) -> T:
    """Return the value stored at ``where`` (for the message), every field of the right type.

    ``format_version`` of the value is the one that was found.

    Raises:
        CheckpointFormatError: empty, truncated, no JSON object, of an unknown format version, or
            with fields missing, unknown or of a wrong type. A field at its default must be there
            too: a decision whose works got lost must not read as an empty promise.
    """
    if kind.at_most is not None and len(data) > kind.at_most:
        raise _unreadable(
            kind,
            where,
            f"holds {len(data)} bytes, and a {kind.__name__} has at most {kind.at_most}: something "
            "else wrote it",
        )
    try:
        raw: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = f"holds {len(data)} bytes that are not JSON ({error}): truncated, half written or"
        raise _unreadable(kind, where, f"{found} foreign") from error
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if type(version) is not int:
        what = "is JSON without a format_version: not an object of this package"
        raise _unreadable(kind, where, what)
    newest = _newest(kind)
    if not 1 <= version <= newest:
        raise CheckpointFormatError(
            f"{where} has format version {version}; this release reads up to {newest}. It was "
            "written by another release: use that one for this checkpoint."
        )
    try:
        for former in range(version, newest):
            raw = (upgrades or kind.upgrades)[former](raw)
        missing = sorted(set(kind.__struct_encode_fields__) - raw.keys())
        if missing:
            raise msgspec.ValidationError(f"it lacks {', '.join(missing)}")  # noqa: TRY301
        return msgspec.convert(raw, type=kind)
    except msgspec.ValidationError as error:
        what = f"is not a {kind.__name__} of format version {version}: {error}"
        raise _unreadable(kind, where, what) from error


def added(fields: Fields, **later: Any) -> Fields:
    """Return the fields of an older object with ``later``: the values that their absence means.

    Raises:
        msgspec.ValidationError: the object has one of the later fields already.
    """
    foreign = sorted(later.keys() & fields.keys())
    if foreign:
        raise msgspec.ValidationError(f"it has {', '.join(foreign)}, which came later")
    return fields | later


@cache  # msgspec looks the fields up anew, which takes a millisecond: some ten in a batch
def _newest(kind: type[Stored]) -> int:
    fields = {field.name: field.default for field in msgspec.structs.fields(kind)}
    return int(fields["format_version"])


def _unreadable(kind: type[Stored], where: str, found: str) -> CheckpointFormatError:
    said = f"{where} {found}. Nothing was guessed or changed."
    if not kind.proves:
        return CheckpointFormatError(
            said, Remedy(change=f"remove {where}, which whoever runs writes anew", start=True)
        )
    return CheckpointFormatError(
        said,
        Remedy(change=f"restore {where} from a copy of the checkpoint", start=True),
        Remedy(
            change="begin with an empty checkpoint and another prefix, at the offsets up to which "
            "the output has everything",
            start=True,
            costs="the state of a stateful query",
        ),
    )


# --- decision -------------------------------------------------------------------------------------


_NONCE = re.compile(r"[0-9a-f]{32}", re.ASCII)


AT_A_START = "sealed by the driver starting"
"""How the reason begins with which a start seals an attempt that nobody has begun: no fault."""
IN_PLACE_OF_A_FORMER = "its driver ended before it decided; sealed by the next one"
"""The reason with which a start seals what a former driver may have begun."""


class Verdict(enum.Enum):
    """The two verdicts on one attempt to deliver a batch."""

    COMMIT = "commit"
    ABORT = "abort"


class SourceRead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one source of a query reads.

    Attributes:
        name: Spark's name of the kind of source; empty where that is not known.
        options: those of its options that say what is read, names in lower case; what may be secret
            as a digest.
        holds: a digest of what the offsets of a batch stand for; empty where they say it
            themselves, or nothing tells.
    """

    name: str
    options: dict[str, str]
    holds: str = ""


class Decision(Stored, frozen=True, kw_only=True):
    """The decision about attempt ``attempt`` (from 1) of Spark's batch ``batch_id`` (from 0).

    A COMMIT names all work whose rows are promised (none for an empty batch) and the range
    of the source that they were read from: ``offsets`` is the whole content of Spark's
    ``offsets/N`` with which this attempt was *evaluated*. Spark's log may say otherwise, since it
    is not exclusive; then the decision is right. ``read`` is what that range is of, by source;
    empty where an older release decided. An ABORT names none of these and gives a reason.

    ``term`` is that of the driver, None for a recovery. ``decided_by`` names the writer to people;
    ``decided_at_ms`` is milliseconds since the epoch. ``nonce`` is a fresh ``uuid4().hex``: no two
    writers ever write equal bytes, so a writer that lost the reply recognises its own decision.

    Raises:
        ValueError: a field contradicts the above; a stored one gives CheckpointFormatError.
    """

    upgrades: ClassVar[Upgrades] = {1: lambda fields: added(fields, read=())}

    format_version: int = 2
    batch_id: int
    attempt: int
    verdict: Verdict
    works: tuple[PreparedWork, ...] = ()
    offsets: str | None = None
    read: tuple[SourceRead, ...] = ()
    reason: str = ""
    term: int | None = None
    decided_by: str
    decided_at_ms: int
    nonce: str

    @property
    def is_untried(self) -> bool:
        """Whether nobody had begun this attempt: each start seals one, to be sure."""
        return self.reason.startswith(AT_A_START)

    def __post_init__(self) -> None:
        if self.batch_id < 0 or self.attempt < 1:
            raise ValueError(
                f"batch {self.batch_id}, attempt {self.attempt}: expected from 0 and from 1"
            )
        if _NONCE.fullmatch(self.nonce) is None:
            raise ValueError(f"nonce {self.nonce!r}: expected the 32 hex digits of uuid4().hex")
        is_commit = self.verdict is Verdict.COMMIT
        if not is_commit and (self.works or self.offsets or not self.reason):
            raise ValueError("an ABORT names no work, no offsets and gives a reason")
        if is_commit and not self.offsets:
            raise ValueError("a COMMIT says which offsets it was evaluated for")
        if not all(is_key(work.key) for work in self.works):
            raise ValueError("a key that is no name: expected letters, digits and ._-")
        if len({work.identity for work in self.works}) != len(self.works):
            raise ValueError("a piece of work is named twice")
