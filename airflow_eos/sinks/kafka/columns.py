"""The columns that a Kafka sink understands, checked before the query starts.

The names are those of Spark's own sink (``KafkaWriter``): value, and optionally key, topic,
partition, headers, timestamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TEXT = ("string", "binary")
ACCEPTED: dict[str, tuple[str, ...]] = {
    "value": _TEXT,
    "key": _TEXT,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp", "timestamp_ntz"),
}


def kafka_columns(schema: StructType, row: str, *, default_topic: str | None) -> list[str]:
    """The columns of ``schema`` in a fixed order, ready for the writer, as SQL.

    Raises:
        ConfigurationError: the value column is missing, a column has a wrong type or is not
            known, or no topic is named.
    """
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    _check(types, default_topic)
    # Kafka knows no null headers and no microseconds. What is written must be what is hashed,
    # or rows read back for a replay would not compare equal.
    as_kafka_has_it = {
        "headers": f"coalesce({row}`headers`, cast(array() AS {ACCEPTED['headers'][0]}))",
        "timestamp": f"date_trunc('millisecond', {row}`timestamp`)",
        "topic": f"coalesce({row}`topic`, {_literal(default_topic)})",
    }
    return [
        f"{as_kafka_has_it.get(name, f'{row}`{name}`')} AS `{name}`"
        for name in ACCEPTED
        if name in types
    ]


def _literal(text: str | None) -> str:
    if text is None:
        return "cast(NULL AS string)"
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _check(types: dict[str, str], default_topic: str | None) -> None:
    if "value" not in types:
        raise ConfigurationError(
            f"The rows have no column 'value' (found: {', '.join(types) or 'none'}). Select one of "
            "type string or binary, for example to_json(struct(...)) AS value."
        )
    for name, found in types.items():
        accepted = ACCEPTED.get(name)
        if accepted is None:
            raise ConfigurationError(
                f"The rows have a column '{name}' that Kafka has no place for. Expected only "
                f"{', '.join(ACCEPTED)}: drop it, or put it into the value."
            )
        if found not in accepted:
            raise ConfigurationError(
                f"Column '{name}' is of type {found}; expected {' or '.join(accepted)}. Cast it: "
                f"col('{name}').cast('{accepted[0]}')."
            )
    if default_topic is None and "topic" not in types:
        raise ConfigurationError(
            "No topic: the sink names none and the rows have no column 'topic'. Give KafkaSink "
            "a topic, or select one for each row."
        )
