"""What the doctor says of rights; pure. Numbers are Kafka's authorized operations.

They are those of ``org.apache.kafka.common.acl.AclOperation``. A broker without an authorizer tells
all of them; one that is asked in an old version, none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from airflow_eos.supervision.doctor import Line

if TYPE_CHECKING:
    from collections.abc import Collection

Right = Literal["Read", "Write"]

OPERATIONS: dict[Right, int] = {"Read": 3, "Write": 4}
_DONE: dict[Right, str] = {"Read": "read", "Write": "written"}
SPARKS_GROUPS = "spark-kafka-source"
"""What the groups of Spark's Kafka source begin with, unless ``groupIdPrefix`` is set."""


def topic(
    name: str, partitions: int, operations: Collection[int] | None, needed: Right = "Write"
) -> Line:
    """A topic, and whether these credentials may do with it what is needed."""
    what = f"topic {name}"
    count = f"{partitions} partition{'s' if partitions != 1 else ''}"
    if operations is None:
        return Line(what, "ok", f"{count}; the broker does not tell rights")
    if OPERATIONS[needed] not in operations:
        return Line(
            what,
            "fail",
            f"{count}; no right to {needed.lower()}",
            f"{needed} on the topic",
            f"kafka-acls --add --allow-principal … --operation {needed} --topic {name}",
        )
    return Line(what, "ok", f"{count}; may be {_DONE[needed]}")


def group(name: str, operations: Collection[int] | None) -> Line:
    """The consumer group that shows how far the pipeline is; who sets its offsets reads it."""
    what = f"group {name}"
    if operations is None:
        return Line(what, "ok", "the broker does not tell rights")
    if OPERATIONS["Read"] in operations:
        return Line(what, "ok", "may be read, and its offsets set")
    return Line(
        what,
        "fail",
        "no right to read",
        "Read on the group",
        f"kafka-acls --add --allow-principal … --operation Read --group {name}",
    )


def sparks_group(found: Line) -> Line:
    """The same of Spark's own groups: a warning, as a query may name others, or read without."""
    if found.verdict != "fail":
        return found._replace(what="Spark's groups", found="may be read")
    return Line(
        "Spark's groups",
        "warn",
        f"no right to read {SPARKS_GROUPS}-…",
        "Read on them, where Spark's Kafka source reads; ArrowKafkaSource needs no group",
        "kafka-acls --add --allow-principal … --operation Read "
        f"--group {SPARKS_GROUPS} --resource-pattern-type prefixed",
    )
