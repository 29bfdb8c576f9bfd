"""Five outputs of a Connect client's query, named by its options: all get a batch, once."""

from __future__ import annotations

import json
from collections import Counter

import psycopg
import pyarrow.parquet as pq
import pytest

from tests.integration.connect.remote import Remote
from tests.support.kinds import kind_called
from tests.support.kinds.one import decoded
from tests.support.kinds.place import Place, Rows
from tests.support.topics import read_topic

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]


@pytest.fixture
def at(servers, remote) -> Place:
    reached = servers.of(("postgres", "kafka"))
    place = Place("kafka", remote.name, str(remote.folder), reached)
    kind_called("postgres").create(place)
    kind_called("delta").create(place)
    with psycopg.connect(reached["postgres"], autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE {remote.name}_newest (key bytea PRIMARY KEY, value bytea, "
            "eos_version text)"
        )
    return place


def outputs(remote: Remote, at: Place) -> str:
    target = {"target": f"{remote.name}_newest", "key": ["key"]}
    return json.dumps(
        [
            {"name": "topic", "kind": "kafka", "topic": f"{remote.name}-out"},
            {"name": "files", "kind": "files", "folder": str(at.out.parent / "files")},
            {"name": "table", "kind": "postgres", "table": remote.name},
            {"name": "lake", "kind": "delta", "table_uri": str(at.out)},
            {"name": "newest", "kind": "upsert", "system": "postgres", **target},
        ]
    )


def seen(remote: Remote, at: Place) -> dict[str, Rows]:
    files: Rows = Counter()
    for file in (at.out.parent / "files").glob("*.parquet"):
        files += decoded(pq.ParquetFile(file).read())
    return {
        "topic": Counter(read_topic(remote.bootstrap, f"{remote.name}-out")),
        "files": files,
        "table": kind_called("postgres").read(at)["sink"],
        "lake": kind_called("delta").read(at)["sink"],
    }


@pytest.mark.parametrize(
    "place", ["prepared", "prepared@2", "decided", "decided@2", "settled", "settled@2"]
)
def test_a_driver_that_dies_anywhere_leaves_no_output_behind(remote, server, at, tmp_path, place):
    secrets = tmp_path / "participants.json"
    secrets.write_text(json.dumps(dict.fromkeys(("postgres", "newest"), at.servers["postgres"])))
    told = {"outputs": outputs(remote, at), "secrets": secrets}
    name, _, nth = place.partition("@")
    failed = remote.deliver(server, f"{name}=kill{'@' + nth if nth else ''}", **told)
    assert failed is not None
    assert remote.deliver(server, **told) is None

    expected = Counter(remote.expected)
    assert seen(remote, at) == dict.fromkeys(("topic", "files", "table", "lake"), expected)
    with psycopg.connect(at.servers["postgres"]) as connection:
        found = connection.execute(f"SELECT key, value FROM {remote.name}_newest").fetchall()
    newest = {key.decode(): value.decode() for key, value in found}
    assert newest == dict(remote.expected), "the last row of each key"
    assert remote.open_transactions() == ()
