"""What a history of the model is drawn from."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.model.frames import Cut
from tests.model.scheduler import Fault


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
    """

    recovery: bool
    begun: Stop
    asleep: Stop
    dies: bool
    cut: Cut
    meanwhile: Stop
    wakes: Stop
    goes_on: Stop


_rows = st.lists(st.sampled_from(["a", "b", "same"]), max_size=2)
batches = st.lists(st.lists(_rows, min_size=1, max_size=3), min_size=1, max_size=4)
cuts = st.builds(Cut, turn=st.integers(0, 2), width=st.sampled_from([None, None, None, 1, 2]))
who = st.integers(0, 7)
places = st.sampled_from(
    [
        "the end",
        *["EndTxn"] * 3,
        *["wait"] * 3,
        *["put decisions"] * 2,
        "list decisions",
        "put commits",
        "put offsets",
        "InitProducerId",
        "Produce",
        "ListTransactions",
        "DescribeTransactions",
        "Fetch",
    ]
)
faults = st.sampled_from([Fault.LOST, Fault.REFUSED])
times = st.sampled_from(["markers", *["time"] * 6, "half", "half", *["expiry"] * 3])

_passes = st.sampled_from([0, 0, 0, 1, 1, 2, 3])
_turning_points = st.sampled_from(["wait", *["EndTxn"] * 2, *["put decisions"] * 2, "put commits"])
_far = st.sampled_from(["the end", "the end", "put commits", "EndTxn"])
_turns = st.builds(Stop, _turning_points, _passes, st.booleans())
_first_turns = st.builds(Stop, _turning_points)
_anywhere = st.one_of(_turns, st.builds(Stop, places, _passes, st.booleans()))
_to_the_end = st.one_of(st.builds(Stop, _far, st.sampled_from([0, 0, 1])), _anywhere)
neglects = st.sampled_from(
    [
        (),
        ("half",),
        *[("time",)] * 3,
        *[("expiry",)] * 2,
        *[("time", "expiry")] * 2,
        ("time", "retention"),
        ("time", "expiry", "retention"),
    ]
)
reliefs = st.builds(
    Relief,
    dies=_turns,
    everybody=st.booleans(),
    neglect=neglects,
    cut=cuts,
    meets=_anywhere,
    fault=st.sampled_from([Fault.NONE, Fault.LOST, Fault.REFUSED]),
    goes_on=_to_the_end,
)
_listing = st.sampled_from(["ListTransactions", "DescribeTransactions", "list decisions"])
sleeps = st.builds(
    Sleep,
    recovery=st.booleans(),
    begun=st.one_of(_first_turns, _turns),
    asleep=st.one_of(st.builds(Stop, _listing, made=st.booleans()), _first_turns),
    dies=st.booleans(),
    cut=cuts,
    meanwhile=st.one_of(_first_turns, _turns),
    wakes=_to_the_end,
    goes_on=_to_the_end,
)
openings = st.one_of(reliefs, sleeps, _turns)
"""How a history begins; rules may do all of it as well, only less often."""
