"""An embedded Kafka cluster: real brokers on this machine, which end with their starter process."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import platformdirs
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.jars import (
    KAFKA_VERSION,
    broker_jars,
    cache_folder,
    java_program,
    logging_jars,
)
from airflow_eos.local.process import Embedded, guarded

HOST = "127.0.0.1"
PLAIN = "PLAINTEXT"
CONTROLLER = "CONTROLLER"
# Below the range from which systems take ports of outgoing connections: a client could otherwise
# take the port of a broker that is stopped and started again.
_PORTS = range(18_000, 32_000)
_TRIES = 200


@dataclass(frozen=True, slots=True)
class Node:
    """One broker: its id, its folders, and a port for each listener."""

    id: int
    data: Path
    logs: Path
    ports: Mapping[str, int]


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface on which no process listens now.

    Raises:
        LocalEnvironmentError: too few were found.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, _TRIES):
        if len(found) == count:
            return found
        if is_free(port):
            found.append(port)
    raise LocalEnvironmentError(
        f"found {len(found)} free ports on {HOST} among {_TRIES} tried, needed {count}: "
        "end other brokers on this machine and try again"
    )


def is_free(port: int) -> bool:
    """Whether no process listens on a port of the loopback interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def lay_out(
    count: int, data: Path, logs: Path, listeners: Sequence[str], port: int | None = None
) -> tuple[Node, ...]:
    """Give each of ``count`` nodes its folders and free ports; the first one ``port``, if free."""
    names = [PLAIN, CONTROLLER, *listeners]
    found = free_ports(count * len(names))
    ports = iter([port, *found[1:]] if port is not None and is_free(port) else found)
    return tuple(
        Node(
            id=number,
            data=data / f"node-{number}",
            logs=logs / f"node-{number}",
            ports={name: next(ports) for name in names},
        )
        for number in range(1, count + 1)
    )


class Difference(NamedTuple):
    """A setting of these brokers that differs from Kafka's default.

    Attributes:
        name: the setting's name in ``server.properties``.
        default: Kafka's default.
        value: returns the value here, given how many copies there can be, 1 to 3.
        why: the reason, for people.
    """

    name: str
    default: str
    value: Callable[[int], int]
    why: str


_ONE_BROKER = "one broker cannot copy"
_KEPT_COPY = "it outlives the loss of a broker"
_FEW = "so many make a new broker slow"

DIFFERENCES = (
    Difference("default.replication.factor", "1", lambda copies: copies, _KEPT_COPY),
    Difference("min.insync.replicas", "1", lambda copies: max(1, copies - 1), _KEPT_COPY),
    Difference("offsets.topic.replication.factor", "3", lambda copies: copies, _ONE_BROKER),
    Difference("transaction.state.log.replication.factor", "3", lambda copies: copies, _ONE_BROKER),
    Difference(
        "transaction.state.log.min.isr", "2", lambda copies: max(1, copies - 1), _ONE_BROKER
    ),
    Difference(
        "share.coordinator.state.topic.replication.factor", "3", lambda copies: copies, _ONE_BROKER
    ),
    Difference(
        "share.coordinator.state.topic.min.isr", "2", lambda copies: max(1, copies - 1), _ONE_BROKER
    ),
    Difference("offsets.topic.num.partitions", "50", lambda _: 4, _FEW),
    Difference("transaction.state.log.num.partitions", "50", lambda _: 4, _FEW),
    Difference(
        "group.initial.rebalance.delay.ms", "3000", lambda _: 0, "a test's consumer waits for it"
    ),
    Difference(
        "broker.session.timeout.ms",
        "9000",
        lambda _: 3000,
        "a broker that was killed may register again only when its old session is over",
    ),
    Difference(
        "broker.heartbeat.interval.ms", "2000", lambda _: 500, "a session of 3 s needs some of them"
    ),
)
"""All differences: every other setting is Kafka's default, unless a test sets it."""


def server_properties(
    node: Node,
    nodes: Sequence[Node],
    listeners: Mapping[str, str],
    extra: Mapping[str, str],
) -> str:
    """Return the text of one node's ``server.properties``.

    Args:
        listeners: further listeners, name to security protocol.
        extra: properties of the caller, which override ours.
    """
    properties = own_properties(node, nodes, listeners) | differences(len(nodes)) | dict(extra)
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def own_properties(
    node: Node, nodes: Sequence[Node], listeners: Mapping[str, str]
) -> dict[str, str]:
    """Return the properties that every node needs: its id, quorum, listeners and data folder."""
    open_names = [name for name in node.ports if name != CONTROLLER]
    protocols = {PLAIN: "PLAINTEXT", CONTROLLER: "PLAINTEXT", **listeners}
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "controller.quorum.voters": ",".join(
            f"{other.id}@{HOST}:{other.ports[CONTROLLER]}" for other in nodes
        ),
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in node.ports.items()),
        "advertised.listeners": ",".join(f"{n}://{HOST}:{node.ports[n]}" for n in open_names),
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": PLAIN,
        "log.dirs": str(node.data / "log"),
    }


