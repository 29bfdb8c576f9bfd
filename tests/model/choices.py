"""What a history of the model is drawn from."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.model.frames import Cut
from tests.model.scheduler import Fault


@dataclass(frozen=True)
class Opening:
    """How a history begins; rules may do all of it as well, only less often.

    A driver, ``alone`` or taking turns with a ``second`` one or a ``recovery``, each up to its
    next place. With ``recovery``, the first batch may just be ``closed`` when they meet. With
    ``late`` the first driver has decided, settled a part, and died before the second starts; what
    it promised may have timed out.
    """

    kind: str
    cuts: tuple[Cut, Cut]
    closed: bool
    places: tuple[str, str, str, str]
    settled: int
    timed_out: bool
    fault: Fault
    """Of the next call of the driver that finds a promise late."""


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
        "Fetch",
    ]
)
times = st.sampled_from(["markers", *["time"] * 6, "half", "half", *["expiry"] * 3])
faults = st.sampled_from([Fault.LOST, Fault.REFUSED])
_turns = st.sampled_from(["wait", "EndTxn", "put decisions"])
_list_too = st.one_of(_turns, st.just("ListTransactions"))
openings = st.builds(
    Opening,
    kind=st.sampled_from(["alone", "second", "recovery", "late", "late"]),
    cuts=st.tuples(cuts, cuts),
    closed=st.booleans(),
    places=st.tuples(_turns, _turns, _list_too, st.one_of(_turns, places)),
    settled=st.integers(0, 2),
    timed_out=st.booleans(),
    fault=st.sampled_from([Fault.NONE, Fault.LOST, Fault.REFUSED]),
)
