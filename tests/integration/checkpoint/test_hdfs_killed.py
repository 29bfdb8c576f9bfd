"""HDFS dies, and stands still, under a checkpoint."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.errors import StoreError
from tests.support.servers.hdfs import EmbeddedHdfs

pytestmark = pytest.mark.cluster
DECISION = "eos/decisions/7/1.json"


def test_a_decision_outlives_hdfs_and_nobody_reads_its_silence_as_absent() -> None:
    with EmbeddedHdfs() as hdfs:
        store = CheckpointStore.open(f"{hdfs.url}/query", storage_options={"timeout": "3s"})
        assert store.create(DECISION, b"decided") is True

        servers = psutil.Process(hdfs._process.pid).children(recursive=True)
        for server in servers:
            os.kill(server.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(StoreError, match="did not answer within 3 s"):
            store.get(DECISION)
        assert time.monotonic() - began < 30
        for server in servers:
            os.kill(server.pid, signal.SIGCONT)
        assert store.get(DECISION) == b"decided"

        hdfs.kill()
        with pytest.raises(StoreError, match=r"reading .* failed"):
            store.get(DECISION)
        hdfs.start()
        store = CheckpointStore.open(f"{hdfs.url}/query", storage_options={"timeout": "30s"})
        assert store.get(DECISION) == b"decided"
        assert store.create(DECISION, b"other") is False
        assert store.create("eos/decisions/7/2.json", b"next") is True
