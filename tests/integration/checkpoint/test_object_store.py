"""The whole store against an S3 server of its own, over plain HTTP on the loopback interface."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest

from airflow_eos.checkpoint import CheckpointStore

pytestmark = pytest.mark.integration

server = pytest.importorskip("moto.server", reason="moto's server is not installed")


@pytest.fixture
def options() -> Iterator[dict[str, str]]:
    s3 = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    s3.start()
    endpoint = "http://{}:{}".format(*s3.get_host_and_port())
    request = urllib.request.Request(f"{endpoint}/bucket", method="PUT")
    urllib.request.urlopen(request, timeout=60).close()
    yield {
        "aws_endpoint": endpoint,
        "aws_allow_http": "true",
        "aws_access_key_id": "key",
        "aws_secret_access_key": "secret",
        "timeout": "60s",
    }
    s3.stop()


def test_a_checkpoint_on_s3_with_client_options_among_the_storage_options(options):
    store = CheckpointStore.open("s3a://bucket/query", storage_options=options)
    store.check_create_if_absent()
    assert store.list("eos") == []
    assert store.create("eos/decisions/7/1.json", b"first") is True
    assert store.create("eos/decisions/7/1.json", b"second") is False
    assert store.get("eos/decisions/7/1.json") == b"first"
    assert store.get("eos/decisions/7/2.json") is None
    assert [entry.name for entry in store.list("eos/decisions/7")] == ["1.json"]
    assert list(store.folders("eos/decisions")) == ["7"]
    store.put("eos/driver.json", b"1")
    store.put("eos/driver.json", b"22")
    assert store.head("eos/driver.json").size == 2
    assert store.delete_folder("eos/decisions/7") is True
    assert store.head("eos/decisions/7/1.json") is None
