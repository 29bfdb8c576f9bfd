"""A client is told what its query is refused for, before Spark plans a batch of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from airflow_eos.core.checkpoint import CheckpointStore, drain_newest, newest_term
from tests.integration.connect.remote import PATIENCE_S
from tests.support.connect_server import die_at
from tests.support.pipeline import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def client(server):
    die_at(server.folder, "")
    with server.client() as session:
        yield session


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"transaction_timeot": "5 minutes"}, "transaction_timeout"),
        ({"topic": "nowhere-to-be-found"}, "nowhere-to-be-found"),
        ({"transaction_timeout": "10 days"}, "transaction.max.timeout.ms"),
        ({"outputs": '[{"name": "a", "kind": "kafak"}]'}, "kafka"),
    ],
)
def test_a_query_that_cannot_work_is_refused_where_the_client_starts_it(remote, client, told, says):
    with pytest.raises(PySparkException, match=says):
        remote.begin(client, **told)
    assert not list(Path(remote.checkpoint).glob("offsets/*")), "and no batch was planned"
    assert not list(Path(remote.checkpoint).glob("eos/drivers/*")), "nor a term taken"


def test_columns_to_partition_by_are_refused_and_not_dropped(remote, client):
    rows = client.readStream.format("kafka").options(**remote.source).load()
    writer = rows.select("key", "value").writeStream.format("eos").options(**remote.options)
    with pytest.raises(PySparkException, match=r"no option 'partitionby'.*output of files"):
        writer.partitionBy("key").option("checkpointLocation", remote.checkpoint).start()


def test_a_server_whose_python_lacks_the_package_says_which_python_it_takes(remote, client, server):
    (server.folder / "failpoints").write_text("exit 3\n")
    with pytest.raises(PySparkException, match=r"status 3.*PYSPARK_PYTHON"):
        remote.begin(client)


def test_a_checkpoint_of_another_pipeline_is_refused(remote, client, server):
    assert remote.deliver(server) is None
    with pytest.raises(PySparkException, match="OwnershipError"):
        remote.begin(client, transactional_id_prefix=f"{remote.name}-other")
    remote.assert_exactly_once()


def test_a_query_with_another_trigger_than_its_sink_was_told_delivers_nothing(remote, client):
    query = remote.begin(client, trigger={"processingTime": "1 second"})
    with pytest.raises(PySparkException, match="trigger_interval"):
        query.awaitTermination(PATIENCE_S)
    assert remote.visible() == []


def test_a_client_may_be_gone_and_a_drain_ends_the_query_without_an_error(remote, server):
    die_at(server.folder, "")
    store = CheckpointStore.open(remote.checkpoint)
    with server.client() as session:
        query = remote.begin(
            session, trigger={"processingTime": "0 seconds"}, trigger_interval="0 seconds"
        )
        wait_until(lambda: len(remote.visible()) == 1500, what="the rows")
        drain_newest(store, requested_by="ada", reason="to see it end")
        assert query.awaitTermination(PATIENCE_S)
        assert query.exception() is None
    assert newest_term(store) == 1
    remote.assert_exactly_once()