def differences(brokers: int) -> dict[str, str]:
    """Return the settings of :data:`DIFFERENCES` for a cluster of so many brokers."""
    values = {each: str(each.value(min(3, brokers))) for each in DIFFERENCES}
    return {each.name: value for each, value in values.items() if value != each.default}


def new_cluster_id() -> str:
    """Make a cluster id as Kafka does: 16 random bytes, URL-safe base64 without padding."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # Kafka's tools would take such an id for an option
            return text


_HERE = Path(__file__).parent
_STOP_SECONDS = 30.0  # a clean stop moves leaders away and flushes; usually it takes one second


def class_path() -> str:
    """Return the class path of the broker's jars, fetched the first time, and its logging jars.

    Raises:
        LocalEnvironmentError: no Java, no pyspark or no network.
    """
    return os.pathsep.join(str(path) for path in (*logging_jars(), *broker_jars()))


class BrokerProcess:
    """The process of one node; its folders outlive it.

    Args:
        node: id, folders and ports.
        heap_mb: maximum Java heap in MiB.
        java_options: further options of the JVM, which win over ours.
        kept: whether the guard leaves the node's data when this process is gone.
    """

    def __init__(
        self, node: Node, heap_mb: int, java_options: Sequence[str] = (), *, kept: bool = False
    ) -> None:
        self.node = node
        self._removed = node.data / "nothing" if kept else node.data
        self._heap_mb = heap_mb
        self._java_options = tuple(java_options)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start_format(
        self, properties: str, cluster_id: str, features: Mapping[str, int]
    ) -> subprocess.Popen[bytes]:
        """Write ``server.properties`` and start to format the storage; the caller waits for it.

        Storage that is formatted already stays as it is.

        Args:
            properties: text of ``server.properties``.
            features: levels of features that differ from the release's own.
        """
        self.node.data.mkdir(parents=True, exist_ok=True)
        self.node.logs.mkdir(parents=True)
        self._properties.write_text(properties, encoding="utf-8")
        levels = [item for name, level in features.items() for item in ("-f", f"{name}={level}")]
        arguments = ["format", "-g", "-t", cluster_id, "-c", str(self._properties), *levels]
        return self._spawn("kafka.tools.StorageTool", arguments, "format.log")

    def start(self) -> None:
        """Start the broker; it is not ready yet when this returns.

        Raises:
            LocalEnvironmentError: it runs already.
        """
        if self.running:
            raise LocalEnvironmentError(
                f"broker {self.node.id} runs already: stop or kill it before it is started again"
            )
        self._process = self._spawn("kafka.Kafka", [str(self._properties)], "stdout.log")

    def stop(self) -> bool:
        """End the broker cleanly (SIGTERM); return False where it had to be killed after all."""
        if self._process is None:
            return True
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def kill(self) -> None:
        """End the broker with SIGKILL, guard and all, and wait until it is gone."""
        if self._process is None:
            return
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def format_tail(self) -> str:
        """Return the last lines of the formatting's output."""
        return self._tail("format.log") or "(no output)"

    def log_tail(self, lines: int = 5) -> str:
        """Return the last lines of the broker's log, else of its output, without stack frames."""
        return self._tail("server.log", lines) or self._tail("stdout.log", lines) or "(no output)"

    def _tail(self, name: str, lines: int = 5) -> str:
        path = self.node.logs / name
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        kept = [line for line in text.splitlines() if not line.startswith("\tat ")]
        return "\n".join(kept[-lines:])

    @property
    def _properties(self) -> Path:
        return self.node.data / "server.properties"

    def _spawn(self, main: str, arguments: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        java = [
            java_program(),
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",  # starts faster and takes less memory than G1 on a small heap
            "-XX:-UsePerfData",  # leaves no file in the system's temporary folder
            # A broker that runs for minutes gains nothing from the optimising compiler, which takes
            # half the CPU of a start.
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-Xlog:cds*=off",  # no warning of an archive of another Java
            f"-Dlog4j2.configurationFile={_HERE / 'log4j2.xml'}",
            f"-Deos.log.dir={self.node.logs}",
            *("-cp", class_path()),
            *self._java_options,
        ]
        return guarded([*java, main, *arguments], folder=self._removed, log=self.node.logs / log)


_SECONDS = 30.0


def live_brokers(bootstrap_servers: str) -> set[int]:
    """Return the ids of the brokers in the cluster's metadata; none if no answer within 1 s."""
    try:
        return set(_admin(bootstrap_servers).list_topics(timeout=1.0).brokers)
    except KafkaException:
        return set()


def topics(bootstrap_servers: str) -> dict[str, int]:
    """Return the number of partitions of each topic."""
    found = _admin(bootstrap_servers).list_topics(timeout=_SECONDS).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def create_topic(
    bootstrap_servers: str, name: str, partitions: int, config: Mapping[str, str]
) -> None:
    """Create a topic and wait until every partition has a leader.

    Raises:
        LocalEnvironmentError: the broker refused, or no leader was elected in time.
    """
    admin = _admin(bootstrap_servers)
    topic = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config))
    try:
        admin.create_topics([topic], operation_timeout=_SECONDS)[name].result(_SECONDS)
        deadline = time.monotonic() + _SECONDS
        while not _led(admin, name, partitions):
            if time.monotonic() > deadline:
                raise LocalEnvironmentError(
                    f"topic {name} has partitions without a leader after {_SECONDS:.0f} s: "
                    "read the broker's log, a node may be down"
                )
            time.sleep(0.02)
    except TimeoutError as error:  # the future's; the request's own is a KafkaException
        raise LocalEnvironmentError(
            f"could not create topic {name}: {bootstrap_servers} gave no answer within "
            f"{_SECONDS:.0f} s; read the broker's log, the machine may be too busy, then try again"
        ) from error
    except KafkaException as error:
        raise LocalEnvironmentError(
            f"could not create topic {name}: {error.args[0].str()}"
        ) from error


