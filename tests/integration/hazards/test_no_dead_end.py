"""No dead end: from each state, whatever of the advice is chosen and followed to the letter.

A start, ``plan``, ``recover`` and ``accept`` never send one another in a circle: the pipeline runs
after five errors at most, and readers lack what was announced, to the row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import count
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_eos.core.recovery.execute import participant_of
from airflow_eos.errors import Remedy
from airflow_eos.recovery import plan_recovery
from tests.integration.hazards.direct import Direct, Frame
from tests.support.follow import Person
from tests.support.topics import read_topic

pytestmark = pytest.mark.proof

ROWS = 90
Die = Callable[[str], None]


class World:
    """A pipeline, and what a reader that never pauses has seen of its output."""

    def __init__(self, pipeline: Direct, die_at: Die) -> None:
        self.pipeline = pipeline
        self.die_at = die_at
        self.seen: list[tuple[str, str]] = []
        pipeline.feed_numbers(ROWS)
        self.fed = [row for task in pipeline.batches[0].tasks for row in task]

    def dies(self, place: str) -> None:
        self.die_at(place)
        with pytest.raises(RuntimeError, match=place):
            self.pipeline.run()
        self.die_at("")

    def times_out(self) -> None:
        """All that is open, as its timeout would end it, which takes seconds."""
        with closing(participant_of(self.pipeline.store, self.pipeline.settings)) as participant:
            participant.abort([each.identity for each in participant.open()])

    def forgets(self) -> None:
        """Ids are taken again, and retention passes the output: no outcome can be told."""
        for decision in self.pipeline.decisions.of_batch(0):
            for work in decision.works:
                name = work.key.rsplit("-", 2)[0]
                producer = Producer(
                    {"bootstrap.servers": self.pipeline.bootstrap, "transactional.id": name}
                )
                producer.init_transactions(30)
        self.read()
        admin = AdminClient({"bootstrap.servers": self.pipeline.bootstrap})
        wanted = [TopicPartition(self.pipeline.topic, p, OFFSET_END) for p in range(2)]
        for answer in admin.delete_records(wanted).values():
            answer.result(30)

    def read(self) -> None:
        self.seen += read_topic(self.pipeline.bootstrap, self.pipeline.topic)

    def input_has(self, *tasks: list[tuple[str, str]]) -> None:
        self.pipeline.batches[0] = Frame(tasks)


def open_and_decided(world: World) -> None:
    world.dies("decided")


def open_and_not_decided(world: World) -> None:
    world.dies("prepared")


def lost(world: World) -> None:
    world.dies("decided")
    world.times_out()


def settled(world: World) -> None:
    world.dies("settled")


def untold(world: World) -> None:
    settled(world)
    world.forgets()


def untold_and_lost(world: World) -> None:
    lost(world)
    world.forgets()


def replayed_and_first_untold(world: World) -> None:
    lost(world)
    world.dies("settled")
    world.forgets()


def the_query_changed(world: World) -> None:
    lost(world)
    world.input_has([(key, value + "!") for key, value in world.fed])


def the_input_lost_rows(world: World) -> None:
    lost(world)
    world.input_has(world.fed[:40])


def the_input_lost_all(world: World) -> None:
    lost(world)
    world.input_has([])


def untold_and_the_input_lost_rows(world: World) -> None:
    untold_and_lost(world)
    world.input_has(world.fed[:40])


STATES = (
    open_and_decided,
    open_and_not_decided,
    lost,
    settled,
    untold,
    untold_and_lost,
    replayed_and_first_untold,
    the_query_changed,
    the_input_lost_rows,
    the_input_lost_all,
    untold_and_the_input_lost_rows,
)
FIRST, LAST = 0, -1
RECOVER, ACCEPT = "recover CHECKPOINT --force", "accept CHECKPOINT --batch 0 --yes"


def cases(*ways: tuple[str, object], first: int) -> list[Any]:
    """Each state with each way; in ``make test`` each state with one way, all others in the proof.

    Four ways take turns among the states; ``first`` is the number of the first of these.
    """
    return [
        pytest.param(
            state,
            way,
            id=f"{name}-{state.__name__}",
            marks=() if number % 4 == first + place else pytest.mark.proof,
        )
        for number, state in enumerate(STATES)
        for place, (name, way) in enumerate(ways)
    ]


def announced(remedies: list[Remedy]) -> int:
    """How many rows whoever followed them was told that it may cost."""
    return sum(
        int(found[1])
        for each in remedies
        if (found := re.match(r"(\d+) rows(?! twice)", each.costs)) is not None
    )


@pytest.fixture
def world(direct: Direct, die_at: Die) -> World:
    return World(direct, die_at)


@pytest.mark.parametrize(
    ("state", "chosen"), cases(("the-first", FIRST), ("the-last", LAST), first=0)
)
def test_whoever_does_what_an_error_says_has_a_pipeline_that_runs(
    world: World, state: Callable[[World], None], chosen: int
) -> None:
    state(world)
    pipeline = world.pipeline
    turns = count()

    def start(_settings: Mapping[str, str]) -> None:
        next(turns)
        pipeline.run()

    def choose(remedies: tuple[Remedy, ...]) -> Remedy:
        # What only a person can mend, this one cannot: then the next is followed.
        mendable = [each for each in remedies if not each.change] or list(remedies)
        return mendable[chosen]

    person = Person(str(pipeline.checkpoint), ("-b", pipeline.bootstrap), start, choose)
    person.until_it_runs()
    assert plan_recovery(str(pipeline.checkpoint), pipeline.settings).steps == ()
    world.read()
    lacking = len(set(world.fed) - set(world.seen))
    told = announced(person.told)
    twice = any("twice" in each.costs for each in person.told)
    unsure = any("if no reader" in each.costs for each in person.told)
    assert lacking <= told if unsure else lacking == told, (lacking, person.told)
    assert twice or len(world.seen) == len(set(world.seen))
    pipeline.feed_numbers(30)
    pipeline.run()


@pytest.mark.parametrize(
    ("state", "first"), cases(("recover", RECOVER), ("accept", ACCEPT), first=2)
)
def test_no_command_that_is_run_first_leads_to_a_state_without_a_way_on(
    world: World, state: Callable[[World], None], first: str
) -> None:
    state(world)
    pipeline = world.pipeline

    def start(_settings: Mapping[str, str]) -> None:
        pipeline.run()

    def choose(remedies: tuple[Remedy, ...]) -> Remedy:
        return ([each for each in remedies if not each.change] or list(remedies))[LAST]

    person: Any = Person(str(pipeline.checkpoint), ("-b", pipeline.bootstrap), start, choose)
    person.run(f"airflow-eos {first}")
    person.until_it_runs()
    pipeline.feed_numbers(30)
    pipeline.run()
