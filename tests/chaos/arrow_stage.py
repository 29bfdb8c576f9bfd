"""A history of the loop engine whose input is a topic, read by ``ArrowKafkaSource``."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from airflow_eos.core.checkpoint.spark_log import kafka_offsets
from airflow_eos.local.broker import create_topic
from tests.chaos.arena import Arena
from tests.chaos.faults import incident, nth
from tests.chaos.scenario import Incident, Scenario
from tests.chaos.settings import ARROW, DriverSettings
from tests.chaos.stage import Stage
from tests.chaos.topic_input import TopicInput

_KINDS = {"keyed": "split", "shuffle": "split", "count": "dealt"}
"""What it does where the scenario would deal rows out after they were read; see ``ArrowSource``."""


_READING = {"Produce": "Fetch", "InitProducerId": "ListOffsets"}
"""See :func:`over_arrow`."""


class ArrowStage(Stage):
    """Feeds a topic instead of files."""

    def __init__(self, arena: Arena, scenario: Scenario) -> None:
        kind = _KINDS.get(scenario.kind, scenario.kind)
        super().__init__(arena, msgspec.structs.replace(scenario, kind=kind))
        self._read = f"{self.name}-in"
        create_topic(arena.bootstrap, self._read, scenario.partitions, {})
        self._input = TopicInput(arena.bootstrap, self._read)

    def settings(self, name: str, incident: Incident, *, failpoints: str = "") -> DriverSettings:
        told = super().settings(name, incident, failpoints=failpoints)
        return msgspec.structs.replace(told, source=ARROW)

    def pass_retention_of_input(self, settled: Path) -> None:
        newest = max(
            (int(e.name) for e in self.store.list("offsets") if e.name.isdigit()), default=0
        )
        if settled.exists():  # or nobody knows what the newest batch still has to read
            ends = kafka_offsets(
                (self.store.get(f"offsets/{newest}") or b"").decode().split("\n")[-1]
            )
            assert ends is not None
            self.arena.delete_rows(self._read, ends[self._read])
            self.journal.note("input deleted", ends=ends)

    def end_all(self) -> None:
        super().end_all()
        self.arena.delete_topics([self._read])


def over_arrow(scenario: Scenario) -> Scenario:
    """Every other history loses answers of reading in the place of those of writing, or input."""
    if scenario.seed % 2 == 0:
        incidents = (*scenario.incidents, input_past_retention(scenario.seed))
    else:
        incidents = tuple(map(_while_reading, scenario.incidents))
    return msgspec.structs.replace(scenario, incidents=incidents)


def input_past_retention(seed: int) -> Incident:
    """Nothing of it is owed, so nothing of it is read again."""
    chance = random.Random(f"{seed} input")
    return incident(
        chance,
        fault="kill driver at settled, then its input passes retention",
        failpoints=f"settled=kill@{nth(chance)}",
        input_gone=True,
        recoveries=chance.choice((0, 1)),
    )


def _while_reading(incident: Incident) -> Incident:
    if incident.rule is None or incident.rule[0] not in _READING:
        return incident
    api, nth, action = incident.rule
    fault = incident.fault.replace(api, _READING[api])
    return msgspec.structs.replace(incident, fault=fault, rule=(_READING[api], nth, action))
