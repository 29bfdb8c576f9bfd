"""The names and keys under which the work of a participant goes; pure.

A name is ``<prefix>.<participant>``, and a key of it is ``<name>-<task>-<attempt>-<32 hex>``: what
is before the last three parts is the name, so none is ever taken for the beginning of another.
"""

from __future__ import annotations

import re
import uuid

from airflow_eos.errors import CheckpointFormatError, ConfigurationError

_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_OF_TASK = re.compile(r"(.+)-\d{1,10}-\d{1,10}-([0-9a-f]{32})", re.ASCII)


class KeysOfName:
    """The keys of one ``name``, which whoever has one is given with this."""

    name: str

    def new_key(self, task: int, attempt: int) -> str:
        """A key that is never used again in any database."""
        return f"{self.name}-{task}-{attempt}-{uuid.uuid4().hex}"

    def is_own(self, key: str) -> bool:
        """Whether it is a key of this name."""
        found = _OF_TASK.fullmatch(key)
        return found is not None and found[1] == self.name

    def checked(self, key: str) -> str:
        """Return ``key`` if it is of this name (CheckpointFormatError)."""
        if not self.is_own(key):
            raise CheckpointFormatError(
                f"{key!r} is no key of {self.name!r}: expected {self.name}-TASK-ATTEMPT-ID. "
                "Nothing was done with it."
            )
        return key

    def own_part(self, key: str) -> str:
        """The part of a key that no other one has: 32 hex digits (CheckpointFormatError)."""
        return self.checked(key)[-32:]


def name_of(prefix: str, participant: str, *, called: str = "gid_prefix") -> str:
    """The name under which all of it goes (ConfigurationError)."""
    if _PREFIX.fullmatch(prefix) is None:
        raise ConfigurationError(
            f"{called} {prefix!r}: expected 1 to 80 letters, digits, underscores or hyphens."
        )
    return f"{prefix}.{participant}"
