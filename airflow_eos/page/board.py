"""Many pipelines at a time: looked at side by side, kept for a moment, answered in time.

A list of 500 must not wait for the one store that does not answer: its row is that of the look
before, with its age, and a pipeline that was never looked at to the end is counted as pending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.page.answers import Answers
from airflow_eos.page.look import Look
from airflow_eos.page.planned import planned
from airflow_eos.page.states import STALL_AFTER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos.page.listed import Listed
    from airflow_eos.page.views import Detail, PlanView, Row

FRESH_S = 3.0
"""A row is shown again for so long before its checkpoint is looked at anew."""
FAILED_FRESH_S = 30.0
"""The same for what cannot be read or reached: it must not keep the threads busy."""
WITHIN_S = 2.0
"""The list is answered after so long, whatever is still being looked at."""
PLAN_WITHIN_S = 15.0
"""A plan asks the systems themselves, each of which has :data:`.planned.TIMEOUT_S`."""


class Board:
    """Pipelines as the page shows them, for any number of callers at once.

    Args:
        stall_after_ms: see :func:`airflow_eos.page.states.state_of`.
        fresh_s, within_s: see above; a test gives its own.
    """

    def __init__(
        self,
        stall_after_ms: int = STALL_AFTER_MS,
        *,
        fresh_s: float = FRESH_S,
        within_s: float = WITHIN_S,
    ) -> None:
        self._stall_after_ms = stall_after_ms
        self._looks: dict[tuple[str, str], Look] = {}

        def fresh(row: Row) -> float:
            return FAILED_FRESH_S if row.state == "unreadable" else fresh_s

        self._rows: Answers[Row] = Answers(16, within_s=within_s, fresh_s=fresh)
        self._details: Answers[Detail] = Answers(
            4, within_s=max(within_s, 5.0), fresh_s=lambda _: min(fresh_s, 1.0)
        )
        self._plans: Answers[PlanView] = Answers(
            4, within_s=PLAN_WITHIN_S, fresh_s=lambda _: fresh_s
        )

    def rows(self, listed: Sequence[Listed]) -> tuple[tuple[Row, ...], int]:
        """The rows that are known in time, and how many are not."""
        looks = {each.id: self._look("row", each) for each in listed}
        found = self._rows.of({key: look.row for key, look in looks.items()})
        rows = tuple(found[key] for key in looks if key in found)
        return rows, len(looks) - len(rows)

    def detail(self, listed: Listed) -> Detail | None:
        """One pipeline with its batches; None: its store has not answered in time."""
        look = self._look("detail", listed)
        return self._details.of({listed.id: look.detail}).get(listed.id)

    def plan(self, listed: Listed) -> PlanView | None:
        """What recovery would do; None: nobody has answered in time."""
        return self._plans.of({listed.id: lambda: planned(listed)}).get(listed.id)

    def forget(self, listed: Listed) -> None:
        """Look anew next time: somebody has just changed something."""
        for answers in (self._rows, self._details, self._plans):
            answers.forget(listed.id)

    def _look(self, kind: str, listed: Listed) -> Look:
        """One for each kind of question: two of them may be asked at once."""
        look = self._looks.setdefault((kind, listed.id), Look(listed, self._stall_after_ms))
        look.listed = listed  # its connections may have changed since
        return look
