"""A private HBase on this machine with its REST server, gone with whoever started it."""

from __future__ import annotations

import http
import os
import tempfile
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from xml.sax.saxutils import escape

from airflow_eos.local.broker import HOST, free_ports
from airflow_eos.local.jars import java_program
from tests.support.servers.jars import server_jars
from tests.support.servers.process import EmbeddedProcess, wait_until_ready

_MASTER = "org.apache.hadoop.hbase.master.HMaster"
_REST = "org.apache.hadoop.hbase.rest.RESTServer"
_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",  # what reads JSON defines classes
)
_LOGGING = """\
log4j.rootLogger=WARN,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %-5p %c{2}: %m%n
"""


class EmbeddedHBase(EmbeddedProcess):
    """HBase in one process (master, region server, ZooKeeper), and its REST server in another.

    On free ports of the loopback interface; a context manager. Its data lives in a temporary folder
    and is removed at the end.

    Args:
        settings: of ``hbase-site.xml``, beside ours.

    Attributes:
        port: of the REST server, the same after :meth:`kill` and :meth:`start`.
        gateway: the REST server, which :meth:`kill` leaves alone.
        class_path: for a client in Java, with its settings.

    Raises:
        LocalEnvironmentError: from ``start``: no Java, no jars, or it does not come up.
    """

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        super().__init__()
        self._settings = settings or {}
        self.gateway = Gateway()
        self.class_path = ""

    @property
    def url(self) -> str:
        """Of the REST server."""
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        """Start what does not run, on its data where it ran before; returns when it answers."""
        jars = server_jars("hbase-2.6.1")
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="airflow-eos-hbase-"))
            self.port = self._lay_out(self._folder)
        self.class_path = os.pathsep.join([str(self._folder), *map(str, jars)])
        self.gateway.begin(_java(_REST, 256, self.class_path), self._folder)
        answers = partial(_answers, self.url)
        if self._process is None or self._process.poll() is not None:
            self._run(_java(_MASTER, 512, self.class_path), self._folder, answers)
        else:
            wait_until_ready(self._process, answers, called="HBase", log=self._folder / "log")

    def close(self) -> None:
        """End both and remove the data. Closing twice is harmless."""
        self.gateway.kill()
        super().close()

    def _lay_out(self, folder: Path) -> int:
        """Write what both read; the port of the REST server."""
        rest, zookeeper, master, regions = free_ports(4)
        site = {
            "hbase.cluster.distributed": "false",
            "hbase.rootdir": f"file://{folder}/data",
            "hbase.tmp.dir": f"{folder}/scratch",
            "hbase.unsafe.stream.capability.enforce": "false",
            # The one with checksums keeps what was written last to itself until a block is full.
            "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
            "hbase.wal.provider": "filesystem",
            "hbase.zookeeper.quorum": HOST,
            "hbase.zookeeper.property.clientPort": str(zookeeper),
            **{
                f"hbase.{role}.{name}": value
                for role, port in (("master", master), ("regionserver", regions))
                for name, value in {
                    "hostname": HOST,
                    "ipc.address": HOST,
                    "port": str(port),
                    "info.port": "-1",
                }.items()
            },
            "hbase.rest.host": HOST,
            "hbase.rest.port": str(rest),
            "hbase.rest.info.port": "-1",
            # A server that is away is an answer within seconds, not in twenty minutes.
            "hbase.client.retries.number": "6",
            **self._settings,
        }
        properties = "".join(
            f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
            for name, value in site.items()
        )
        text = f"<configuration>\n{properties}</configuration>\n"
        (folder / "hbase-site.xml").write_text(text, encoding="utf-8")
        (folder / "log4j.properties").write_text(_LOGGING, encoding="utf-8")
        return rest


class Gateway(EmbeddedProcess):
    """The REST server of an HBase."""

    def begin(self, command: list[str], folder: Path) -> None:
        """Start it if it does not run; nobody waits, it comes up beside HBase."""
        if self._process is None or self._process.poll() is not None:
            self._run(command, folder, lambda: True)

    def start(self) -> None:
        """Its HBase starts it."""
        raise NotImplementedError


def _java(main: str, heap_mb: int, class_path: str) -> list[str]:
    return [java_program(), f"-Xmx{heap_mb}m", *_JVM, "-cp", class_path, main, "start"]


def _answers(url: str) -> bool:
    """Whether it says that a table is not there, or is: before the master is ready it cannot."""
    asked = urllib.request.Request(f"{url}/t/schema", headers={"Accept": "application/json"})
    try:
        urllib.request.urlopen(asked, timeout=60).close()
    except urllib.error.HTTPError as error:
        return error.code == http.HTTPStatus.NOT_FOUND
    except OSError:
        return False
    return True
