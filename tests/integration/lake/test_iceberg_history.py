"""A batch costs the same whatever the age of its table, whose former snapshots stay."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.serializers import FromByteStream
from pyiceberg.types import LongType
from pyiceberg.types import StringType as StringType_
from pyspark.sql.types import LongType as SparkLong
from pyspark.sql.types import StringType, StructField, StructType
from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.iceberg import history
from airflow_eos.kinds.iceberg.participant import reached
from tests.integration.lake.kinds import ICEBERG as KIND
from tests.integration.lake.stage import SCHEMA, Stage

AGE = 200


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(KIND, tmp_path).made()


def aged(stage: Stage, snapshots: int = AGE) -> list[int]:
    """Give the table former snapshots; return the ids of all."""
    for number in range(2):
        with closing(KIND.catalog(stage.table)) as catalog:
            table = catalog.load_table("db.rows")
            table.append(pa.table({"key": ["old"], "value": [-number]}, SCHEMA))
            place = Path(table.metadata_location.removeprefix("file://"))
    told = json.loads(place.read_text())
    first, head = told["snapshots"]
    of_age = [
        {**first, "snapshot-id": 10**18 + n, "sequence-number": n, "timestamp-ms": 10 + n}
        for n in range(snapshots)
    ]
    told["snapshots"] = [*of_age, first, head]
    former = [{name: one[name] for name in ("snapshot-id", "timestamp-ms")} for one in of_age]
    told["snapshot-log"] = [*former, *told["snapshot-log"]]
    place.write_text(json.dumps(told))
    return [one["snapshot-id"] for one in told["snapshots"]]


def stored(stage: Stage) -> dict[str, Any]:
    with closing(KIND.catalog(stage.table)) as catalog:
        place = catalog.load_table("db.rows").metadata_location
    found: dict[str, Any] = json.loads(Path(place.removeprefix("file://")).read_text())
    return found


@pytest.mark.parametrize("parts", [2, 64])
def test_a_commit_leaves_all_former_snapshots_and_the_log_of_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, parts: int
):
    monkeypatch.setattr(history, "_PARTS", parts)
    ids = aged(stage)
    before = stored(stage)
    for batch in range(2):
        work = stage.prepare(batch)
        stage.decide(work, batch=batch)
        assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    after = stored(stage)
    assert [one["snapshot-id"] for one in after["snapshots"]][: len(ids)] == ids
    assert after["snapshots"][: len(ids)] == before["snapshots"]
    assert after["snapshot-log"][: len(before["snapshot-log"])] == before["snapshot-log"]
    added = [one["snapshot-id"] for one in after["snapshots"]][len(ids) :]
    assert [one["snapshot-id"] for one in after["snapshot-log"]][-2:] == added
    assert not any("without" in name for name in after["properties"])
    assert stage.values() == {0: 2, 1: 1, -1: 1}
    with closing(KIND.catalog(stage.table)) as catalog:
        old = catalog.load_table("db.rows").scan(snapshot_id=ids[0]).to_arrow()
    assert old["value"].to_pylist() == [0], "readers go back in time"


def test_a_batch_parses_no_former_snapshot(stage: Stage, monkeypatch):
    aged(stage)
    parsed: list[int] = []
    read = FromByteStream.table_metadata

    def counted(*given: Any, **named: Any) -> Any:
        found = read(*given, **named)
        parsed.append(len(found.snapshots))
        return found

    monkeypatch.setattr(FromByteStream, "table_metadata", counted)
    participant = stage.participant()
    for batch in range(3):
        del parsed[:]
        work = stage.prepare(batch)
        participant.require_decidable([work])
        stage.decide(work, batch=batch)
        assert participant.commit([work]) == {work.identity: Outcome.COMMITTED}
        whole = [number for number in parsed if number > 1]
        assert len(whole) == (batch == 0), "the witness is looked for in all, once in a process"


def test_manifests_are_merged_where_no_property_says_so(stage: Stage):
    """Else each batch would read and write as many as there were batches before."""
    told = {"commit.manifest.min-count-to-merge": "4"}
    with closing(KIND.catalog(stage.table)) as catalog:
        catalog.load_table("db.rows").transaction().set_properties(told).commit_transaction()
    participant = stage.participant()
    for batch in range(12):
        work = stage.prepare(batch)
        stage.decide(work, batch=batch)
        participant.commit([work])
    with closing(KIND.catalog(stage.table)) as catalog:
        table = catalog.load_table("db.rows")
    head = table.current_snapshot()
    assert head is not None
    assert len(head.manifests(table.io)) <= 4
    assert "commit.manifest-merge.enabled" not in table.properties
    assert stage.values().total() == 12


def test_another_writer_in_between_keeps_its_snapshot(stage: Stage):
    ids = aged(stage)
    work = stage.promised(1)
    participant = stage.participant()
    participant.require_decidable([work])
    with closing(KIND.catalog(stage.table)) as catalog:
        catalog.load_table("db.rows").append(pa.table({"key": ["their"], "value": [9]}, SCHEMA))
    assert participant.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert len(stored(stage)["snapshots"]) == len(ids) + 2
    assert stage.values() == {0: 1, -1: 1, 1: 1, 9: 1}


def test_a_witness_that_was_lowered_is_looked_for_in_all_snapshots(stage: Stage):
    """Its decision is done; by the property alone, another process would do it again."""
    participant = stage.participant()
    works = [stage.prepare(batch) for batch in range(2)]
    for batch, work in enumerate(works):
        stage.decide(work, batch=batch)
        participant.commit([work])
    with closing(KIND.catalog(stage.table)) as catalog:
        table = catalog.load_table("db.rows")
        (slot,) = (key for key in table.properties if key.startswith("eos."))
        table.transaction().set_properties({slot: "1"}).commit_transaction()
        catalog.load_table("db.rows").append(pa.table({"key": ["their"], "value": [9]}, SCHEMA))
    for each in (participant, stage.participant()):
        assert each.commit([works[1]]) == {works[1].identity: Outcome.COMMITTED}
    assert stage.values() == {0: 1, 1: 1, 9: 1}


def test_an_abort_asks_all_snapshots_for_its_files(stage: Stage):
    """Readers can go back to a former one, so its files stay."""
    work = stage.prepare(1)
    path = stage.file(work)
    kept = path.read_bytes()
    stage.decide(work)
    participant = stage.participant()
    participant.commit([work])
    KIND.clear(stage.table)
    assert path.read_bytes() == kept
    for batch in range(5, 30):  # older decisions are not looked at
        stage.decide(batch=batch)
    assert participant.abort([work.identity]) == {work.identity: False}
    assert path.read_bytes() == kept


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda told: told["metadata-log"].clear(), "was not made of"),
        (lambda told: told["metadata-log"][-1].update({"metadata-file": "x"}), "was not made of"),
        (lambda told: told["snapshots"].clear(), "are to go"),
    ],
)  # fmt: skip
def test_nothing_is_written_that_would_lose_a_snapshot(
    stage: Stage, change: Callable[[dict[str, Any]], None], why: str
):
    """The library might make metadata in another way one day."""
    aged(stage)
    with closing(reached("default", KIND.properties(stage.table))) as catalog:
        table = catalog.load_table("db.rows")
        told = json.loads(table.metadata.model_dump_json())
        told["metadata-log"].append({"metadata-file": table.metadata_location, "timestamp-ms": 0})
        assert table.io.new_input(table.metadata_location).exists()
        change(told)
        file = table.io.new_output(f"{table.metadata_location}.new.metadata.json")
        with pytest.raises(ValueError, match=why), file.create() as out:
            out.write(json.dumps(told).encode())
        assert not file.exists()


class _Answers(BaseAdapter):
    def __init__(self, body: bytes, status: int = 200) -> None:
        super().__init__()
        self.body, self.status = body, status

    def send(self, request: PreparedRequest, *_: Any, **__: Any) -> Response:
        found = Response()
        found.status_code, found.request, found.url = self.status, request, str(request.url)
        found.encoding = "utf-8"
        found.raw = HTTPResponse(io.BytesIO(self.body), preload_content=False)
        return found

    def close(self) -> None:
        pass


class _Rest:
    def __init__(self) -> None:
        self.properties: dict[str, str] = {}
        self._session = Session()


def replied(body: Any, status: int = 200) -> Any:
    catalog: Any = _Rest()
    history.leave_out(catalog)
    assert catalog.properties["snapshot-loading-mode"] == "refs"
    catalog._session.mount("http://", _Answers(json.dumps(body).encode(), status))
    answer = catalog._session.post("http://catalog/")
    assert answer.status_code == status
    return answer.json()


def test_a_reply_with_all_snapshots_is_read_without_the_former(stage: Stage):
    aged(stage)
    told = stored(stage)
    found = replied({"metadata-location": "here", "metadata": told, "config": {"a": "b"}})
    assert [one["snapshot-id"] for one in found["metadata"]["snapshots"]] == [
        told["current-snapshot-id"]
    ]
    left = {"snapshots", "snapshot-log"}
    assert {k: v for k, v in found["metadata"].items() if k not in left} == {
        k: v for k, v in told.items() if k not in left
    }
    assert (found["metadata-location"], found["config"]) == ("here", {"a": "b"})


def test_other_replies_stay_as_they_are():
    for body, status in (({"error": {"message": '"snapshots"'}}, 409), ({"snapshots": [1]}, 200)):
        assert replied(body, status) == body


def test_a_reply_in_pieces_is_read_whole_and_one_that_is_cut_off_is_none():
    """A commit's reply has all snapshots, in a thousand pieces that cost more than to read it."""
    pieces = [b'{"a":"', b"x" * 10_000, b'"}']
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces)
    for sent, is_whole in ((chunked + b"0\r\n\r\n", True), (chunked[:-9], False)):
        cut_off = pytest.raises(HTTPError, match="IncompleteRead")
        with socket.create_server(("127.0.0.1", 0)) as server:
            answering = threading.Thread(target=_answer, args=(server, sent))
            answering.start()
            catalog: Any = _Rest()
            history.leave_out(catalog)
            with contextlib.nullcontext() if is_whole else cut_off:
                answer = catalog._session.get(f"http://127.0.0.1:{server.getsockname()[1]}/")
                assert answer.json() == {"a": "x" * 10_000}
            answering.join()


