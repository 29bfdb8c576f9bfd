"""The name of a participant and the keys of its work; pure.

A name is ``<prefix>.<participant>``, and a key of it is ``<name>-<task>-<attempt>-<32 hex>``: all
before the last three parts is the name, so no name is taken for the beginning of another.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from airflow_eos.core.protocol.decision import is_formed
from airflow_eos.errors import CheckpointFormatError, ConfigurationError

_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_OF_TASK = re.compile(r"(.+)-\d{1,10}-\d{1,10}-([0-9a-f]{32})", re.ASCII)


@dataclass(frozen=True)
class KeysOfName:
    """The keys of one ``name``: make and check them."""

    name: str

    @property
    def digits(self) -> str:
        """Hex digits that begin the own part of each key, where a server lists keys of others, too.

        Those others use the same name, and keep it elsewhere.
        """
        return ""

    def new_key(self, task: int, task_attempt: int) -> str:
        """Return a new key, which is never used again in any database."""
        return (
            f"{self.name}-{task}-{task_attempt}-{self.digits}{uuid.uuid4().hex[len(self.digits) :]}"
        )

    def is_own(self, key: str) -> bool:
        """Whether ``key`` is a key of this name."""
        found = _OF_TASK.fullmatch(key)
        return found is not None and found[1] == self.name and found[2].startswith(self.digits)

    def checked(self, key: str) -> str:
        """Return ``key`` if it is of this name (CheckpointFormatError)."""
        if not self.is_own(key):
            raise CheckpointFormatError(
                f"{key!r} is no key of {self.name!r}: expected {self.name}-TASK-ATTEMPT-ID. "
                "Nothing was done with it."
            )
        return key


def name_of(prefix: str, participant: str, *, called: str = "gid_prefix") -> str:
    """Return the name of a participant's keys, notes and witnesses (ConfigurationError)."""
    if not is_formed(prefix, _PREFIX):
        raise ConfigurationError(
            f"{called} {prefix!r}: expected 1 to 80 letters, digits, underscores or hyphens."
        )
    return f"{prefix}.{participant}"
