"""The driver's Java, asked by its diagnostic commands: ``jcmd`` without a program of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]

_FREE_AT_MOST = {"MinHeapFreeRatio": "5", "MaxHeapFreeRatio": "10"}
"""Per cent of the heap; Java's own are 40 and 70: what grew in warm-ups would stay."""


def diagnosed(gateway: JavaGateway, command: str, *arguments: str) -> str:
    """Return what a diagnostic command of this Java says, such as ``gcRun``.

    By the interface's method, since the server's class is one that Java keeps to itself.

    Raises:
        Py4JError: Java knows no such command, refuses, or has ended.
    """
    jvm = gateway.jvm
    text, anything = jvm.java.lang.String, jvm.java.lang.Object
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    name = jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    methods = jvm.java.lang.Class.forName("javax.management.MBeanServerConnection").getMethods()
    [invoke] = [method for method in methods if method.getName() == "invoke"]
    told = [_array(gateway, text, *arguments)] if arguments else []
    types = ["[Ljava.lang.String;"] if arguments else []
    given = _array(gateway, anything, *told), _array(gateway, text, *types)
    return str(invoke.invoke(server, _array(gateway, anything, name, command, *given)))


def give_memory_back(gateway: JavaGateway) -> None:
    """Let Java return to the system what it keeps for later, and grow again when it has to.

    Raises:
        Py4JError: Java knows no such command, refuses, or has ended.
    """
    flags = diagnosed(gateway, "vmFlags", "-all")
    found = {name: re.search(rf"{name}\s*= (\d+)", flags) for name in _FREE_AT_MOST}
    for name, percent in _FREE_AT_MOST.items():
        diagnosed(gateway, "vmSetFlag", name, percent)
    diagnosed(gateway, "gcRun")
    for name, was in reversed(found.items()):
        if was is not None:
            diagnosed(gateway, "vmSetFlag", name, was[1])
    trim(gateway)


def trim(gateway: JavaGateway) -> None:
    """Let Java return what its compiler and its threads have freed, which malloc would keep.

    Raises:
        Py4JError: Java knows no such command, refuses, or has ended.
    """
    diagnosed(gateway, "systemTrimNativeHeap")


def _array(gateway: JavaGateway, kind: Any, *values: Any) -> Any:
    made = gateway.new_array(kind, len(values))
    for place, value in enumerate(values):
        made[place] = value
    return made
