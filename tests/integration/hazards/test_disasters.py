"""What docs/disaster.md says to do is done, to the letter, and rows are counted.

A line of its shell blocks is run as it stands, with this test's broker, topics and folders in the
place of the page's names; ``# exits N: words`` is what it must say. An app is started without
Spark, by what its own arguments say.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from airflow_eos.cli.app import app as command_line
from airflow_eos.core.checkpoint import read_state, write_heartbeat
from airflow_eos.core.checkpoint.terms import newest_term
from airflow_eos.errors import CheckpointFormatError, EosError, OwnershipError, SupersededError
from airflow_eos.local import EmbeddedKafka
from airflow_eos.sinks.app import App, argument_parser
from tests.integration.hazards.direct import PULSE, Direct, Frame, wait_for
from tests.support.beats import heartbeat
from tests.support.topics import read_messages

PAGE = Path(__file__).parents[3] / "docs" / "disaster.md"
PARTITIONS = 3


def blocks_of(title: str) -> list[list[str]]:
    """The shell blocks of one section, without those of the sections below it."""
    parts = re.split(r"^#+ (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    found = re.findall(r"^```sh\n(.*?)^```", sections.pop(title), re.MULTILINE | re.DOTALL)
    return [block.splitlines() for block in found]


@dataclass
class Stream(Direct):
    """Reads a topic as Spark's source does, from where its checkpoint says; a task a partition."""

    source: str = ""
    begin: Mapping[int, int] = field(default_factory=dict)
    shuffled: bool = False
    """Each task gets rows of all partitions, as behind a repartition."""

    def run(self) -> None:
        """Start, deliver what is in flight and then all that is there; say how it ended."""
        with self.started() as batch:
            try:
                self.go_on(batch)
            except BaseException:
                self.say("failed")
                raise
            if self.consumer_group is not None:
                PULSE.before_stopped()
            self.say("stopped")

    def say(self, phase: Literal["failed", "stopped"]) -> None:
        write_heartbeat(self.store, heartbeat(phase, term=newest_term(self.store)))

    def go_on(self, batch: Any) -> None:
        rows = read_messages(self.bootstrap, self.source)
        until = {p: sum(row.partition() == p for row in rows) for p in range(PARTITIONS)}
        state = read_state(self.store)
        if state.latest_offsets is None:
            self.store.put("sources/0/0", f"\0v1\n{self.place(self.begin)}".encode())
            self.batch(batch, 0, rows, self.begin, until)
            return
        here = state.sources[0]
        ended = cast("Any", here.end)[self.source]
        if state.in_flight is not None:
            began = here.start[self.source] if here.start else self.begin
            self.batch(batch, state.in_flight, rows, began, ended)
        if ended != until:
            self.batch(batch, state.latest_offsets + 1, rows, ended, until)

    def batch(
        self,
        batch: Any,
        number: int,
        rows: list[Any],
        start: Mapping[int, int],
        end: Mapping[int, int],
    ) -> None:
        self._ends = end
        parts = [
            [
                (row.key().decode(), row.value().decode())
                for row in rows
                if row.partition() == partition
                and start[partition] <= row.offset() < end[partition]
            ]
            for partition in range(PARTITIONS)
        ]
        all_of_it = [row for part in parts for row in part]
        tasks = [all_of_it[n::PARTITIONS] for n in range(PARTITIONS)] if self.shuffled else parts
        self.batches = cast("Any", {number: Frame(tasks)})
        self.deliver(batch, number)

    def end_of(self, number: int) -> str:
        del number  # the one that is being planned
        return self.place(self._ends)

    def place(self, offsets: Mapping[int, int]) -> str:
        return json.dumps({self.source: {str(each): at for each, at in offsets.items()}})


