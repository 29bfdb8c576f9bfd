"""What offsets stand for is promised: files by their log, a rate by its beginning and options."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_eos.core.checkpoint import DecisionLog, OffsetLog, claim
from airflow_eos.core.checkpoint.inputs import (
    BatchInput,
    FileLog,
    input_differences,
    require_computed_alike,
    require_held,
)
from airflow_eos.core.checkpoint.snapshot import start_facts
from airflow_eos.core.protocol.decision import Decision, SourceRead, decode, encode
from airflow_eos.errors import ContinuityError, SupersededError
from tests.support.pipelines import kafka_pipeline
from tests.unit.core.checkpoint.conftest import decision

JSON = SourceRead("json", {"path": "/in"})
NOTHING: Any = SimpleNamespace()  # whose files nobody asks for
STAMP = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 7})


def entry(number: int, *names: str, at: int = 1) -> str:
    return "".join(
        f'\n{{"path":"file:///in/{name}","timestamp":{at},"batchId":{number}}}' for name in names
    )


def logged(store, number: int, *names: str) -> None:
    store.put(f"sources/0/{number}", ("v1" + entry(number, *names)).encode())


def compacted(store, last: int, *others: tuple[int, str]) -> None:
    """As Spark does every few numbers: one file of all, and later the others go."""
    text = "v1" + "".join(entry(number, f"{number}%20a") for number in range(last + 1))
    store.put(f"sources/0/{last}.compact", text.encode())
    store.delete([f"sources/0/{number}" for number in range(last + 1)])


def offsets(*ends: Any) -> str:
    return "\n".join(["v1", STAMP, *("-" if e is None else json.dumps(e) for e in ends)])


def delivered(store, batch: int, last: int, *files: str, reads=(JSON,)) -> Decision:
    """A batch over a file source up to ``last``, promised as the driver does it."""
    text = offsets({"logOffset": last})
    store.put(f"offsets/{batch}", text.encode())
    found = BatchInput(
        store, DecisionLog(store), reads, SimpleNamespace(files=lambda: files)
    ).promised(batch, text)
    made = decision(batch, offsets=text, read=found)
    assert DecisionLog(store).record(made)
    return made


def three_batches(store) -> None:
    for batch in range(3):
        logged(store, batch, f"{batch}%20a")
        delivered(store, batch, batch, f"file:/in/{batch} a")


def held(store) -> None:
    require_held(store, DecisionLog(store))


def test_files_that_were_promised_are_those_that_stand(store):
    three_batches(store)
    held(store)
    assert len({DecisionLog(store).of_batch(b)[0].read[0].holds for b in range(3)}) == 3


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "found",
    [
        "v1" + entry(2, "another"),
        "v1" + entry(2, "2%20a", at=2),
        "v1" + entry(2, "2%20a", "another"),
        "v1" + entry(2, "2%20a")[:-9],
        "",
        None,
    ],
    ids=["others", "newer", "more", "cut off", "empty", "gone"],
)
def test_a_late_rename_of_a_file_sources_log_is_refused_by_start_plan_and_page(store, batch, found):
    three_batches(store)
    path = f"sources/0/{batch}"
    store.delete([path])
    if found is not None:
        store.put(path, found.replace('"batchId":2', f'"batchId":{batch}').encode())
    with pytest.raises(ContinuityError, match=f"{path} does not name the files.*batch {batch}"):
        held(store)
    claim(store, kafka_pipeline())
    assert "does not name the files" in str(start_facts(store, cast("Any", NoNames())).refused)
    with pytest.raises(ContinuityError):
        OffsetLog(store, DecisionLog(store)).require_begins_where_promised(3)


class NoNames:
    """A participant that nobody asks."""


def test_what_spark_has_compacted_is_the_same_and_what_it_has_removed_is_not_missed(store):
    three_batches(store)
    before = FileLog(store, "0").digest(0, 2)
    compacted(store, 2)
    assert FileLog(store, "0").digest(0, 2) == before
    held(store)
    logged(store, 3, "3%20a")
    delivered(store, 3, 3, "file:/in/3 a")
    held(store)
    store.put("sources/0/2.compact", ("v1" + entry(2, "another")).encode())
    with pytest.raises(ContinuityError, match=r"sources/0/2 does not name"):
        held(store)


def test_no_more_is_read_than_spark_reads(store):
    """Behind the newest compact file: with a long history a look costs what a short one does."""
    for batch in range(6):
        logged(store, batch, f"{batch}%20a")
        delivered(store, batch, batch, f"file:/in/{batch} a")
    compacted(store, 4)
    store.delete(["eos/decisions/1/1.json"])
    store.put("eos/decisions/1/1.json", b"nobody reads it")
    held(store)


@pytest.mark.parametrize("former", [None, 1], ids=["first", "second"])
def test_a_late_rename_that_spark_has_compacted_is_refused_before_a_promise_rests_on_it(
    store, former
):
    """Spark makes a compact file of what stands in the folder: one replaced entry is in it then."""
    for batch in range(6):
        logged(store, batch, f"{batch}%20a")
        delivered(store, batch, batch, f"file:/in/{batch} a")
        if batch == former:
            compacted(store, batch)
    names = [f"{n}%20a" for n in range(7)]
    names[2] = "another"
    text = "v1" + "".join(entry(number, name) for number, name in enumerate(names))
    store.put("sources/0/6.compact", text.encode())
    with pytest.raises(ContinuityError, match="sources/0/2 does not name the files that batch 2"):
        held(store)
    with pytest.raises(ContinuityError, match="sources/0/2 does not name the files that batch 2"):
        delivered(store, 6, 6, "file:/in/6 a")
    store.put("sources/0/6.compact", text.replace("another", "2%20a").encode())
    delivered(store, 6, 6, "file:/in/6 a")


def test_a_batch_stands_for_all_numbers_since_the_one_before(store):
    logged(store, 0, "a")
    delivered(store, 0, 0, "file:/in/a")
    logged(store, 1, "b")
    logged(store, 2, "c", "d")
    delivered(store, 1, 2, "file:/in/b", "file:/in/c", "file:/in/d")
    held(store)
    logged(store, 1, "z")
    with pytest.raises(ContinuityError, match="batch 1 was delivered"):
        held(store)


def test_a_batch_that_has_no_file_is_promised_as_such(store):
    logged(store, 0, "a")
    delivered(store, 0, 0, "file:/in/a")
    delivered(store, 1, 0)
    held(store)


@pytest.mark.parametrize("evaluated", [["file:/in/b"], [], ["file:/in/a", "file:/in/b"]])
def test_what_is_evaluated_is_what_is_promised_and_not_what_another_put_there(store, evaluated):
    logged(store, 0, "a")
    with pytest.raises(SupersededError, match="other files stand there than Spark evaluates"):
        delivered(store, 0, 0, *evaluated)
    store.delete(["sources/0/0"])
    with pytest.raises(SupersededError, match="0/0 cannot be read"):
        delivered(store, 0, 0, *evaluated)


def test_what_an_older_release_has_promised_is_read_and_taken_at_its_word(store):
    logged(store, 0, "a")
    told = json.loads(encode(decision(0, offsets=offsets({"logOffset": 0}))))
    del told["read"]
    former = json.dumps(told | {"format_version": 1}).encode()
    store.put("eos/decisions/0/1.json", former)
    assert decode(former, Decision, "there").read == ()
    logged(store, 0, "z")
    held(store)


def test_the_beginning_of_a_rate_is_promised(store):
    rate = SourceRead("rate", {"rowspersecond": "1"})
    store.put("sources/0/0", b"v1\n1795849768134")
    text = offsets(5)
    read = BatchInput(store, DecisionLog(store), [rate], NOTHING).promised(0, text)
    assert DecisionLog(store).record(decision(0, offsets=text, read=read))
    held(store)
    require_computed_alike(store, [rate])
    with pytest.raises(ContinuityError, match="rows are computed from these"):
        require_computed_alike(store, [SourceRead("rate", {"rowspersecond": "2"})])
    require_computed_alike(store, [JSON])
    for data in (b"v1\n1795849768135", None):
        store.delete(["sources/0/0"])
        if data is not None:
            store.put("sources/0/0", data)
        with pytest.raises(ContinuityError, match=r"sources/0/0 is not what batch 0"):
            held(store)


def test_kafkas_offsets_are_not_asked_about_and_cost_no_look(troubled, backend):
    text = offsets({"in": {"0": 5}}, None)
    before = dict(backend.calls)
    found = BatchInput(troubled, DecisionLog(troubled), [JSON, JSON], NOTHING).promised(0, text)
    assert [each.holds for each in found] == ["", ""]
    assert dict(backend.calls) == before


def test_sources_that_are_not_told_are_promised_without_a_name(store):
    text = offsets({"in": {"0": 5}}, {"in": {"0": 5}})
    found = BatchInput(store, DecisionLog(store), [JSON], NOTHING).promised(0, text)
    assert found == (SourceRead("", {}), SourceRead("", {}))


# --- two versions ---------------------------------------------------------------------------------

KAFKA = SourceRead("kafka", {"subscribe": "a", "kafka.bootstrap.servers": "k:1"})


def kafka(**options: str) -> SourceRead:
    return SourceRead("kafka", KAFKA.options | {n.replace("_", "."): v for n, v in options.items()})


@pytest.mark.parametrize(
    ("before", "after", "is_sure", "says"),
    [
        ([KAFKA], [kafka(subscribe="a,b")], True, "subscribe is a,b, and was a"),
        ([KAFKA], [SourceRead("kafka", {"subscribepattern": "a"})], True, "subscribepattern"),
        ([KAFKA], [JSON], True, "source 0 is json, and was kafka"),
        ([KAFKA], [KAFKA, KAFKA], True, "it reads 2 sources, and the former version 1"),
        ([JSON], [SourceRead("json", {"path": "/in*"})], True, r"path is /in\*, and was /in"),
        ([JSON], [SourceRead("json", {})], True, "path is not given"),
        ([KAFKA], [kafka(startingoffsets="earliest")], False, "startingoffsets is earliest"),
        ([KAFKA], [kafka(startingtimestamp="7")], False, "startingtimestamp is 7"),
        ([KAFKA], [kafka(kafka_bootstrap_servers="m:1")], False, "is m:1, and was k:1"),
        ([], [KAFKA], False, "was not noted"),
    ],
    ids=lambda value: None if isinstance(value, list | bool) else value,
)
def test_what_is_read_otherwise_is_told_by_name(before, after, is_sure, says):
    found = list(input_differences(before, after))
    assert any(sure is is_sure for sure, _ in found)

    assert re.search(says, " | ".join(why for _, why in found))


def test_what_is_read_alike_differs_in_nothing_whatever_its_offsets_stand_for(store):
    before = [SourceRead("json", JSON.options, "a digest"), KAFKA]
    assert not list(input_differences(before, [JSON, KAFKA]))
