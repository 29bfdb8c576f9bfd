"""What a history of the model is drawn from, by one seeded generator: same seed, same history."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.model.frames import Cut
from tests.model.scheduler import Fault
from tests.model.spark import Unit


@dataclass(frozen=True)
class Stop:
    """Up to a call of a kind, so many of them passed before; then perhaps that call is made."""

    place: str
    passes: int = 0
    made: bool = False


@dataclass(frozen=True)
class Relief:
    """A driver dies (or everybody does), what it left is neglected, and a next driver finds it.

    ``fault`` befalls the call that the next one ``meets``; then it ``goes_on``.
    """

    dies: Stop
    everybody: bool
    neglect: tuple[str, ...]
    cut: Cut
    meets: Stop
    fault: Fault
    goes_on: Stop


@dataclass(frozen=True)
class Sleep:
    """Somebody stands still (SIGSTOP) while a driver goes on, and wakes (SIGCONT).

    It is a ``recovery``, which begins when a driver has ``begun``, or that driver itself. In the
    first case that driver may die and be followed by another. In the end the other one goes on.
    Where ``relieved``, a third driver has taken over before the sleeper wakes.
    """

    recovery: bool
    begun: Stop
    asleep: Stop
    dies: bool
    cut: Cut
    meanwhile: Stop
    relieved: bool
    wakes: Stop
    goes_on: Stop


@dataclass(frozen=True)
class Copy:
    """The checkpoint is copied, life goes on, and the copy is put back in place.

    Whoever ran then may be dead, or asleep meanwhile; it wakes afterwards, or ``first``, before
    anybody has started on the copy.
    """

    copied: Stop
    meanwhile: Stop
    dies: bool
    neglect: tuple[str, ...]
    cut: Cut
    first: bool
    goes_on: Stop
    wakes: Stop


PLACES = (
    "the end",
    *["EndTxn"] * 3,
    *["wait"] * 3,
    *["put decisions"] * 2,
    "list decisions",
    "put commits",
    "put offsets",
    "head offsets",
    "list drivers",
    "put drivers",
    "append note",
    "InitProducerId",
    "Produce",
    "ListTransactions",
    "DescribeTransactions",
    "Fetch",
)
TIMES = ("markers", *["time"] * 6, "half", "half", *["expiry"] * 3)
TIMES_WHERE_ROWS_ARE_LOST = (*TIMES, *["clock back"] * 3, *["compaction"] * 2)
FAULTS = (Fault.LOST, Fault.REFUSED)

_PASSES = (0, 0, 0, 1, 1, 2, 3)
_TURNING_POINTS = (
    "wait",
    *["EndTxn"] * 2,
    *["put decisions"] * 2,
    "put commits",
    "put offsets",
    "append note",
)
_FAR = ("the end", "the end", "put commits", "EndTxn")
_LISTING = ("ListTransactions", "DescribeTransactions", "list decisions", "list offsets")
_NEGLECTS: tuple[tuple[str, ...], ...] = (
    (),
    ("half",),
    *[("time",)] * 3,
    *[("expiry",)] * 2,
    *[("time", "expiry")] * 2,
    ("time", "retention"),
    ("time", "expiry", "retention"),
)
_WIDTHS = (None, None, None, 1, 2)


class Chance(Random):
    """A generator with the words of this model."""

    def yes(self, part: float = 0.5) -> bool:
        return self.random() < part

    def units(self) -> list[Unit]:
        """One to six units of one to three partitions with up to two rows each."""
        return [
            [
                tuple(f"{number}{row}" for row in self._rows())
                for _ in range(self.choice((1, 1, 2, 2, 3)))
            ]
            for number in range(self.randint(1, 6))
        ]

    def _rows(self) -> list[str]:
        return [self.choice(("a", "b", "same")) for _ in range(self.choice((0, 1, 1, 2)))]

    def cut(self) -> Cut:
        return Cut(
            turn=self.randrange(3), width=self.choice(_WIDTHS), reach=self.choice((1, 1, 1, 2))
        )

    def turn(self) -> Stop:
        return Stop(self.choice(_TURNING_POINTS), self.choice(_PASSES), self.yes())

    def first_turn(self) -> Stop:
        return Stop(self.choice(_TURNING_POINTS))

    def anywhere(self) -> Stop:
        place = self.choice(_TURNING_POINTS if self.yes() else PLACES)
        return Stop(place, self.choice(_PASSES), self.yes())

    def to_the_end(self) -> Stop:
        return Stop(self.choice(_FAR), self.choice((0, 0, 1))) if self.yes() else self.anywhere()

    def neglect(self) -> tuple[str, ...]:
        return self.choice(_NEGLECTS)

    def relief(self) -> Relief:
        return Relief(
            dies=self.turn(),
            everybody=self.yes(),
            neglect=self.neglect(),
            cut=self.cut(),
            meets=self.anywhere(),
            fault=self.choice((Fault.NONE, *FAULTS)),
            goes_on=self.to_the_end(),
        )

    def sleep(self) -> Sleep:
        listing = self.yes()
        return Sleep(
            recovery=self.yes(0.4),
            begun=self.turn() if self.yes() else self.first_turn(),
            asleep=Stop(self.choice(_LISTING), made=self.yes()) if listing else self.first_turn(),
            dies=self.yes(),
            cut=self.cut(),
            meanwhile=self.to_the_end() if self.yes() else self.turn(),
            relieved=self.yes(0.3),
            wakes=self.to_the_end(),
            goes_on=self.to_the_end(),
        )

    def copy(self) -> Copy:
        return Copy(
            copied=self.turn(),
            meanwhile=self.turn() if self.yes(0.7) else self.to_the_end(),
            dies=self.yes(0.6),
            neglect=self.neglect(),
            cut=self.cut(),
            first=self.yes(0.3),
            goes_on=self.to_the_end(),
            wakes=self.to_the_end(),
        )