class Orders:
    """The pipeline of the page: its topics, and the commands of a person."""

    def __init__(self, broker: EmbeddedKafka, name: str, folder: Path) -> None:
        self.folder = folder
        self.names = {
            "kafka-1:9092": broker.bootstrap_servers,
            "orders": f"{name}-in",
            "orders.clean": f"{name}-out",
            "CHECKPOINT": str(folder / "checkpoint"),
            "CHECKPOINT.night": str(folder / "checkpoint.night"),
            "NEW": str(folder / "new"),
            "PREFIX": name,
            "NEW-PREFIX": f"{name}-new",
            "GROUP": f"{name}-group",
        }
        self.made = 0
        self.shuffled = False
        self.audited: Any = None
        self.last_audit: int | None = None
        self.topics_on(broker)

    @property
    def bootstrap(self) -> str:
        return self.names["kafka-1:9092"]

    @property
    def checkpoint(self) -> Path:
        return Path(self.names["CHECKPOINT"])

    def topics_on(self, broker: EmbeddedKafka) -> None:
        broker.create_topic(self.names["orders"], PARTITIONS)
        broker.create_topic(self.names["orders.clean"], PARTITIONS)

    def feed(self, count: int = 60) -> None:
        rows = [(n % PARTITIONS, b"k%d" % (n % 12), b"order %d" % n) for n in self.numbers(count)]
        send(self.bootstrap, self.names["orders"], rows)

    def numbers(self, count: int) -> range:
        self.made += count
        return range(self.made - count, self.made)

    def app(self, *arguments: str) -> Stream:
        """The app that these arguments of its command line make."""
        told = App.of(argument_parser("", prefix="none").parse_args(arguments))
        stream = Stream(
            told.kafka.bootstrap_servers,
            self.folder,
            self.names["orders.clean"],
            told.prefix,
            consumer_group=told.consumer_group,
            source=self.names["orders"],
            begin=told.first_start.by_partition or dict.fromkeys(range(PARTITIONS), 0),
        )
        stream.shuffled = self.shuffled
        stream.checkpoint = Path(told.checkpoint)
        if told.consumer_group is not None and told.consumer_group.resume:
            begin = json.loads(told.consumer_group.starting_offsets(stream.source))
            stream.begin = {int(p): at for p, at in begin[stream.source].items()}
        return stream

    def usual(self, *, group: bool = True) -> Stream:
        words = ["--bootstrap-servers", "kafka-1:9092", "--checkpoint", "CHECKPOINT"]
        words += ["--prefix", "PREFIX", *(["--consumer-group", "GROUP"] if group else [])]
        return self.app(*(self.names.get(word, word) for word in words))

    def follow(self, block: list[str]) -> None:
        """Run each line; what it must say stands behind it."""
        for line in block:
            command, _, expected = line.partition("   # ")
            tool, *arguments = [self.names.get(word, word) for word in shlex.split(command)]
            if tool == "mv":
                shutil.move(arguments[0], arguments[1])
            elif tool == "spark-submit":
                self.app(*self.with_offsets(arguments[1:])).run()
            else:
                assert tool == "airflow-eos", line
                self.command(arguments, expected)

    def with_offsets(self, arguments: list[str]) -> list[str]:
        """Where the page shows offsets, those that the audit has said."""
        if "--start" in arguments:
            at = arguments.index("--start") + 1
            assert json.loads(arguments[at]).keys() == {str(p) for p in range(PARTITIONS)}
            arguments[at] = json.dumps(self.audited["whole_until"][self.names["orders"]])
        return arguments

    def command(self, arguments: list[str], expected: str) -> None:
        done = CliRunner().invoke(command_line, arguments)
        said = " ".join(f"{done.output} {done.exception or ''}".replace("│", " ").split())
        status, _, words = expected.removeprefix("exits ").partition(": ")
        # An error is turned into exit status 2 by the entry point.
        got = 2 if isinstance(done.exception, EosError) else done.exit_code
        if arguments[0] == "audit" and not expected:
            self.last_audit = done.exit_code
        else:
            assert got == int(status or 0), (arguments, said)
        assert words.replace(" ", "") in said.replace(" ", ""), (arguments, said)
        if arguments[0] == "audit" and "--json" in arguments:
            self.audited = json.loads(done.stdout)

    def visible(self, bootstrap: str = "") -> Counter[str]:
        rows = read_messages(bootstrap or self.bootstrap, self.names["orders.clean"])
        return Counter(row.value().decode() for row in rows)

    def require(self, *, twice: int = 0, lost: int = 0) -> None:
        """Of the rows that were ever made, just so many are lost and twice."""
        went, came = Counter(f"order {n}" for n in range(self.made)), self.visible()
        assert (went - came).total() == lost
        assert (came - went).total() == twice