def _led(admin: AdminClient, name: str, partitions: int) -> bool:
    found = admin.list_topics(name, timeout=_SECONDS).topics[name]
    leaders = [partition.leader for partition in found.partitions.values()]
    return found.error is None and len(leaders) == partitions and min(leaders) >= 0


def _admin(bootstrap_servers: str) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": bootstrap_servers,
            "allow.auto.create.topics": False,  # looking for a topic must not create it
            "log_level": 0,  # that a broker does not listen yet is expected
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
        }
    )


# --- classes --------------------------------------------------------------------------------------
# An archive of the broker's classes (JEP 350): loading classes takes most of a start.
#
# It is made once per Java and environment, by a broker that runs for one transaction.


_CLASSES_SECONDS = 60.0
_HEAP_MB = 512
_KEPT = 4  # environments; 50 MB each


@cache
def class_archive() -> Path:
    """Return this environment's archive for ``-XX:SharedArchiveFile``, made on the first call.

    A Java that cannot use the file goes on without it, so an archive that fails is an empty file.

    Raises:
        LocalEnvironmentError: no Java, no jars, or no broker comes up.
    """
    folder = cache_folder() / "classes"
    archive = folder / f"kafka-{KAFKA_VERSION}-{_environment()}.jsa"
    if archive.exists():
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():  # another process may have made the archive meanwhile
            _make(archive)
            archives = sorted(folder.glob("*.jsa"), key=lambda file: file.stat().st_mtime)
            for old in archives[:-_KEPT]:  # a running broker keeps the file that it has mapped
                old.unlink(missing_ok=True)
    return archive


def _environment() -> str:
    """Return a hash of Java and the jars: Java refuses an archive of others, or of touched jars."""
    files = [Path(java_program()).resolve(), *map(Path, class_path().split(os.pathsep))]
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:12]


def _make(archive: Path) -> None:
    fresh = archive.with_suffix(".new")
    with tempfile.TemporaryDirectory(prefix="airflow-eos-kafka-") as work:
        [node] = lay_out(1, Path(work) / "data", Path(work) / "logs", [])
        formatting = BrokerProcess(node, _HEAP_MB).start_format(
            server_properties(node, [node], {}, {}), new_cluster_id(), {}
        )
        formatting.wait(_CLASSES_SECONDS)
        broker = BrokerProcess(node, _HEAP_MB, [f"-XX:ArchiveClassesAtExit={fresh}"])
        broker.start()
        try:
            _use(broker, f"{HOST}:{node.ports[PLAIN]}")
        finally:
            written = broker.stop()  # Java writes the archive while the broker ends
    if written:  # else it was killed while it wrote; the next start tries again
        fresh.touch()
        fresh.replace(archive)


