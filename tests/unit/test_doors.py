"""Values of a wrong type at what a user's app constructs and calls: refused, by an error of ours.

Python's own error names a line of ours and no argument, and a value that is taken where none of
its type can work (``resume="false"``, which is true) does something else than was written.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_eos import cuts, recovery
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.errors import EosError
from airflow_eos.sinks import (
    CheckpointPolicy,
    ConsumerGroup,
    DeltaSink,
    ExponentialDelay,
    FailureRate,
    FileSink,
    FixedDelay,
    HBaseUpsert,
    IcebergSink,
    KafkaSink,
    LakeUpsert,
    MySqlSink,
    MySqlUpsert,
    NewTable,
    Output,
    PostgresSink,
    PostgresUpsert,
    RedisUpsert,
    StartPosition,
    UpsertSink,
    WriteAheadSink,
    start_exactly_once,
)
from airflow_eos.sources import ArrowKafkaSource

OBJECT = object()
WRONG: tuple[Any, ...] = (None, 5, "", [], {}, OBJECT)
KAFKA = KafkaSink("h:1", "t", "p")
SOURCE = ArrowKafkaSource("h:1", "t")
POSTGRES = PostgresUpsert("host=h dbname=d", "t")
MADE: dict[Callable[..., Any], dict[str, Any]] = {
    KafkaSink: {"bootstrap_servers": "h:1", "topic": "t", "transactional_id_prefix": "p"},
    ConsumerGroup: {"group_id": "g", "bootstrap_servers": "h:1"},
    HBaseUpsert: {"url": "http://h:1", "target": "t/f"},
    MySqlSink: {"url": "mysql://u:p@h:3306/d", "table": "t", "prefix": "p"},
    MySqlUpsert: {"url": "mysql://u:p@h:3306/d", "table": "t"},
    PostgresSink: {"dsn": "host=h dbname=d", "table": "t", "gid_prefix": "p"},
    PostgresUpsert: {"dsn": "host=h dbname=d", "table": "t"},
    RedisUpsert: {"url": "redis://h:1/0", "prefix": "a:"},
    UpsertSink: {"target": POSTGRES, "key": ["id"]},
    FileSink: {"folder": "/f"},
    DeltaSink: {"table_uri": "/t", "application_id": "a"},
    IcebergSink: {"identifier": "a.b", "catalog": {}, "application_id": "a"},
    LakeUpsert: {"key": ["id"]},
    NewTable: {"columns": "id BIGINT"},
    WriteAheadSink: {"deliver": "a.b:c"},
    Output: {"name": "a", "sink": KAFKA},
    CheckpointPolicy: {},
    FixedDelay: {},
    ExponentialDelay: {},
    FailureRate: {},
    StartPosition: {},
    ArrowKafkaSource: {"bootstrap_servers": "h:1", "topics": "t"},
}
OURS = {"store", "limits", "indexes", "transformations", "reach", "metadata", "partitions"}
"""Set by a method of ours, or handed on to a user's function as it is."""
NOT_EMPTY = {"by_partition", "columns"}
"""Lists and mappings of which an empty one means nothing."""
NUMBERS = re.compile(r"\b(int|Count|float|Span|PositiveSpan|Topics)\b")


def is_taken(name: str, value: object, annotation: str) -> bool:
    """Whether the value means something for what is said to be of that type."""
    if value in ([], {}) and name in NOT_EMPTY:
        return False
    is_mapping = annotation.startswith("Mapping")
    if value is None:
        return annotation.endswith("None")
    if value == 5:
        return NUMBERS.search(annotation) is not None and not is_mapping
    if value == []:
        return "ColumnNames(none" in annotation or annotation == "tuple[str, ...]"
    return (value == {} and is_mapping) or (
        value == "" and annotation.startswith('Annotated[str, Word(words=(""')
    )


def cases() -> Iterator[Any]:
    for made, given in MADE.items():
        for name, each in inspect.signature(made).parameters.items():
            for value in WRONG if name not in OURS else ():
                shown = "object()" if value is OBJECT else repr(value)
                # Of a class that its own __init__ does not annotate: the fields say it.
                annotation = str(made.__annotations__.get(name, each.annotation))
                taken = is_taken(name, value, annotation.replace("'", '"'))
                said = f"{made.__name__}({name}={shown})"
                yield pytest.param(made, {**given, name: value}, taken, id=said)


@pytest.mark.parametrize(("made", "given", "taken"), cases())
def test_what_is_constructed_takes_a_value_that_means_something_and_refuses_any_other(
    made: Callable[..., Any], given: dict[str, Any], taken: bool
) -> None:
    if taken:
        made(**given)
    else:
        with pytest.raises(EosError):
            made(**given)


def test_a_flag_that_is_the_word_false_is_not_true() -> None:
    assert ConsumerGroup("g", "h:1", resume="false").resume is False  # type: ignore[arg-type]


@pytest.mark.parametrize("group", ["None", " g ", "{{ g }}"])
def test_a_name_is_taken_as_it_is_where_no_template_renders_it(group: str) -> None:
    assert ConsumerGroup(group, "h:1").group_id == group


CALLED: dict[Callable[..., Any], dict[str, Any]] = {
    start_exactly_once: {"df": SOURCE, "sink": KAFKA, "checkpoint_location": "/nowhere"},
    recovery.plan_recovery: {"checkpoint": "/nowhere"},
    recovery.execute_recovery: {"plan": "/nowhere"},
    recovery.audit: {
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "input_topic": "t",
        "output_topic": "u",
        "timeout_s": 0.1,
    },
    cuts.latest: {"checkpoint": "/nowhere"},
    cuts.at: {"checkpoint": "/nowhere", "batch": 1},
    cuts.as_of: {"checkpoint": "/nowhere", "time": datetime(2026, 1, 1, tzinfo=UTC)},
    CheckpointStore.open: {"location": "/nowhere"},
    StartPosition.at: {"moment": datetime(2026, 1, 1, tzinfo=UTC)},
    StartPosition.offsets: {"by_partition": {0: 1}},
    StartPosition.parsed: {"text": "earliest"},
}


@pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("called", CALLED, ids=lambda called: called.__qualname__)
def test_what_is_called_refuses_a_wrong_value_by_an_error_of_ours(
    called: Callable[..., Any], value: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # an empty text is the working folder
    names = CALLED[called].keys() - ({"input_topic", "output_topic"} if value == 5 else set())
    for name in names:
        try:
            called(**{**CALLED[called], name: value})
        except EosError:
            continue
        assert called is CheckpointStore.open or called is StartPosition.parsed


@pytest.mark.parametrize(
    "name", sorted(inspect.signature(start_exactly_once).parameters.keys() - {"df"})
)
def test_a_start_names_the_argument_that_is_none_before_it_looks_for_spark(name: str) -> None:
    given = {**CALLED[start_exactly_once], name: OBJECT}
    with pytest.raises(EosError, match=f"^{name}(=|: )"):
        start_exactly_once(**given)


def test_a_path_of_python_is_a_place(tmp_path: Path) -> None:
    assert CheckpointStore.open(tmp_path).location == CheckpointStore.open(str(tmp_path)).location
    # What is wrong next: no session; or, with one of another test, a column of the rows.
    with pytest.raises(EosError, match=r"No Spark session|column 'offset'"):
        start_exactly_once(SOURCE, KAFKA, checkpoint_location=tmp_path)
