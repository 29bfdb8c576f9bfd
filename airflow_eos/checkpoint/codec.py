"""Our own objects as JSON: decoded strictly, refused rather than guessed at.

An object says its format version. A class says its newest one, and in ``ADDED`` which fields came
with which version and what an object of before means by their absence. So what any release has
written stays readable, and what a newer one has written is refused.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import msgspec

from airflow_eos.errors import CheckpointFormatError


class Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of ours in a checkpoint; a subclass begins with its newest ``format_version``."""

    ADDED: ClassVar[dict[int, dict[str, Any]]] = {}
    format_version: int = 1


T = TypeVar("T", bound=Stored)


def encode(value: Stored) -> bytes:
    """One line of JSON with every field, those at their default too."""
    return msgspec.json.encode(value) + b"\n"


def decode(data: bytes, kind: type[T], where: str) -> T:
    """The value stored at ``where`` (for the message), every field of the right type.

    Raises:
        CheckpointFormatError: empty, truncated, no JSON object, of an unknown format version, or
            with fields missing, unknown or of a wrong type. A field at its default must be there
            too: a decision whose transactions got lost must not read as an empty promise.
    """
    try:
        raw: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointFormatError(
            f"{where} holds {len(data)} bytes that are not JSON ({error}): truncated, half "
            f"written or foreign. {_NEXT}"
        ) from error
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if type(version) is not int:
        raise CheckpointFormatError(
            f"{where} is JSON without a format_version: not an object of this package. {_NEXT}"
        )
    newest = _newest(kind)
    if not 1 <= version <= newest:
        raise CheckpointFormatError(
            f"{where} has format version {version}; this release reads 1 to {newest}. It was "
            "written by another release: use that one for this checkpoint."
        )
    later = _added_after(version, kind)
    missing = sorted(set(kind.__struct_encode_fields__) - raw.keys() - later.keys())
    if missing:
        raise CheckpointFormatError(f"{where} lacks {', '.join(missing)}. {_NEXT}")
    foreign = sorted(later.keys() & raw.keys())
    if foreign:
        raise CheckpointFormatError(
            f"{where} has format version {version} and {', '.join(foreign)}, which came later. "
            f"{_NEXT}"
        )
    try:
        return msgspec.convert(raw | later, type=kind)
    except msgspec.ValidationError as error:
        raise CheckpointFormatError(
            f"{where} is not a {kind.__name__}: {error}. {_NEXT}"
        ) from error


def _newest(kind: type[Stored]) -> int:
    fields = {field.name: field.default for field in msgspec.structs.fields(kind)}
    return int(fields["format_version"])


def _added_after(version: int, kind: type[Stored]) -> dict[str, Any]:
    """The fields that an object of ``version`` has not, as it means them."""
    return {
        name: meant
        for came, fields in kind.ADDED.items()
        if came > version
        for name, meant in fields.items()
    }


_NEXT = (
    "Nothing was guessed or changed. Restore the file from a copy of the checkpoint, or find out "
    "what wrote it, before the pipeline goes on."
)