def _use(broker: BrokerProcess, address: str) -> None:
    """Run one transaction, so that its classes get into the archive."""
    deadline = time.monotonic() + _CLASSES_SECONDS
    while not live_brokers(address):
        if not broker.running or time.monotonic() > deadline:
            raise LocalEnvironmentError(
                f"a Kafka broker did not come up within {_CLASSES_SECONDS:.0f} s:\n"
                f"{broker.log_tail()}\n"
                "Try again; the machine may be too busy"
            )
        time.sleep(0.1)
    create_topic(address, "classes", 1, {})
    producer = Producer(
        {"bootstrap.servers": address, "transactional.id": "classes", "log_level": 0}
    )
    producer.init_transactions(_CLASSES_SECONDS)
    producer.begin_transaction()
    producer.produce("classes", b"")
    producer.commit_transaction(_CLASSES_SECONDS)


AT_FULL_SPEED = ("-XX:TieredStopAtLevel=4",)

_READY_SECONDS = 180.0  # long, for machines that pause now and then
_PORT_ATTEMPTS = 3  # another process can take a port between our check and the broker's bind
_KEPT_LOGS = 20  # runs


class EmbeddedKafka(Embedded):
    """Kafka in KRaft mode on the loopback interface; a context manager.

    Data lives in a temporary folder and is removed at the end, unless ``folder`` names one that
    stays; logs are kept (``log_folder``).
    No broker outlives this process, whatever ends the process.

    Args:
        properties: entries for ``server.properties``, which override ours.
        brokers: number of nodes, each broker and controller; heap 512 MiB for one, else 256 each.
        features: levels for formatting, as ``{"transaction.version": 1}``; else the release's own.
        listeners: further listeners, name to security protocol, as ``{"SASL": "SASL_PLAINTEXT"}``;
            configure them in ``properties``, address them with ``addresses``.
        java_options: further options for the JVM, which override ours; ``AT_FULL_SPEED`` for a
            broker that is measured or runs long, since ours are for one that runs for minutes.
        port: port of the first node's plain listener; another is used if it is taken, or for None.
        folder: the folder of the data, which stays for the next start; None: removed at the end.

    Attributes:
        bootstrap_servers: addresses of the plain listener of every node, once started.
        cluster_id: the cluster's id.
        log_folder: the folder of the logs, which stay.

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
        """Return the addresses of one listener on every node, comma-separated."""
        return ",".join(_address(p.node, listener) for p in self._processes.values())

    def start(self, node: int | None = None) -> None:
        """Start the cluster, or one node that was stopped or killed; return when it is ready.

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
                may_try = isinstance(error, LocalEnvironmentError) and taken
                if not may_try or attempt == _PORT_ATTEMPTS:
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
            process.kill()  # data that is removed anyway needs no clean stop, which takes time
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
        for run in sorted(_log_root().glob("*"))[:-_KEPT_LOGS]:  # their names begin with the time
            shutil.rmtree(run, ignore_errors=True)
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
        running = {
            process: process.start_format(
                server_properties(process.node, nodes, self._listeners, self._properties),
                self.cluster_id,
                self._features,
            )
            for process in self._processes.values()
        }
        for process, formatting in running.items():
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
        # Ask each node: the others still name one that was killed a moment ago.
        while not all(wanted <= live_brokers(_address(p.node, PLAIN)) for p in running):
            for process in running:
                if not process.running:
                    raise LocalEnvironmentError(
                        f"broker {process.node.id} ended while it was starting:\n"
                        f"{process.log_tail()}\nThe whole log is in {process.node.logs}"
                    )
            if time.monotonic() > deadline:
                raise LocalEnvironmentError(
                    f"Kafka was not ready after {_READY_SECONDS:.0f} s; the machine may be "
                    f"too busy: try again, or read the logs in {self.log_folder}"
                )
            time.sleep(0.1)


def _cluster_id_of(folder: Path) -> str:
    """Return the id of the cluster whose data is in the folder; a new id where there is none."""
    file = folder / "cluster-id"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(new_cluster_id(), encoding="utf-8")
    return file.read_text(encoding="utf-8")


def _address(node: Node, listener: str) -> str:
    return f"{HOST}:{node.ports[listener]}"


def _log_root() -> Path:
    return platformdirs.user_log_path("airflow-eos") / "broker"
