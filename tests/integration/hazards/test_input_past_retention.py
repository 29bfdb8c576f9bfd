"""The input of the batch in flight is gone (DeleteRecords): what docs/recovery.md says, done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from airflow_eos.cli import app as cli
from airflow_eos.core.checkpoint import CheckpointStore, read_state
from airflow_eos.core.recovery.execute import participant_of
from airflow_eos.errors import EosError, InputLostError
from airflow_eos.local import EmbeddedKafka
from airflow_eos.sinks import KafkaSink, Output, start_exactly_once
from airflow_eos.sources import ArrowKafkaSource
from tests.integration.hazards.spark_job import Job
from tests.support.follow import Person
from tests.support.pipeline import wait_until

pytestmark = pytest.mark.proof

FED, GONE, ALL = 300, 60, OFFSET_END


class Trimmed(Job):
    """Its input can lose its beginning."""

    def deliver(self, sink: KafkaSink | list[Output] | None = None, **changes: Any) -> None:
        """To the end of the input, or to the error; a busy machine may take its time."""
        query = start_exactly_once(
            changes.pop("df", None) or self.frame(),
            sink or self.sink,
            checkpoint_location=self.checkpoint,
            trigger={"availableNow": True},
        )
        query.awaitTermination()

    def lose_input(self, *, before: int) -> None:
        """Retention passes over the first offsets of every partition."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = [TopicPartition(f"{self.name}-in", p, before) for p in range(self.partitions)]
        for answer in admin.delete_records(wanted).values():
            answer.result(30)

    def refused_by_spark(self) -> None:
        with pytest.raises(Exception, match="failOnDataLoss"):
            self.deliver()

    def read(self, kind: str, **settings: str) -> Any:
        """By Spark's source or by ours; settings are those of Spark's."""
        if kind == "spark":
            return self.frame(**settings)
        loss = settings.get("failOnDataLoss", "true") != "false"
        source = ArrowKafkaSource(self.bootstrap, f"{self.name}-in", fail_on_data_loss=loss)
        return source.select("key", "value")

    def lose_what_is_open(self) -> None:
        """As their timeout would, which takes seconds."""
        store = CheckpointStore.open(self.checkpoint)
        with closing(participant_of(store, self.sink.settings)) as participant:
            participant.abort([each.identity for each in participant.open()])

    def deliver_what_is_left(self) -> None:
        """One start with ``failOnDataLoss`` off."""
        self.deliver(df=self.frame(failOnDataLoss="false"))


@pytest.fixture
def job(spark: SparkSession, kafka_broker: EmbeddedKafka, tmp_path: Path) -> Iterator[Trimmed]:
    made = Trimmed(kafka_broker, tmp_path)
    made.spark = spark
    made.feed(FED)
    yield made
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def die_once_at(job: Trimmed, die_at: Callable[[str], None]) -> Callable[..., None]:
    def die(place: str, **changes: Any) -> None:
        die_at(place)
        with pytest.raises(RuntimeError, match=place):
            job.deliver(**changes)
        die_at("")

    return die


def goes_on(job: Trimmed) -> None:
    """The next rows come as ever, with ``failOnDataLoss`` on again."""
    before = len(job.visible())
    job.feed(90)
    job.deliver()
    seen = job.visible()
    assert len(seen) == before + 90
    assert set(job.expected[-90:]) <= set(seen)
    assert job.open_transactions() == ()


def test_a_batch_that_was_never_promised_delivers_what_is_left(
    job: Trimmed, die_once_at: Callable[..., None]
) -> None:
    die_once_at("prepared")
    job.lose_input(before=GONE)
    job.refused_by_spark()
    assert job.visible() == []
    job.deliver_what_is_left()
    left = job.visible()
    assert len(set(left)) == len(left) == FED - GONE * job.partitions
    goes_on(job)


@pytest.mark.parametrize("kind", ["spark", pytest.param("arrow", marks=pytest.mark.proof)])
def test_a_batch_that_readers_have_goes_on_without_its_input(
    job: Trimmed, die_once_at: Callable[..., None], kind: str
) -> None:
    """Nothing is owed and there is no state: nothing is read again."""
    die_once_at("settled", df=job.read(kind))
    job.lose_input(before=ALL)
    job.deliver(df=job.read(kind))
    job.assert_exactly_once()
    goes_on(job)


