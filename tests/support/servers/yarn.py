"""A YARN on this machine: a resource manager, and node managers that are machines of their own.

Hadoop's own programs, out of the jar that has its mini cluster, over an :class:`EmbeddedHdfs`.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from airflow_eos.local.broker import HOST, free_ports
from airflow_eos.local.jars import java_program
from airflow_eos.local.process import Embedded
from tests.support.servers.hdfs import EmbeddedHdfs, write_site
from tests.support.servers.jars import hadoop_client_jars, log4j_1_jars, yarn_jars
from tests.support.servers.standalone import Machine

_RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",  # Guice defines classes
)


class EmbeddedYarn(Embedded):
    """A resource manager and some node managers, each with a bare environment of its own.

    Args:
        hdfs: a running one, which stays the caller's.
        nodes: how many at the start; at least 1.
        cores, memory_mb: what each offers.

    Attributes:
        nodes: those that were not lost.

    Raises:
        LocalEnvironmentError: from ``start``: no Java, no jars, or it does not come up.
    """

    def __init__(
        self, hdfs: EmbeddedHdfs, nodes: int = 2, *, cores: int = 2, memory_mb: int = 2048
    ) -> None:
        self._hdfs = hdfs
        self._count = nodes
        self._offer = {
            "yarn.nodemanager.resource.cpu-vcores": str(cores),
            "yarn.nodemanager.resource.memory-mb": str(memory_mb),
        }
        self._names = itertools.count(1)
        self._manager: Machine | None = None
        self._page = 0
        self._settings: dict[str, str] = {}
        self.nodes: list[Machine] = []

    @property
    def configuration_folder(self) -> Path:
        """What ``HADOOP_CONF_DIR`` names for whoever submits."""
        assert self._manager is not None
        return self._manager.folder / "conf"

    def start(self) -> None:
        """Start all of it; returns when each node has joined."""
        ports = free_ports(5)
        self._page = ports[0]
        names = ("webapp", "", "scheduler", "resource-tracker", "admin")
        addresses = {
            "yarn.resourcemanager." + f"{name}.address".lstrip("."): f"{HOST}:{port}"
            for name, port in zip(names, ports, strict=True)
        }
        self._settings = addresses | {
            "yarn.resourcemanager.hostname": HOST,
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            # Of the whole disk, of which this machine may give us a part: 90 by default.
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
            "yarn.nm.liveness-monitor.expiry-interval-ms": "30000",  # ten minutes by default
        }
        self._manager = Machine("resource-manager")
        try:
            self._run(self._manager, _RESOURCE_MANAGER, {}, lambda: self._joined() is not None)
            with ThreadPoolExecutor(self._count) as at_once:
                list(at_once.map(lambda _: self.add_node(), range(self._count)))
        except BaseException:  # Ctrl-C too must leave nothing behind
            self.close()
            raise

    def add_node(self) -> Machine:
        """One more machine; returns when it has joined."""
        node = Machine(f"node-{next(self._names)}")
        self.nodes.append(node)
        ports = free_ports(3)
        address, localizer, page = (f"{HOST}:{port}" for port in ports)
        own = self._offer | {
            "yarn.nodemanager.address": address,
            "yarn.nodemanager.localizer.address": localizer,
            "yarn.nodemanager.webapp.address": page,
            "yarn.nodemanager.local-dirs": str(node.folder / "local"),
            "yarn.nodemanager.log-dirs": str(node.folder / "logs"),
            "yarn.nodemanager.delete.debug-delay-sec": "600",
        }
        self._run(node, _NODE_MANAGER, own, partial(self._knows, ports[0]))
        return node

    def close(self) -> None:
        """End all of it and remove its folders. Closing twice is harmless."""
        for node in self.nodes:
            node.close()
        self.nodes.clear()
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def _run(
        self, machine: Machine, main: str, own: dict[str, str], ready: Callable[[], bool]
    ) -> None:
        conf = machine.folder / "conf"
        write_site(conf / "core-site.xml", {"fs.defaultFS": self._hdfs.url})
        write_site(conf / "yarn-site.xml", self._settings | own)
        write_site(
            conf / "capacity-scheduler.xml",
            {
                "yarn.scheduler.capacity.root.queues": "default",
                "yarn.scheduler.capacity.root.default.capacity": "100",
                "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
            },
        )
        jars = (*yarn_jars(), *hadoop_client_jars(), *log4j_1_jars())
        class_path = [str(conf), *map(str, jars)]
        command = [java_program(), *_JVM, "-cp", os.pathsep.join(class_path), main]
        machine.run(command, ready)

    def _knows(self, port: int) -> bool:
        return port in (self._joined() or ())

    def _joined(self) -> list[int] | None:
        """The ports of the nodes that the manager can use; None where it does not answer yet."""
        page = http.client.HTTPConnection(HOST, self._page, timeout=5)
        try:
            page.request("GET", "/ws/v1/cluster/nodes?states=RUNNING")
            found = json.loads(page.getresponse().read())["nodes"] or {}
            return [int(node["id"].rpartition(":")[2]) for node in found.get("node", ())]
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return None
        finally:
            page.close()
