"""How an ``hdfs://`` location and its options become a client of hdfs-native, which needs no JVM.

The options are Hadoop's own settings by their own names, which have dots, and a few of the client:

==================== ==============================================================
hadoop_conf_dir      folder of core-site.xml and hdfs-site.xml; else HADOOP_CONF_DIR
kerberos_principal   who to log in as, with
kerberos_keytab      this file; else the ticket cache of the machine
kerberos_cache       another ticket cache
timeout              of each request, such as ``60s``
==================== ==============================================================
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from airflow_eos.checkpoint.hdfs_files import HdfsFiles
from airflow_eos.checkpoint.locations import located, printable
from airflow_eos.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONF_DIR = "hadoop_conf_dir"
_KERBEROS = ("kerberos_principal", "kerberos_keytab", "kerberos_cache")
_TIMEOUT = "timeout"
_OWN = (_CONF_DIR, *_KERBEROS, _TIMEOUT)
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}
_DEFAULT_TIMEOUT_S = 60.0
_DEFAULT_FS = "fs.defaultFS"
_PROVIDER = "dfs.client.failover.proxy.provider"
_ACTIVE_ALONE = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"


def open_hdfs(location: str, storage_options: Mapping[str, str] | None) -> HdfsFiles:
    """The folder of the URL; nothing is contacted but, with a keytab, the Kerberos server.

    Raises:
        ConfigurationError: the library is missing.
        StoreError: a URL, a name service or options that cannot work.
    """
    if find_spec("hdfs_native") is None:
        raise ConfigurationError(
            f"{printable(location)}: a checkpoint on HDFS needs the package hdfs-native on the "
            "driver and wherever Airflow or recovery reads it: pip install "
            "'airflow-provider-eos[hdfs]'."
        )
    options = dict(storage_options or {})
    settings = {name: options.pop(name) for name in list(options) if "." in name}
    _refuse_unknown(location, options)
    timeout_s = _seconds(options.pop(_TIMEOUT, None))
    found = located(location)
    if found.path == "/":
        raise StoreError(
            f"{printable(location)} names no folder: expected hdfs://namenode:8020/path, "
            "hdfs://nameservice/path, or hdfs:///path where fs.defaultFS says the rest."
        )

    settings |= _from_the_active(found.authority, settings, options.get(_CONF_DIR))

    def connect() -> Any:
        from hdfs_native import Client

        return Client(
            f"hdfs://{found.authority}" if found.authority else None,
            settings,
            options.get(_CONF_DIR),
            **{name: options[name] for name in _KERBEROS if name in options},
        )

    try:
        return HdfsFiles(connect, found.path, timeout_s)
    except (OSError, RuntimeError, ValueError) as error:
        raise StoreError(
            f"{printable(location)} cannot be opened: {str(error).partition(chr(10))[0]}. Expected "
            "a name node with its port, or a name service that hdfs-site.xml knows: set "
            f"HADOOP_CONF_DIR, or give {_CONF_DIR} or the settings dfs.ha.namenodes.… and "
            "dfs.namenode.rpc-address.… as storage options."
        ) from error


def _from_the_active(
    authority: str, settings: Mapping[str, str], conf_dir: str | None
) -> dict[str, str]:
    """The setting by which a name service is asked at its active name node alone.

    An observer is behind, and what it has not heard of would be taken for absent (HDFS-12943).
    """
    if not authority:
        authority = urlsplit(settings.get(_DEFAULT_FS) or _noted(conf_dir) or "").netloc
    if not authority or ":" in authority:  # one name node, by its address
        return {}
    return {f"{_PROVIDER}.{authority}": _ACTIVE_ALONE}


def _noted(conf_dir: str | None) -> str | None:
    """``fs.defaultFS`` of core-site.xml, looked for where hdfs-native looks."""
    home = os.environ.get("HADOOP_HOME")
    found = conf_dir or os.environ.get("HADOOP_CONF_DIR") or (home and f"{home}/etc/hadoop")
    site = Path(found or "") / "core-site.xml"
    if not found or not site.is_file():
        return None
    try:
        properties = ET.parse(site).iter("property")  # noqa: S314 - who runs us wrote it
        named = {each.findtext("name"): each.findtext("value") for each in properties}
    except ET.ParseError as error:
        raise StoreError(f"{site} is no XML ({error}): expected Hadoop's settings.") from error
    return named.get(_DEFAULT_FS)


def _refuse_unknown(location: str, options: Mapping[str, str]) -> None:
    unknown = sorted(set(options) - set(_OWN))
    if unknown:
        named = []
        for key in unknown:
            nearest = get_close_matches(key, _OWN, n=1)
            named.append(f"{key!r}" + (f" (did you mean {nearest[0]!r}?)" if nearest else ""))
        raise StoreError(
            f"{printable(location)} cannot be opened: unknown storage options {', '.join(named)}. "
            f"Expected {', '.join(_OWN)}, or Hadoop's own settings by their names (dfs.…)."
        )
    folder = options.get(_CONF_DIR)
    if folder is not None and not Path(folder).is_dir():
        raise StoreError(
            f"{_CONF_DIR} {folder!r} is no folder here: expected one with core-site.xml and "
            "hdfs-site.xml in it."
        )


def _seconds(given: str | None) -> float:
    if given is None:
        return _DEFAULT_TIMEOUT_S
    found = _SECONDS.fullmatch(given.strip())
    if found is None:
        raise StoreError(f"The storage option {_TIMEOUT} is {given!r}: expected such as '60s'.")
    return float(found[1]) * _UNIT_S[found[2]]
