"""Our own objects as JSON: decoded strictly, refused rather than guessed at."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from airflow_eos.errors import CheckpointFormatError

FORMAT_VERSION = 1

T = TypeVar("T", bound=msgspec.Struct)


def encode(value: msgspec.Struct) -> bytes:
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
    if version != FORMAT_VERSION:
        raise CheckpointFormatError(
            f"{where} has format version {version}; this release reads {FORMAT_VERSION}. It was "
            "written by another release: use that one for this checkpoint."
        )
    missing = sorted(set(kind.__struct_encode_fields__) - raw.keys())
    if missing:
        raise CheckpointFormatError(f"{where} lacks {', '.join(missing)}. {_NEXT}")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise CheckpointFormatError(
            f"{where} is not a {kind.__name__}: {error}. {_NEXT}"
        ) from error


_NEXT = (
    "Nothing was guessed or changed. Restore the file from a copy of the checkpoint, or find out "
    "what wrote it, before the pipeline goes on."
)
