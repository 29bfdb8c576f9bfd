"""Flink's own bytes as recorded, with the transactions of a test in place of the recorded ones."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

from airflow_eos.kafka.transactions.identity import TransactionIdentity

RECORDED = Path(__file__).parents[1] / "recorded" / "flink"
SERIALIZED = RECORDED / "serialized"
PREFIX = "etl"
PROMISED = (TransactionIdentity("etl-0-7", 4000, 5), TransactionIdentity("etl-1-7", 4001, 6))


def checkpoint_promising(
    folder: Path, prefix: str, promised: Sequence[TransactionIdentity], number: int = 7
) -> Path:
    """A completed checkpoint ``chk-<number>`` of a job with this prefix, of three characters."""
    target = folder / f"chk-{number}"
    target.mkdir(parents=True)
    for name in ("_metadata", "state-file"):
        data = (SERIALIZED / name).read_bytes()
        for old, new in zip(PROMISED, promised, strict=True):
            data = data.replace(_bytes(old), _bytes(new))
        (target / name).write_bytes(data.replace(PREFIX.encode(), prefix.encode()))
    return target


def _bytes(identity: TransactionIdentity) -> bytes:
    name = identity.transactional_id.encode()
    head = struct.pack(">hqH", identity.producer_epoch, identity.producer_id, len(name))
    return head + name


def copy_to(folder: Path, number: int) -> Path:
    """The recorded checkpoint as it is, under this number."""
    return Path(shutil.copytree(SERIALIZED, folder / f"chk-{number}"))
