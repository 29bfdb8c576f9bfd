"""An embedded Kafka cluster: real brokers on this machine, gone with whoever started them."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.classes import class_archive
from airflow_eos.local.client import create_topic, live_brokers
from airflow_eos.local.embedded import Embedded
from airflow_eos.local.layout import HOST, PLAIN, Node, lay_out, new_cluster_id, server_properties
from airflow_eos.local.node import BrokerProcess

AT_FULL_SPEED = ("-XX:TieredStopAtLevel=4",)

_READY_SECONDS = 180.0  # on a machine that stands still for a while now and then
_PORT_ATTEMPTS = 3  # another process can take a port between our look and the broker's bind
_KEPT_LOGS = 20  # runs


class EmbeddedKafka(Embedded):
    """Kafka in KRaft mode on the loopback interface; a context manager.

    Data lives in a temporary folder and is removed at the end, unless ``folder`` names one that
    stays; logs are kept (``log_folder``).
    No broker outlives this process, whatever ends it.

    Args:
        properties: entries for ``server.properties``, which win over ours.
        brokers: number of nodes, each broker and controller; heap 512 MiB for one, else 256 each.
        features: levels for formatting, as ``{"transaction.version": 1}``; the release's own else.
        listeners: further listeners, name to security protocol, as ``{"SASL": "SASL_PLAINTEXT"}``;
            configure them in ``properties``, address them with ``addresses``.
        java_options: further options for the JVM, which win over ours; ``AT_FULL_SPEED`` for a
            broker that is measured or lives long, for ours are those of a broker of minutes.
        port: of the first node's plain listener; another one where it is taken, or None.
        folder: where the data is and stays, for the next start; None: it goes at the end.

    Attributes:
        bootstrap_servers: addresses of the plain listener of every node, once started.
        cluster_id: the cluster's id.
        log_folder: where the logs are and stay.

    Raises:
        LocalEnvironmentError: from ``start``: no Java, no jars, or a broker that does not come up.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        brokers: int = 1,
        features: Mapping[str, int] | None = None,
        listeners: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        port: int | None = None,
        folder: Path | None = None,
    ) -> None:
        self._properties = dict(properties or {})
        self._count = brokers
        self._features = dict(features or {})
        self._listeners = dict(listeners or {})
        self._java_options = tuple(java_options)
        self._port = port
        self._folder = folder
        self._data: Path | None = None
        self._processes: dict[int, BrokerProcess] = {}
        self.cluster_id = new_cluster_id() if folder is None else _cluster_id_of(folder)
        self.log_folder = _log_root() / f"{time.strftime('%Y%m%d-%H%M%S')}-{self.cluster_id[:8]}"

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of the plain listener, comma-separated."""
        return self.addresses(PLAIN)

    @property
    def running(self) -> bool:
        """Whether the process of every node lives."""
        return all(process.running for process in self._processes.values())

    def addresses(self, listener: str) -> str:
        """Addresses of one listener on every node, comma-separated."""
        return ",".join(_address(p.node, listener) for p in self._processes.values())

    def start(self, node: int | None = None) -> None:
        """Start the cluster, or one node that was stopped or killed; returns when it is ready.

        Raises:
            LocalEnvironmentError: no Java, no jars, or a broker that does not come up.
        """
        if node is not None:
            self._processes[node].start()
            self._wait_until_ready()
            return
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._start_all()
            except BaseException as error:  # Ctrl-C too must leave nothing behind
                taken = any("BindException" in p.log_tail(50) for p in self._processes.values())
                self.close()
                if not (isinstance(error, LocalEnvironmentError) and taken):
                    raise
                if attempt == _PORT_ATTEMPTS:
                    raise
            else:
                return

    def stop(self, node: int = 1) -> None:
        """End one node cleanly; its data stays for ``start(node)``."""
        self._processes[node].stop()

    def kill(self, node: int = 1) -> None:
        """End one node with SIGKILL; its data stays for ``start(node)``."""
        self._processes[node].kill()

    def close(self) -> None:
        """End every node and remove the data; the logs stay. Closing twice is harmless."""
        for process in self._processes.values():
            if self._folder is not None:
                process.stop()
            process.kill()  # data that goes anyway needs no clean stop, which takes time
        if self._data is not None and self._folder is None:
            shutil.rmtree(self._data, ignore_errors=True)

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic and wait until every partition has a leader.

        Args:
            name: name of the topic.
            partitions: number of partitions.
            config: entries of the topic's configuration.

        Returns:
            The name.

        Raises:
            LocalEnvironmentError: the broker refused.
        """
        create_topic(self.bootstrap_servers, name, partitions, config or {})
        return name

    def _start_all(self) -> None:
        _prune_logs()
        self._data = self._folder or Path(tempfile.mkdtemp(prefix="airflow-eos-kafka-"))
        shutil.rmtree(self.log_folder, ignore_errors=True)
        nodes = lay_out(self._count, self._data, self.log_folder, list(self._listeners), self._port)
        heap = 512 if self._count == 1 else 256
        options = (f"-XX:SharedArchiveFile={class_archive()}", *self._java_options)
        self._processes = {
            n.id: BrokerProcess(n, heap, options, kept=self._folder is not None) for n in nodes
        }
        self._format(nodes)
        for process in self._processes.values():
            process.start()
        self._wait_until_ready()

    def _format(self, nodes: Sequence[Node]) -> None:
        running = [
            (
                process,
                process.start_format(
                    server_properties(process.node, nodes, self._listeners, self._properties),
                    self.cluster_id,
                    self._features,
                ),
            )
            for process in self._processes.values()
        ]
        for process, formatting in running:
            if formatting.wait(_READY_SECONDS) != 0:
                raise LocalEnvironmentError(
                    f"could not format the storage of broker {process.node.id}:\n"
                    f"{process.format_tail()}\nCheck the properties and features given; "
                    f"the whole log is in {process.node.logs}"
                )

    def _wait_until_ready(self) -> None:
        running = [process for process in self._processes.values() if process.running]
        wanted = {process.node.id for process in running}
        deadline = time.monotonic() + _READY_SECONDS
        # Each node is asked: the others go on naming one that was killed a moment ago.
        while not all(wanted <= live_brokers(_address(p.node, PLAIN)) for p in running):
            for process in running:
                self._refuse_dead(process)
            if time.monotonic() > deadline:
                raise LocalEnvironmentError(
                    f"Kafka was not ready after {_READY_SECONDS:.0f} s; the machine may be "
                    f"too busy: try again, or read the logs in {self.log_folder}"
                )
            time.sleep(0.1)

    def _refuse_dead(self, process: BrokerProcess) -> None:
        if not process.running:
            raise LocalEnvironmentError(
                f"broker {process.node.id} ended while it was starting:\n{process.log_tail()}\n"
                f"The whole log is in {process.node.logs}"
            )


def _cluster_id_of(folder: Path) -> str:
    """The id of the cluster whose data lies there; a new one where none does."""
    file = folder / "cluster-id"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(new_cluster_id(), encoding="utf-8")
    return file.read_text(encoding="utf-8")


def _address(node: Node, listener: str) -> str:
    return f"{HOST}:{node.ports[listener]}"


def _log_root() -> Path:
    return platformdirs.user_log_path("airflow-eos") / "broker"


def _prune_logs() -> None:
    root = _log_root()
    runs = sorted(root.iterdir()) if root.is_dir() else []
    for run in runs[:-_KEPT_LOGS]:  # their names begin with the time
        shutil.rmtree(run, ignore_errors=True)
