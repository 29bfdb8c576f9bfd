"""Kafka and two lake tables in a bucket behind one decision, which others look after meanwhile."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, RESTError, ValidationException

from airflow_eos.sinks import DeltaSink, IcebergSink, Output
from tests.support.kinds.one import TABLE, Delta, Kafka, decoded, noted
from tests.support.kinds.place import Place, Row, Rows, Rowwise


class KafkaIcebergAndDelta(Rowwise):
    """A partitioned Iceberg table by a REST catalog, and a Delta table, both on S3."""

    servers = ("kafka", "lake")
    own_places = Delta.own_places

    def __init__(self) -> None:
        self._kafka = Kafka()

    def create(self, at: Place) -> None:
        bucket = _told(at)["url"]
        with closing(self._catalog(at)) as catalog:
            catalog.create_namespace_if_not_exists("db")
            location = f"{bucket}/{at.tag}/iceberg"
            # An optimizer that was overtaken begins again, and never commits what it read before.
            properties = {"commit.retry.num-retries": "0"}
            name = f"db.{at.tag}"
            table = catalog.create_table(name, TABLE, location, properties=properties)
            with table.update_spec() as spec:
                spec.add_field("key", "bucket[3]")
        DeltaTable.create(self._delta(at), TABLE, storage_options=_told(at)["options"])

    def sink(self, at: Place) -> list[Output]:
        options = _told(at)["options"]
        iceberg = IcebergSink(f"db.{at.tag}", self._properties(at), application_id=at.tag)
        delta = DeltaSink(self._delta(at), application_id=at.tag, storage_options=options)
        return [
            Output("orders", self._kafka.sink(at)),
            Output("iceberg", iceberg),
            Output("delta", delta),
        ]

    def reach(self, at: Place) -> dict[str, Any]:
        return {"iceberg": self._properties(at), "delta": _told(at)["options"]}

    def read(self, at: Place) -> dict[str, Rows]:
        with closing(self._catalog(at)) as catalog:
            iceberg = catalog.load_table(f"db.{at.tag}").scan().to_arrow()
        return {
            "orders": self._kafka.read(at)["sink"],
            "iceberg": decoded(iceberg),
            "delta": decoded(self._opened(at).to_pyarrow_table()),
        }

    def expected(self, fed: Iterable[Row]) -> dict[str, Rows]:
        rows = Counter(fed)
        return {"orders": rows, "iceberg": rows, "delta": rows}

    def left(self, at: Place) -> int:
        return self._kafka.left(at) + noted(at)

    @contextmanager
    def beside(self, at: Place) -> Iterator[None]:
        """Both tables are compacted and cleaned without a pause, by others."""
        over, failed = threading.Event(), []

        def run() -> None:
            try:
                while not over.wait(0.5):
                    self._optimize(at)
            except Exception as error:  # noqa: BLE001 - told below
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        assert failed == [], "the optimizer ran to the end"

    def _optimize(self, at: Place) -> None:
        for act in (self._compact_iceberg, self._expire_iceberg, self._optimize_delta):
            _unless_overtaken(lambda act=act: act(at))  # type: ignore[misc]

    def _compact_iceberg(self, at: Place) -> None:
        with closing(self._catalog(at)) as catalog:
            table = catalog.load_table(f"db.{at.tag}")
            if table.current_snapshot() is not None:
                table.overwrite(table.scan().to_arrow())

    def _expire_iceberg(self, at: Place) -> None:
        with closing(self._catalog(at)) as catalog:
            table = catalog.load_table(f"db.{at.tag}")
            table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()

    def _optimize_delta(self, at: Place) -> None:
        table = self._opened(at)
        table.optimize.compact()
        table.create_checkpoint()
        table.vacuum(dry_run=False)

    def _opened(self, at: Place) -> DeltaTable:
        return DeltaTable(self._delta(at), storage_options=_told(at)["options"])

    def _delta(self, at: Place) -> str:
        return f"{_told(at)['url']}/{at.tag}/delta"

    def _catalog(self, at: Place) -> Catalog:
        return load_catalog("default", **self._properties(at))

    def _properties(self, at: Place) -> dict[str, str]:
        told = _told(at)
        return {
            "type": "rest",
            "uri": told["catalog"],
            "s3.endpoint": told["options"]["aws_endpoint"],
            "s3.region": told["options"]["aws_region"],
        }


def _told(at: Place) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(at.servers["lake"])
    return found


def _unless_overtaken(act: Callable[[], None]) -> None:
    try:
        act()
    except (CommitFailedException, ValidationException, RESTError, DeltaError):
        return
