"""A private REST catalog of Iceberg on this machine, gone with whoever started it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import urllib.request
from functools import partial
from pathlib import Path
from xml.sax.saxutils import escape

from airflow_eos.local.broker import HOST, free_ports
from airflow_eos.local.jars import java_program, s3a_jars
from tests.support.servers.jars import hadoop_client_jars, server_jars
from tests.support.servers.process import EmbeddedProcess
from tests.support.servers.s3 import EmbeddedS3

_SOURCE = Path(__file__).parents[2] / "java" / "ServeIcebergCatalog.java"
_MAIN = "org.apache.iceberg.rest.ServeIcebergCatalog"
_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


class EmbeddedIcebergRest(EmbeddedProcess):
    """Apache Iceberg's own REST catalog server over SQLite, whose tables are in a bucket.

    With each table it hands out the keys of the bucket, so that clients need none of their own.

    Args:
        s3: the running server of the bucket; after its keys changed, start this one again.

    Attributes:
        port: where it listens, the same after :meth:`kill` and :meth:`start`.

    Raises:
        LocalEnvironmentError: from ``start``: no Java, no jars, or it does not come up.
    """

    def __init__(self, s3: EmbeddedS3) -> None:
        super().__init__()
        self._s3 = s3
        self._class_path = ""

    @property
    def uri(self) -> str:
        """Of the catalog, for clients."""
        return f"http://{HOST}:{self.port}"

    @property
    def database(self) -> Path:
        """Where the server keeps which metadata file is whose newest."""
        assert self._folder is not None
        return self._folder / "catalog.db"

    def start(self) -> None:
        """Start it, on its data where it ran before; returns when it answers."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="airflow-eos-iceberg-"))
            self._class_path = _compiled(self._folder)
            (self.port,) = free_ports(1)
        options = self._s3.storage_options
        self._reach_bucket(self._folder / "core-site.xml", options)
        properties = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "jdbc.schema-version": "V1",
            "uri": f"jdbc:sqlite:{self.database}",
            "warehouse": self._s3.url,
            "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
            "include-credentials": "true",
            "s3.access-key-id": options["aws_access_key_id"],
            "s3.secret-access-key": options["aws_secret_access_key"],
        }
        told = [f"{name}={value}" for name, value in properties.items()]
        java = [java_program(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command = [*java, "-cp", self._class_path, _MAIN, str(self.port), *told]
        self._run(command, self._folder, partial(_answers, self.uri))

    @staticmethod
    def _reach_bucket(file: Path, options: dict[str, str]) -> None:
        settings = {
            "fs.s3.impl": _S3A,
            "fs.s3a.endpoint": options["aws_endpoint"],
            "fs.s3a.endpoint.region": options["aws_region"],
            "fs.s3a.access.key": options["aws_access_key_id"],
            "fs.s3a.secret.key": options["aws_secret_access_key"],
            "fs.s3a.path.style.access": "true",
        }
        properties = "".join(
            f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
            for name, value in settings.items()
        )
        file.write_text(f"<configuration>\n{properties}</configuration>\n", encoding="utf-8")


def _compiled(folder: Path) -> str:
    """The class path of the server, whose own class is in Iceberg's package and so is compiled."""
    listed = (*server_jars("iceberg-rest-1.10.1"), *server_jars("iceberg-core-tests-1.10.1"))
    # First Hadoop's: Iceberg has a class of its own under the name of one of them.
    jars = (*s3a_jars(), *listed, *hadoop_client_jars())
    class_path = os.pathsep.join([str(folder), *map(str, jars)])
    compiler = Path(java_program()).with_name("javac")
    command = [str(compiler), "-cp", class_path, "-d", str(folder), str(_SOURCE)]
    subprocess.run(command, check=True, timeout=300)
    return class_path


def _answers(uri: str) -> bool:
    try:
        urllib.request.urlopen(f"{uri}/v1/config", timeout=60).close()
    except OSError:
        return False
    return True
