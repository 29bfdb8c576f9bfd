"""Our own objects as JSON: decoded strictly, refused rather than guessed at.

An object says its format version. Who reads one says how an object of a former version reads as one
of the next; so what any release has written stays readable, and what a newer one has written is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from airflow_eos.errors import CheckpointFormatError


class Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of ours in a checkpoint; a subclass begins with its newest ``format_version``.

    Attributes:
        words: fields that are shown to people, in logs and on terminals: they are kept as
            :func:`one_line`, whoever wrote them.
        at_most: bytes; a larger one is not read. None: as large as it is.
    """

    words: ClassVar[tuple[str, ...]] = ()
    at_most: ClassVar[int | None] = None

    format_version: int = 1

    def __post_init__(self) -> None:
        for name in self.words:
            said = getattr(self, name)
            if said is not None:
                msgspec.structs.force_setattr(self, name, one_line(said))


T = TypeVar("T", bound=Stored)

Fields = dict[str, Any]
Upgrades = Mapping[int, Callable[[Fields], Fields]]
"""By former version: the fields of that version as those of the next one."""


WORDS_AT_MOST = 2000
"""Characters that a word of :class:`Stored` may have: an error with its advice fits."""


def one_line(said: str) -> str:
    """What somebody wrote, as a piece of one line: no command to a terminal, no line of its own."""
    text = " ".join(said[:WORDS_AT_MOST].split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def encode(value: Stored) -> bytes:
    """One line of JSON with every field, those at their default too."""
    return msgspec.json.encode(value) + b"\n"


def decode(data: bytes, kind: type[T], where: str, *, upgrades: Upgrades | None = None) -> T:
    """The value stored at ``where`` (for the message), every field of the right type.

    Its ``format_version`` is the one that was found.

    Raises:
        CheckpointFormatError: empty, truncated, no JSON object, of an unknown format version, or
            with fields missing, unknown or of a wrong type. A field at its default must be there
            too: a decision whose works got lost must not read as an empty promise.
    """
    if kind.at_most is not None and len(data) > kind.at_most:
        raise CheckpointFormatError(
            f"{where} holds {len(data)} bytes, and a {kind.__name__} has at most {kind.at_most}: "
            f"something else wrote it. {_NEXT}"
        )
    try:
        raw: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointFormatError(
            f"{where} holds {len(data)} bytes that are not JSON ({error}): truncated, half "
            f"written or foreign. {_NEXT}"
        ) from error
    found = raw.get("format_version") if isinstance(raw, dict) else None
    if type(found) is not int:
        raise CheckpointFormatError(
            f"{where} is JSON without a format_version: not an object of this package. {_NEXT}"
        )
    newest = _newest(kind)
    if not 1 <= found <= newest:
        raise CheckpointFormatError(
            f"{where} has format version {found}; this release reads 1 to {newest}. It was "
            "written by another release: use that one for this checkpoint."
        )
    try:
        for version in range(found, newest):
            raw = (upgrades or {})[version](raw)
        missing = sorted(set(kind.__struct_encode_fields__) - raw.keys())
        if missing:
            raise msgspec.ValidationError(f"it lacks {', '.join(missing)}")  # noqa: TRY301
        return msgspec.convert(raw, type=kind)
    except msgspec.ValidationError as error:
        raise CheckpointFormatError(
            f"{where} is not a {kind.__name__} of format version {found}: {error}. {_NEXT}"
        ) from error


def added(fields: Fields, **later: Any) -> Fields:
    """An object of before with the fields that came later, as it means them by their absence.

    Raises:
        msgspec.ValidationError: it has one of them.
    """
    foreign = sorted(later.keys() & fields.keys())
    if foreign:
        raise msgspec.ValidationError(f"it has {', '.join(foreign)}, which came later")
    return fields | later


def replaced(fields: Fields, old: Mapping[str, Any], new: Mapping[str, Any]) -> Fields:
    """An object with the fields ``new`` in place of ``old``.

    Raises:
        msgspec.ValidationError: it has one of the new ones already.
    """
    return added({name: value for name, value in fields.items() if name not in old}, **new)


def _newest(kind: type[Stored]) -> int:
    fields = {field.name: field.default for field in msgspec.structs.fields(kind)}
    return int(fields["format_version"])


_NEXT = (
    "Nothing was guessed or changed. Restore the file from a copy of the checkpoint, or find out "
    "what wrote it, before the pipeline goes on."
)
