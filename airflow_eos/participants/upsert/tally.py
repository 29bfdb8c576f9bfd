"""Whether a target still has what was written to it: it counts, and the checkpoint remembers.

Rows that were applied are in no checkpoint any more. A backup that is put back, a standby that
lagged and takes over, or a server that lost what it had acknowledged lacks the last numbers too.

Of rows that are written and not counted yet the number tells nothing: so the server must be the
same one before them and after the count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.errors import DeliveryError, OwnershipError

if TYPE_CHECKING:
    from airflow_eos.participants.upsert.target import Target


class Tally:
    """How far a target is known to have counted.

    Args:
        target: that counts.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known = 0
        self._life: str | None = None

    def begin(self) -> None:
        """To be called before the rows that are counted next."""
        self._life = self._target.life()

    def count(self) -> int:
        """Let the target count one more; rows are written by then, and not marked.

        Raises:
            OwnershipError: it was set back since it was asked last.
            DeliveryError: another server answers than at the beginning.
        """
        number = self._target.count(self._known)
        if number is None:
            raise self.set_back(f"it counts to {self._target.tally()}, after {self._known}")
        self._known = number
        if self._life not in (None, self._target.life()):
            raise DeliveryError(
                f"The {self._called} was started again, or another server took over, while rows "
                "were written: it may lack some that it had acknowledged. None is marked as "
                "applied, and writing them again is harmless: start the query again, or run a "
                "recovery."
            )
        return number

    def require(self, marked: int = 0) -> None:
        """Refuse a target that counts to less than it did.

        Args:
            marked: the highest number in the checkpoint, read before this.

        Raises:
            OwnershipError: what was found, and how to go on.
        """
        self._known = max(self._known, marked)
        tally = self._target.tally()
        if tally < self._known:
            raise self.set_back(f"it counts to {tally}, after {self._known}")
        self._known = tally

    def set_back(self, found: str) -> OwnershipError:
        """The error that tells of it."""
        return OwnershipError(
            f"The {self._called} was set back ({found}): a backup was put back, a standby took "
            "over that lagged, or the server lost what it had acknowledged. Rows of batches that "
            "are over are gone there, and nothing delivers them again. Put its newest data back. "
            "Where there are none, deliver anew from a new checkpoint, whose values replace all "
            "older ones; or compare the target with its source and mend it, and go on knowingly: "
            f"{self._target.go_on(self._known)}, then start again."
        )

    @property
    def _called(self) -> str:
        return f"target {self._target.address['target']!r} in {self._target.address['system']}"
