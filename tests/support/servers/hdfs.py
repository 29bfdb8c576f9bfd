"""A private HDFS on this machine, gone with whoever started it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

from airflow_eos.local.broker import HOST, free_ports
from airflow_eos.local.jars import java_program
from tests.support.servers.jars import hadoop_client_jars, hadoop_jars
from tests.support.servers.process import EmbeddedProcess

_MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"
_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_READY_SECONDS = 150.0  # 10 s alone, 35 s where two cores were shared by six others
_SETTINGS = {
    # Both default to one lease of a minute: a writer that was killed would keep its file that long.
    "dfs.namenode.lease-recheck-interval-ms": "1000",
    "dfs.replication": "1",
}


class EmbeddedHdfs(EmbeddedProcess):
    """A name node and a data node in one process, on free ports of the loopback interface.

    It is a context manager. Its data lives in a temporary folder and is removed at the end.

    Args:
        settings: of ``hdfs-site.xml``, beside ours.

    Attributes:
        port: of the name node, the same after :meth:`kill` and :meth:`start`.

    Raises:
        LocalEnvironmentError: from ``start``: no Java, no jars, or it does not come up.
    """

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        super().__init__()
        self._settings = _SETTINGS | (settings or {})

    @property
    def url(self) -> str:
        """Of the file system, without a slash at the end."""
        return f"hdfs://{HOST}:{self.port}"

    @property
    def configuration_folder(self) -> Path:
        """What ``HADOOP_CONF_DIR`` may name: this file system is the default one."""
        assert self._folder is not None
        return self._folder / "conf"

    def start(self) -> None:
        """Start it, on its data where it ran before; returns when it answers."""
        class_path = hadoop_class_path()
        is_new = self._folder is None
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="airflow-eos-hdfs-"))
            (self.port,) = free_ports(1)
            write_site(self.configuration_folder / "core-site.xml", {"fs.defaultFS": self.url})
            write_site(self.configuration_folder / "hdfs-site.xml", self._settings)
        ready = self._folder / "ready.json"  # written once a data node has joined
        ready.unlink(missing_ok=True)
        command = [
            java_program(), *_JVM, f"-Dtest.build.data={self._folder / 'data'}",
            "-cp", class_path, _MAIN, *(["-format"] if is_new else []),
            "-nnport", str(self.port), "-writeDetails", str(ready),
            *(part for name, value in self._settings.items() for part in ("-D", f"{name}={value}")),
        ]  # fmt: skip
        self._run(command, self._folder, ready.exists, _READY_SECONDS)


def hadoop_class_path() -> str:
    """Of Hadoop's servers and clients, for Java; jars are fetched the first time.

    Raises:
        LocalEnvironmentError: no Java, no pyspark or no network.
    """
    return os.pathsep.join(map(str, (*hadoop_jars(), *hadoop_client_jars())))


def write_site(path: Path, settings: dict[str, str]) -> None:
    """Write a ``…-site.xml`` of Hadoop, and its folder where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    properties = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )
    path.write_text(f"<configuration>\n{properties}</configuration>\n", encoding="utf-8")
