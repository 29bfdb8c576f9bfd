"""A pipeline whose query is written by a Spark Connect client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from airflow_eos.core.settings import SECRET_FILES
from tests.support.connect_server import ConnectServer, die_at, start
from tests.support.pipeline import Pipeline

PATIENCE_S = 300


class Remote(Pipeline):
    """From its topic into its topic, by ``format("eos")``."""

    @property
    def source(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": f"{self.name}-in",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "600",
        }

    @property
    def options(self) -> dict[str, str]:
        return {
            "bootstrap_servers": self.bootstrap,
            "topic": f"{self.name}-out",
            "transactional_id_prefix": self.name,
            "trigger_interval": "available-now",
        }

    def begin(self, session: Any, *, trigger: Mapping[str, Any] | None = None, **told: str) -> Any:
        """Start the query, as a client does."""
        return start(
            session, self.source, self.checkpoint, {**self.options, **told}, trigger=trigger
        )

    def deliver(
        self,
        server: ConnectServer,
        failpoints: str = "",
        *,
        secrets: Path | None = None,
        **told: str,
    ) -> str | None:
        """Run the query until all is read; return what the client was told where it failed.

        ``secrets``: the file that says how to reach databases.
        """
        more = {} if secrets is None else {SECRET_FILES["participants"]: str(secrets)}
        die_at(server.folder, failpoints, **more)
        with server.client() as session:
            query = self.begin(session, trigger=None, **told)
            try:
                assert query.awaitTermination(PATIENCE_S)
            except PySparkException as error:
                return str(error)
            return None