def test_a_stateful_batch_that_readers_have_says_what_is_lost_with_its_input(
    job: Trimmed, die_once_at: Callable[..., None]
) -> None:
    def counted(**settings: str) -> Any:
        return job.frame(**settings).dropDuplicates(["key", "value"])

    die_once_at("settled", df=counted())
    job.lose_input(before=ALL)
    person = Person(
        job.checkpoint, ("-b", job.bootstrap), lambda told: job.deliver(df=counted(**told))
    )
    person.until_it_runs()
    assert [each.settings for each in person.told] == [{"failOnDataLoss": "false"}]
    assert "state" in person.told[0].costs
    job.assert_exactly_once()


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("decided", "spark"),
        pytest.param("settled-some", "arrow", marks=pytest.mark.proof),
        pytest.param("decided", "arrow", marks=pytest.mark.proof),
        pytest.param("settled-some", "spark", marks=pytest.mark.proof),
    ],
)
def test_whoever_does_what_is_said_loses_what_was_announced_to_the_row(
    job: Trimmed, die_once_at: Callable[..., None], kind: str, place: str
) -> None:
    """Promised, lost by its timeout, and the beginning of the input is gone, as by retention."""
    die_once_at(place, df=job.read(kind))
    job.lose_what_is_open()
    there = job.visible()
    assert (place == "decided") == (not there)
    job.lose_input(before=GONE)
    person = Person(
        job.checkpoint, ("-b", job.bootstrap), lambda told: job.deliver(df=job.read(kind, **told))
    )
    with capture_logs() as logs:
        person.until_it_runs()
    assert any("accept" in command for each in person.told for command in each.commands)
    seen = job.visible()
    assert len(set(seen)) == len(seen), "nothing came twice"
    assert set(there) <= set(seen)
    [given_up] = [each["rows"] for each in logs if each["event"] == "rows_given_up"]
    assert FED - len(seen) == given_up
    assert len(seen) >= FED - GONE * job.partitions, "what is left of the input was delivered"
    goes_on(job)


