"""The sinks that configuration can choose, by kind: one line each.

A kind is a class of options, a :class:`~airflow_eos.sinks.kinds.port.SinkOptions`, imported when it
is first needed. A package of a user's own gives its kinds as entry points of the group
``airflow_eos.sinks``: the kind's name, and its class.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_eos.sinks.kinds.port import SinkOptions

GROUP = "airflow_eos.sinks"
KINDS = {
    "kafka": "airflow_eos.sinks.kinds.kafka:KafkaOptions",
    "files": "airflow_eos.sinks.kinds.files:FileOptions",
    "postgres": "airflow_eos.sinks.kinds.postgres:PostgresOptions",
    "mysql": "airflow_eos.sinks.kinds.mysql:MySqlOptions",
    "upsert": "airflow_eos.sinks.kinds.upsert:UpsertOptions",
    "wal": "airflow_eos.sinks.kinds.wal:WriteAheadOptions",
    "delta": "airflow_eos.sinks.kinds.delta:DeltaOptions",
    "iceberg": "airflow_eos.sinks.kinds.iceberg:IcebergOptions",
}


def options_of(kind: str) -> type[SinkOptions]:
    """What may be said of an output of this kind.

    Raises:
        ConfigurationError: no package here has that kind, or it cannot be imported.
    """
    found = {each.name: each for each in entry_points(group=GROUP)}
    found |= {name: EntryPoint(name, where, GROUP) for name, where in KINDS.items()}
    if kind not in found:
        raise ConfigurationError(
            f"kind {kind!r}{nearest(kind, found)}: this installation knows "
            f"{', '.join(sorted(found))}. Another one is an entry point {GROUP!r} of an installed "
            "package, where the app runs and on Airflow's workers."
        )
    try:
        options: type[SinkOptions] = found[kind].load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"kind {kind!r} is {found[kind].value}, which cannot be imported here: {error}."
        ) from error
    return options


def nearest(name: str, known: Iterable[str]) -> str:
    """What was probably meant, to be put behind ``name`` in a message; empty where nothing is."""
    near = get_close_matches(name, known, n=2)
    return f" (near: {', '.join(near)})" if near else ""
