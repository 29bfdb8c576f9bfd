"""Where a checkpoint may live: a location as the user writes it, turned into a store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import obstore.exceptions as failures
import structlog
from obstore.store import from_url

from airflow_eos.checkpoint.guarded import Guarded, panics_as_errors
from airflow_eos.checkpoint.options import StorageOptions, split, unknown_options
from airflow_eos.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.get_logger(__name__)

_REMOTE = frozenset({"s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss"})
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/")


def as_local_path(location: str) -> Path | None:
    """The absolute path of a plain path or ``file:`` URL; None for every other URL."""
    scheme = _SCHEME.match(location)
    if scheme is None:
        if not location or "\0" in location:
            raise StoreError(f"{location!r} is not a checkpoint location: expected a path or URL.")
        return Path(location).absolute()
    if scheme[1].lower() != "file":
        return None
    url = urlsplit(location)  # Hadoop writes file:/path, everybody else file:///path
    if url.netloc not in {"", "localhost"}:
        raise StoreError(
            f"{printable(location)} names the host {url.netloc!r}: expected file:///absolute/path."
        )
    return Path(unquote(url.path))


def open_remote(location: str, storage_options: Mapping[str, str] | None) -> Any:
    """An obstore store for the URL; nothing is contacted yet.

    Raises:
        StoreError: a scheme that has no create-if-absent from Python, or options that obstore
            does not know or cannot use.
    """
    scheme = location.partition(":")[0].lower()
    if scheme not in _REMOTE:
        raise StoreError(
            f"{printable(location)}: a checkpoint on {scheme}:// cannot be used from here. "
            "Expected a store that can create an object only if it is absent: a local path or "
            "file://, s3:// (s3a://), gs://, az:// or abfss://; hdfs:// for a checkpoint, not for "
            "output files. A mounted HDFS has no hard links: use its hdfs:// location."
        )
    _refuse_after_fork(printable(location))
    options = split(scheme, storage_options or {})
    if options.client.get("allow_invalid_certificates", "false").lower() != "false":
        log.warning(
            "tls_not_verified",
            setting="allow_invalid_certificates",
            checkpoint=printable(location),
            hint="anybody on the way can read and change it; give root_certificate instead",
        )
    try:
        return Guarded(_opened(location, options))
    except failures.UnknownConfigurationKeyError as error:
        unknown = [key for key in options.config if not _is_known(location, key)]
        raise StoreError(
            f"{printable(location)} cannot be opened: unknown storage options "
            f"{unknown_options(scheme, unknown)}. Expected configuration keys or client options "
            "of obstore."
        ) from error
    except (failures.BaseError, ValueError, TypeError, OSError) as error:
        said = brief(error)
        for value in (storage_options or {}).values():
            said = said.replace(f'"{value}"', '"***"')  # a secret, maybe, under a wrong name
        raise StoreError(
            f"{printable(location)} cannot be opened: {said}. Expected a URL and "
            f"storage options that obstore knows; the options given: "
            f"{', '.join(sorted(storage_options or {})) or 'none'}."
        ) from error


def _opened(location: str, options: StorageOptions) -> Any:
    with panics_as_errors():
        return from_url(location, config=options.config, client_options=options.client)  # type: ignore[call-overload]


def _is_known(location: str, key: str) -> bool:
    """Whether obstore knows the key at all, whatever it thinks of a value."""
    try:
        _opened(location, StorageOptions({key: ""}, {}))
    except failures.UnknownConfigurationKeyError:
        return False
    except failures.BaseError:
        return True
    return True


_opened_by: list[int] = []


def _refuse_after_fork(location: str) -> None:
    """Threads of obstore do not exist in a forked child: it would wait for them for ever."""
    if _opened_by and os.getpid() not in _opened_by:
        raise StoreError(
            f"{location}: this process was forked from one that had already used an object store, "
            "and would hang. Open checkpoints in the child only, or start it by 'spawn'."
        )
    _opened_by[:] = [os.getpid()]


def printable(location: str) -> str:
    """The location without a password or a signature in it: it ends up in logs and in plans."""
    without_query = location.partition("?")[0].partition("#")[0]
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", without_query)


def brief(error: Exception | None) -> str:
    """The first line of a store's error, without the signed part of a URL."""
    first = str(error).strip().partition("\n")[0] if error is not None else "no answer"
    unsigned = re.sub(r"[?][^\s)]+", "?***", first)
    return f"{type(error).__name__}: {unsigned}"
