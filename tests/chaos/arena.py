"""What histories share: one broker with short patience, the proxy before it, and topics."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import psycopg
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from airflow_eos.local import EmbeddedKafka
from airflow_eos.local.broker import Node, free_ports
from tests.chaos.proxy import Proxy
from tests.chaos.readers import everything
from tests.chaos.scenario import EXPIRY_S
from tests.support.servers.postgres import EmbeddedPostgres
from tests.support.stores import Where

OUT_PARTITIONS = 3
ABORT_LOOK_MS = 200


class ChaosKafka(EmbeddedKafka):
    """A broker with a second listener whose advertised port is the proxy's."""

    def __init__(self, features: dict[str, int] | None = None) -> None:
        [self.proxy_port] = free_ports(1)
        self.broker_port = 0
        soon = {
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(ABORT_LOOK_MS),
            "transactional.id.expiration.ms": str(int(EXPIRY_S * 1000)),
            "transaction.remove.expired.transaction.cleanup.interval.ms": str(ABORT_LOOK_MS),
        }
        super().__init__(
            {**soon, "log.cleaner.enable": "false", "file.delete.delay.ms": "1000"},
            listeners={"PROXY": "PLAINTEXT"},
            features=features,
        )

    def _format(self, nodes: Sequence[Node]) -> None:
        ports = nodes[0].ports
        self.broker_port = ports["PROXY"]
        self._properties["advertised.listeners"] = (
            f"PLAINTEXT://127.0.0.1:{ports['PLAINTEXT']},PROXY://127.0.0.1:{self.proxy_port}"
        )
        super()._format(nodes)


_when_the_broker_is_back: Any = retry(
    retry=retry_if_exception_type((KafkaException, KafkaError, OSError)),
    stop=stop_after_delay(120),
    wait=wait_fixed(0.2),
    reraise=True,
)
"""For who asks while some history has the broker killed and started again."""


class Arena:
    """A context manager; ``folder`` is where each history leaves its own.

    ``where`` is where their checkpoints are: there too, unless it is said.
    """

    def __init__(
        self, folder: Path, features: dict[str, int] | None = None, where: Where | None = None
    ) -> None:
        self.folder = folder
        self.where = where or Where(str(folder))
        self._features = features
        self._resources = ExitStack()
        self._moving = threading.Lock()
        self._asking = threading.Lock()
        self._database = threading.Lock()
        self._postgres: EmbeddedPostgres | None = None
        self._away_s = 0.0

    def __enter__(self) -> Self:
        for talkative in ("kafka", "werkzeug"):  # the latter tells each request to moto
            logging.getLogger(talkative).setLevel(logging.CRITICAL)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.broker = self._resources.enter_context(ChaosKafka(self._features))
        self.proxy = self._resources.enter_context(
            Proxy(self.broker.proxy_port, self.broker.broker_port)
        )
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self._listing = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        return self

    def __exit__(self, *_: object) -> None:
        self._listing.close()
        self._resources.close()

    @property
    def postgres(self) -> EmbeddedPostgres:
        """One server for all histories that deliver there, started for the first of them."""
        with self._database:
            if self._postgres is None:
                many = {"max_connections": "200"}
                server = EmbeddedPostgres(max_prepared_transactions=400, settings=many)
                self._postgres = self._resources.enter_context(server)
            return self._postgres

    def restart_postgres(self, away_s: float) -> None:
        """As a crash would end it; then nobody is there for a while."""
        server = self.postgres
        with self._database:
            server.stop(how=signal.SIGQUIT)
            time.sleep(away_s)
            server.start()

    def tell_postgres(self, statement: str) -> bool:
        """As its owner, beside all others; False where it had to wait for them too long."""
        ours = "-c lock_timeout=2s -c statement_timeout=0 -c default_transaction_read_only=off"
        server = self.postgres
        with self._database, psycopg.connect(server.dsn, autocommit=True, options=ours) as asked:
            try:
                asked.execute(statement)
            except psycopg.errors.LockNotAvailable:
                return False
            return True

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap_servers

    def create_topics(self, names: Sequence[str]) -> None:
        """Many at once: one request, and one wait for the leaders."""
        with self._moving:
            topics = [NewTopic(name, num_partitions=OUT_PARTITIONS) for name in names]
            for created in self._admin.create_topics(topics, operation_timeout=30).values():
                created.result(60)
            everything(self.bootstrap, names[-1], OUT_PARTITIONS)

    def delete_topics(self, names: Sequence[str]) -> None:
        with self._moving:
            self._admin.delete_topics(list(names))

    def delete_rows(self, topic: str, ends: dict[int, int]) -> None:
        """What retention does, now: everything below ``ends`` is gone."""
        places = [TopicPartition(topic, p, offset) for p, offset in ends.items()]
        for deleted in self._admin.delete_records(places).values():
            deleted.result(30)

    def restart_broker(self) -> None:
        """SIGKILL, then start again; its pages are the system's and survive."""
        with self._moving:
            gone = time.monotonic()
            self.broker.kill()
            self.broker.start(1)
            self._away_s += time.monotonic() - gone

    @_when_the_broker_is_back
    def offsets(self, topic: str, *, stable: bool) -> dict[int, int]:
        """The last stable offset, or the high watermark, of each partition."""
        level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        places = [TopicPartition(topic, p) for p in range(OUT_PARTITIONS)]
        # A client of its own: librdkafka's keeps asking with the leader epoch of before a restart.
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        asked = admin.list_offsets(
            dict.fromkeys(places, OffsetSpec.latest()), isolation_level=level, request_timeout=20
        )
        return {place.partition: found.result(30).offset for place, found in asked.items()}

    @_when_the_broker_is_back
    def open_transactions(self, prefix: str) -> list[str]:
        """Ids under the prefix that are not at an end, asked with another client than the app's."""
        with self._asking:
            listed = self._listing.list_transactions(transactional_id_pattern=f"{prefix}-.*")
        found = [each for entries in listed.values() for each in entries]
        return sorted(
            each.transactional_id
            for each in found
            if each.state.value not in {"Empty", "CompleteCommit", "CompleteAbort"}
        )

    def at_rest(
        self, topic: str, prefix: str, bound_s: float, elsewhere: Callable[[], list[str]]
    ) -> dict[str, object]:
        """The end of the topic once nothing is open and all is stable, or when time is up.

        The time that the broker is away meanwhile, which other histories do, does not count.
        ``elsewhere`` lists what is open in other systems.
        """
        deadline, away_s = time.monotonic() + bound_s, self._away()
        while True:
            left = [*self.open_transactions(prefix), *elsewhere()]
            stable = self.offsets(topic, stable=True)
            end = self.offsets(topic, stable=False)
            now = time.monotonic()
            if (not left and stable == end) or now > deadline + self._away() - away_s:
                return {"open": left, "stable": stable, "end": end}
            time.sleep(0.05)

    def _away(self) -> float:
        """How long the broker has been away altogether, a restart that goes on included."""
        with self._moving:
            return self._away_s