def send(bootstrap: str, topic: str, rows: list[tuple[int, bytes, bytes]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition, key, value in rows:
        producer.produce(topic, key=key, value=value, partition=partition)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def mirror() -> Iterator[EmbeddedKafka]:
    """Another cluster, whose topic of prefixes may be deleted."""
    with EmbeddedKafka() as running:
        yield running


@pytest.fixture
def orders(kafka_broker: EmbeddedKafka, tmp_path: Path) -> Orders:
    return Orders(kafka_broker, f"orders-{uuid.uuid4().hex[:8]}", tmp_path)


def night_put_back(orders: Orders, *, group: bool, die_at: Callable[[str], None]) -> None:
    """A batch, a copy, two batches more, of which a driver without a group settles one in part."""
    orders.feed()
    orders.usual(group=group).run()
    shutil.copytree(orders.checkpoint, night := orders.folder / "backup")
    orders.feed()
    orders.usual(group=group).run()
    orders.feed()
    die_at("" if group else "settled-some")
    if group:
        orders.usual(group=group).run()
    else:
        with pytest.raises(RuntimeError, match="failpoint"):
            orders.usual(group=group).run()
    die_at("")
    shutil.rmtree(orders.checkpoint)
    shutil.move(night, orders.checkpoint)
    with pytest.raises(OwnershipError, match="older copy"):
        orders.usual(group=group).run()


@pytest.mark.proof
def test_last_nights_checkpoint_and_on_from_the_group(
    orders: Orders, die_at: Callable[[str], None]
) -> None:
    night_put_back(orders, group=True, die_at=die_at)
    (look,) = blocks_of("Last night's checkpoint was put back")
    orders.follow(look)
    orders.feed()
    (block,) = blocks_of("It was drained, and has a consumer group")
    orders.follow(block)
    orders.require()
    orders.feed()
    orders.usual().run()
    orders.require()


@pytest.mark.proof
def test_last_nights_checkpoint_and_on_from_what_the_output_has(
    orders: Orders, die_at: Callable[[str], None]
) -> None:
    night_put_back(orders, group=False, die_at=die_at)
    end, start = blocks_of("It was not, or has no group")
    orders.follow(end)
    assert orders.audited["lost"] == 40, "of three transactions one was committed"
    assert orders.audited["again"] == 0, "a task delivers a partition, or nothing of it"
    orders.feed()
    orders.follow(start)
    assert orders.last_audit == 0
    orders.require()


@pytest.mark.proof
def test_what_comes_twice_is_said_before_to_the_row(
    orders: Orders, die_at: Callable[[str], None]
) -> None:
    """What one task has delivered is of all partitions: behind what is missing it comes again."""
    orders.shuffled = True
    night_put_back(orders, group=False, die_at=die_at)
    end, start = blocks_of("It was not, or has no group")
    orders.follow(end)
    again = orders.audited["again"]
    assert (orders.audited["lost"], again) == (40, 19), "all of that task but the very first row"
    orders.follow(start)
    assert orders.last_audit == 1
    orders.require(twice=again)


@pytest.mark.proof
@pytest.mark.parametrize("dropped", [pytest.param(0, marks=pytest.mark.proof), 10])
def test_the_cluster_is_lost_and_a_mirror_takes_over(
    orders: Orders, mirror: EmbeddedKafka, die_at: Callable[[str], None], dropped: int
) -> None:
    """The mirror has aborted or open rows of nobody, lags, and may count its offsets anew."""
    orders.feed()
    orders.usual(group=False).run()
    orders.feed()
    die_at("settled-some")
    with pytest.raises(RuntimeError, match="failpoint"):
        orders.usual(group=False).run()
    die_at("")
    orders.topics_on(mirror)
    went = read_messages(orders.bootstrap, orders.names["orders"])
    came = read_messages(orders.bootstrap, orders.names["orders.clean"])
    copy(mirror, [row for row in went if row.offset() >= dropped], orders.names["orders"])
    copy(mirror, came[:-7], orders.names["orders.clean"])
    orders.names["mirror-1:9092"] = mirror.bootstrap_servers
    (block,) = blocks_of("The cluster is lost, and a mirror takes over")
    orders.follow(block)
    orders.names["kafka-1:9092"] = mirror.bootstrap_servers
    # Behind what the lagging mirror of the output lacks some rows came out: again is how many.
    orders.require(twice=orders.audited["again"])


def copy(mirror: EmbeddedKafka, rows: list[Any], topic: str) -> None:
    """What a mirror that keeps partitions does."""
    told = [(row.partition(), row.key(), row.value()) for row in rows]
    send(mirror.bootstrap_servers, topic, told)


@pytest.mark.proof
def test_the_topic_of_prefixes_is_lost(mirror: EmbeddedKafka, tmp_path: Path) -> None:
    orders = Orders(mirror, f"orders-{uuid.uuid4().hex[:8]}", tmp_path)
    for _ in range(2):
        orders.feed()
        orders.usual().run()
    shutil.copytree(orders.checkpoint, older := tmp_path / "older")
    orders.feed()
    orders.usual().run()
    delete_topic(mirror, "airflow-eos.prefixes")
    orders.feed()
    (block,) = blocks_of("The topic airflow-eos.prefixes is lost")
    orders.follow(block)
    orders.require()
    shutil.rmtree(orders.checkpoint)
    shutil.move(older, orders.checkpoint)
    with pytest.raises(OwnershipError, match="older copy"):
        orders.usual().run()


def delete_topic(broker: EmbeddedKafka, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([name])[name].result(30)
    wait_for(lambda: name not in admin.list_topics(timeout=60).topics)


@pytest.mark.proof
def test_a_checkpoint_moves(orders: Orders) -> None:
    orders.feed()
    orders.usual().run()
    orders.feed()
    (block,) = blocks_of("A checkpoint moves to another place")
    orders.follow(block)
    orders.require()


@pytest.mark.proof
def test_a_driver_of_another_release_starts_beside_a_running_one(orders: Orders) -> None:
    """The older one need not understand the newer one's term, only that it is there."""
    orders.feed()
    older = orders.usual(group=False)
    with older.started() as batch:
        older.go_on(batch)
        orders.feed()
        orders.usual(group=False).run()
        of_a_newer_release(orders, "eos/drivers/*.json")
        orders.feed()
        with pytest.raises(SupersededError):
            older.go_on(batch)
    assert orders.visible() == Counter(f"order {n}" for n in range(120))
    orders.usual(group=False).run()
    orders.require()


@pytest.mark.proof
@pytest.mark.parametrize("written", ["pipeline.json", "decisions/1/*.json"])
def test_what_a_newer_release_wrote_is_refused_in_one_sentence(
    orders: Orders, written: str
) -> None:
    for _ in range(2):
        orders.feed()
        orders.usual(group=False).run()
    of_a_newer_release(orders, f"eos/{written}")
    orders.feed()
    before = {path: path.read_bytes() for path in orders.checkpoint.rglob("*") if path.is_file()}
    (block,) = blocks_of("Two releases beside a running stream")
    orders.follow(block)
    with pytest.raises(CheckpointFormatError, match="use that one for this checkpoint"):
        orders.usual(group=False).run()
    after = {path: path.read_bytes() for path in orders.checkpoint.rglob("*") if path.is_file()}
    assert after == before
    assert orders.visible() == Counter(f"order {n}" for n in range(120))


def of_a_newer_release(orders: Orders, pattern: str) -> None:
    """The newest of these objects, as a release would write it that has a format of its own."""
    path = max(orders.checkpoint.glob(pattern), key=lambda each: each.stat().st_mtime)
    told = json.loads(path.read_text())
    path.write_text(json.dumps(told | {"format_version": told["format_version"] + 1, "more": 1}))


def test_each_section_of_the_page_is_run():
    titles = re.findall(r"^##+ (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    here = Path(__file__).read_text(encoding="utf-8")
    assert [each for each in titles if f'blocks_of("{each}")' not in here] == []
