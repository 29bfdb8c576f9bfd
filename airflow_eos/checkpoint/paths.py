"""Names inside a checkpoint folder, and the check that a name stays inside it."""

from __future__ import annotations

import re

from airflow_eos.errors import StoreError

OFFSETS = "offsets"
COMMITS = "commits"
METADATA = "metadata"
SOURCES = "sources"

EOS = "eos"
DECISIONS = f"{EOS}/decisions"
PIPELINE = f"{EOS}/pipeline.json"
DRIVERS = f"{EOS}/drivers"
HEARTBEAT = f"{EOS}/driver.json"
DRAIN = f"{EOS}/drain.json"
DRAINS = f"{EOS}/drains"
RESTART = f"{EOS}/restart.json"
RESUMPTION = f"{EOS}/resumption.json"
WATCHDOG = f"{EOS}/watchdog.json"
SPENT = f"{EOS}/spent"
TOPICS = f"{EOS}/topics.json"
STATE = f"{EOS}/state.json"
ASIDE = f"{EOS}/aside"
METADATA_COPY = f"{EOS}/metadata"

_BATCH = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)


def is_batch(name: str) -> bool:
    """Whether it is the number of a batch, as Spark writes it."""
    return _BATCH.fullmatch(name) is not None


def decision_path(batch_id: int, attempt: int) -> str:
    """``eos/decisions/<batch>/<attempt>.json``: the one place of this decision."""
    return f"{DECISIONS}/{batch_id}/{attempt}.json"


def term_path(number: int) -> str:
    """``eos/drivers/<n>.json``: who took this term."""
    return f"{DRIVERS}/{number}.json"


def drain_path(submission: str) -> str:
    """``eos/drains/<submission>.json``: the request to this start of an app."""
    return f"{DRAINS}/{submission}.json"


def require_inside(path: str) -> str:
    """Return ``path`` if it is relative and cannot leave the checkpoint.

    Raises:
        StoreError: it is absolute, empty, has an empty, ``.`` or ``..`` part, a backslash or a
            control character. The store would refuse most of these by itself, each in its own way.
    """
    parts = path.split("/")
    if any(part in {"", ".", ".."} for part in parts) or not path.isprintable() or "\\" in path:
        raise StoreError(
            f"{path!r} is not a path inside a checkpoint: expected names joined by '/', without "
            "'..', a leading '/', backslashes or control characters. Nothing was read or written."
        )
    return path


def is_hidden(name: str) -> bool:
    """Whether it is a temporary or checksum file: Spark's and ours start with a dot."""
    return name.startswith(".")