def _answer(server: socket.socket, sent: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + sent)


def test_a_column_made_anew_after_the_look_before_the_decision_is_seen(stage: Stage):
    """The commit is tried on that look first, and a change of columns adds no snapshot."""
    participant = stage.participant()
    for batch in range(2):  # the first looks again, for the witness
        work = stage.prepare(batch)
        participant.require_decidable([work])
        stage.decide(work, batch=batch)
        if not batch:
            participant.commit([work])
    with closing(KIND.catalog(stage.table)) as catalog:
        for change in ("delete", "add"):
            with catalog.load_table("db.rows").update_schema() as update:
                if change == "delete":
                    update.delete_column("value")
                else:
                    update.add_column("value", LongType())
    with pytest.raises(ConfigurationError, match="dropped and made again"):
        participant.commit([work])
    assert stage.values() == {None: 1}


def test_a_batch_asks_the_catalog_twice_and_commits_once(stage: Stage, monkeypatch):
    """Before the first row, and before the decision; the reply to the commit tells its outcome."""
    asked: list[str] = []
    for name in ("load_table", "commit_table"):
        act = getattr(SqlCatalog, name)

        def counted(*given: Any, act: Any = act, name: str = name, **named: Any) -> Any:
            asked.append(name)
            return act(*given, **named)

        monkeypatch.setattr(SqlCatalog, name, counted)
    participant, sink = stage.participant(), stage.sink
    columns = StructType([StructField("key", StringType()), StructField("value", SparkLong())])
    for batch in range(3):
        del asked[:]
        sink.columns(columns)
        writer = sink.opened(0, 0)
        writer.write(pa.RecordBatch.from_pydict({"key": ["k"], "value": [batch]}, SCHEMA))
        work = writer.prepare("0" * 32)
        participant.require_decidable([work])
        stage.decide(work, batch=batch)
        assert participant.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert asked == ["load_table", "load_table", "commit_table", "load_table"], "the last its own"


def test_manifests_of_a_former_spec_whose_column_is_gone_hinder_no_commit(stage: Stage):
    """They are merged as well, and their values have no column any more."""

    def change(act: Callable[[Any], Any]) -> None:
        with closing(KIND.catalog(stage.table)) as catalog:
            act(catalog.load_table("db.rows"))

    def evolve(table: Any) -> None:
        with table.update_schema() as update:
            update.add_column("gone", StringType_())
        with table.update_spec() as spec:
            spec.add_field("gone", "identity")

    change(evolve)
    rows = pa.table({"key": ["k"], "value": [0], "gone": ["g"]})
    for _ in range(3):
        change(lambda table: table.append(rows))

    def forget(table: Any) -> None:
        with table.update_spec() as spec:
            spec.remove_field("gone")
        with table.update_schema() as update:
            update.delete_column("gone")

    change(forget)
    for batch in range(2):
        work = stage.prepare(7)
        stage.decide(work, batch=batch)
        assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
