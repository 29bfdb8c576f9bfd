"""Rows as text as Arrow writes it, bytes as they are: for systems whose values have no types."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.errors import ConfigurationError

_PLAIN = """
    boolean tinyint smallint int bigint float double decimal string binary date timestamp
    timestamp_ntz
"""
PLAIN = frozenset(_PLAIN.split())
"""Spark's types whose values are text, without their precision."""


def require_plain(columns: Mapping[str, str], system: str, *, ours: str, which: str) -> None:
    """Refuse columns (names and Spark's types) whose values are no text.

    Args:
        columns: of the rows.
        system: for the message.
        ours: the name that none of them may have.
        which: says what that name is for.

    Raises:
        ConfigurationError: which columns, and what was expected.
    """
    others = [name for name, kind in columns.items() if kind.partition("(")[0] not in PLAIN]
    if others or ours in columns:
        raise ConfigurationError(
            f"Columns {', '.join(others) or ours} cannot go to {system}: expected plain values "
            f"(to_json makes text of others), and {ours} {which}."
        )


def keys_of(rows: pa.Table, key: tuple[str, ...], prefix: str) -> list[bytes]:
    """The keys of the rows, see :func:`joined_keys`, each with the prefix."""
    return [prefix.encode() + each for each in joined_keys(rows, key).to_pylist()]


def joined_keys(rows: pa.Table, key: tuple[str, ...]) -> pa.ChunkedArray:
    """The keys of the rows; several columns are joined so that no two rows ever meet."""
    parts = [text_of(rows[name]) for name in key]
    if len(parts) > 1:
        for mark, instead in ((b"%", b"%25"), (b":", b"%3A")):
            parts = [pc.replace_substring(part, mark, instead) for part in parts]
    return pc.binary_join_element_wise(*parts, pa.scalar(b":", pa.binary()))


def flags_of(rows: pa.Table, deleted: str | None) -> list[bytes]:
    """Whether each row is deleted: ``1`` or ``0``."""
    if deleted is None:
        return [b"0"] * rows.num_rows
    return [b"1" if each else b"0" for each in rows[deleted].to_pylist()]


def values_of(column: pa.ChunkedArray) -> list[bytes]:
    """``+`` and the value, or ``-`` for a null."""
    plus, none = pa.scalar(b"+", pa.binary()), pa.scalar(b"", pa.binary())
    return list(
        pc.fill_null(pc.binary_join_element_wise(plus, text_of(column), none), b"-").to_pylist()
    )


def text_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Each value as bytes: those of its text, in UTC where it is an instant."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        # One text for an instant, whatever the zone of the session is: it may be a key.
        column = column.cast(pa.timestamp("us", "UTC"))
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return (column if is_bytes else column.cast(pa.string())).cast(pa.binary())