def test_a_promise_that_can_never_be_kept_is_accepted_as_it_is(
    job: Trimmed, die_once_at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part of it timed out, and its input is gone: only a person can let the pipeline go on."""
    die_once_at("settled-some")
    job.lose_what_is_open()
    wait_until(lambda: job.open_transactions() == (), what="the markers")
    there = job.visible()
    assert 0 < len(there) < FED
    job.lose_input(before=ALL)
    with pytest.raises(EosError, match="airflow-eos accept CHECKPOINT --batch 0") as lost:
        job.deliver_what_is_left()
    assert isinstance(lost.value, InputLostError)
    assert lost.value.remedies[0].costs == f"{FED - len(there)} rows"
    command = ["accept", job.checkpoint, "-b", job.bootstrap, "--batch", "0", "--yes"]
    monkeypatch.setattr("sys.argv", ["airflow-eos", *command])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    job.deliver_what_is_left()
    assert job.visible() == there, "what was given up was not written, nothing came twice"
    goes_on(job)


class Wider(Trimmed):
    """It reads a second topic, which somebody removes."""

    @property
    def second(self) -> str:
        return f"{self.name}-in-more"

    def both(self, kind: str, *, there: bool = True, **settings: Any) -> Any:
        """As whoever follows the advice has it: the topic is not named once it is gone."""
        if kind == "spark":
            options = {"subscribePattern": f"{self.name}-in.*", **settings}
            source = self.spark.readStream.format("kafka").options(**options)
            source = source.option("kafka.bootstrap.servers", self.bootstrap)
            return source.option("startingOffsets", "earliest").load().select("key", "value")
        topics = [f"{self.name}-in", *([self.second] if there else [])]
        loss = settings.get("failOnDataLoss", "true") != "false"
        return ArrowKafkaSource(self.bootstrap, topics, fail_on_data_loss=loss).select(
            "key", "value"
        )

    def deliver_with(self, told: Mapping[str, str]) -> None:
        """Until the batch in flight is over, and the next ones."""
        settings: dict[str, Any] = {n: value for n, value in told.items() if n != "trigger"}
        if "trigger" not in told:
            self.deliver(df=self.both("spark", **settings))
            return
        query = start_exactly_once(
            self.both("spark", **settings),
            self.sink,
            checkpoint_location=self.checkpoint,
            trigger={"processingTime": told["trigger"]},
        )
        store = CheckpointStore.open(self.checkpoint)
        wait_until(
            lambda: not query.isActive or read_state(store).in_flight is None, what="the batch"
        )
        query.drain()
        query.awaitTermination()

    def feed_second(self, rows: range) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for row in rows:
            producer.produce(self.second, key=str(row), value=f"second {row}")
        producer.flush(30)

    def remove_second(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for answer in admin.delete_topics([self.second]).values():
            answer.result(30)
        wait_until(lambda: self.second not in admin.list_topics().topics, what="deletion")


@pytest.fixture
def wider(job: Trimmed, kafka_broker: EmbeddedKafka) -> Wider:
    job.__class__ = Wider
    assert isinstance(job, Wider)
    kafka_broker.create_topic(job.second, 1)
    job.feed_second(range(20))
    return job


@pytest.mark.parametrize("kind", ["spark", pytest.param("arrow", marks=pytest.mark.proof)])
def test_a_planned_batch_of_a_topic_that_was_removed_is_said_first_and_led_out_of(
    wider: Wider, die_once_at: Callable[..., None], kind: str
) -> None:
    """No start with availableNow runs it: the topic is gone, and nothing of it was promised."""
    wider.deliver(df=wider.both(kind))
    wider.feed(30)
    wider.feed_second(range(20, 35))
    die_once_at("prepared", df=wider.both(kind))
    wider.remove_second()
    before = sorted(Path(wider.checkpoint).rglob("*.json"))
    person = Person(
        wider.checkpoint,
        ("-b", wider.bootstrap),
        lambda told: wider.deliver(df=wider.both(kind, there=False, **told)),
    )
    with pytest.raises(InputLostError, match=wider.second):
        person.start({})
    assert sorted(Path(wider.checkpoint).rglob("*.json")) == before, "refused after it had begun"
    person.until_it_runs()
    [followed] = person.told
    assert followed.settings == {"failOnDataLoss": "false"}
    assert followed.costs.startswith("15 rows of them")
    seen = wider.visible()
    assert len(set(seen)) == len(seen) == FED + 20 + 30, "all but the 15 that were announced"
    wider.feed(30)
    wider.deliver(df=wider.both(kind, there=False))
    wider.deliver(df=wider.both(kind, there=False))
    assert len(wider.visible()) == FED + 20 + 60


def test_a_promise_of_a_topic_that_was_removed_is_given_up_to_the_row(
    wider: Wider, die_once_at: Callable[..., None]
) -> None:
    die_once_at("decided", df=wider.both("spark"))
    wider.lose_what_is_open()
    wider.remove_second()
    person = Person(wider.checkpoint, ("-b", wider.bootstrap), wider.deliver_with)
    person.until_it_runs()
    assert person.told[0].settings == {"failOnDataLoss": "false", "trigger": "1 second"}
    assert person.told[1].costs == f"{FED + 20} rows"
    assert len(person.told) == 2
    wider.feed(30)
    wider.deliver(df=wider.both("spark", failOnDataLoss="false"))  # until the next batch is there
    wider.feed(30)
    wider.deliver(df=wider.both("spark"))
    assert len(wider.visible()) == 60


def test_a_batch_that_was_planned_before_partitions_came_runs_under_available_now(
    wider: Wider, die_once_at: Callable[..., None]
) -> None:
    """Spark refuses it at each start, by itself: its partitions are not those of now."""
    admin = AdminClient({"bootstrap.servers": wider.bootstrap})

    def grow(partitions: int) -> None:
        for answer in admin.create_partitions([NewPartitions(wider.second, partitions)]).values():
            answer.result(30)

    die_once_at("prepared", df=wider.both("spark"))
    grow(2)
    wider.deliver(df=wider.both("spark"))
    assert len(wider.visible()) == FED + 20
    wider.feed(30)
    die_once_at("decided", df=wider.both("spark"))
    grow(3)
    person = Person(wider.checkpoint, ("-b", wider.bootstrap), wider.deliver_with)
    person.until_it_runs()
    [followed] = person.told
    assert (followed.settings, followed.costs) == ({"trigger": "1 second"}, "")
    assert len(wider.visible()) == FED + 20 + 30
    wider.deliver(df=wider.both("spark"))
