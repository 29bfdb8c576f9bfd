"""A history of the loop engine whose input is a topic, read by ``ArrowKafkaSource``."""

from __future__ import annotations

import msgspec

from airflow_eos.local.broker import create_topic
from tests.chaos.arena import Arena
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

    def end_all(self) -> None:
        super().end_all()
        self.arena.delete_topics([self._read])


def over_arrow(scenario: Scenario) -> Scenario:
    """Every other history loses answers of reading in the place of those of writing."""
    if scenario.seed % 2 == 0:
        return scenario
    incidents = tuple(map(_while_reading, scenario.incidents))
    return msgspec.structs.replace(scenario, incidents=incidents)


def _while_reading(incident: Incident) -> Incident:
    if incident.rule is None or incident.rule[0] not in _READING:
        return incident
    api, nth, action = incident.rule
    fault = incident.fault.replace(api, _READING[api])
    return msgspec.structs.replace(incident, fault=fault, rule=(_READING[api], nth, action))
