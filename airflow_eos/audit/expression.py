"""Which part of a Kafka message names the row: ``value.order_id``, ``key``, ``headers.id``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from confluent_kafka import Message

Extract = Callable[["Message"], bytes | None]
"""Gives the named part as bytes, or None where the message has no such part."""


def parse(expression: str) -> Extract:
    """Turn an expression into a function of a message.

    ``key`` and ``value`` are the bytes themselves; ``value.a.b`` and ``key.a`` a field of the JSON
    object there; ``headers.name`` the last header of that name. Numbers equal their decimal
    strings, so that ``7`` and ``"7"`` name the same row.

    Raises:
        ConfigurationError: The expression is none of these.
    """
    part, _, path = expression.partition(".")
    if part in {"key", "value"} and not path and "." not in expression:
        return _key if part == "key" else _value
    fields = path.split(".")
    if part == "headers" and path:
        return lambda message: _header(message, path)
    if part in {"key", "value"} and all(fields):
        raw = _key if part == "key" else _value
        decode = _field_decoder(fields)
        return lambda message: _field(raw(message), decode, len(fields))
    raise ConfigurationError(
        f"{expression!r} names no part of a message. Expected 'key', 'value', 'value.<field>' "
        "(dots for nested JSON fields), 'key.<field>' or 'headers.<name>'."
    )


def _key(message: Message) -> bytes | None:
    key: Any = message.key()
    return key if isinstance(key, bytes) or key is None else str(key).encode()


def _value(message: Message) -> bytes | None:
    value: Any = message.value()
    return value if isinstance(value, bytes) or value is None else str(value).encode()


def _header(message: Message, name: str) -> bytes | None:
    found: list[Any] = [header[1] for header in message.headers() or () if header[0] == name]
    if not found or found[-1] is None:
        return None
    return found[-1] if isinstance(found[-1], bytes) else str(found[-1]).encode()


def _field_decoder(fields: list[str]) -> Callable[[bytes], Any]:
    """Build a decoder that reads only this path and skips the rest of the object."""
    kind: Any = Any
    for name in reversed(fields):
        kind = msgspec.defstruct("Row", [("part", kind, None)], rename={"part": name})
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
    return decode


def _field(data: bytes | None, decode: Callable[[bytes], Any], depth: int) -> bytes | None:
    if data is None:
        return None
    try:
        found = decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None  # no JSON object: a malformed row has no such part
    for _ in range(depth):
        found = found.part
        if found is None:
            return None
    if isinstance(found, str):
        return found.encode()
    return msgspec.json.encode(found)
