"""Draws docs/images/killed-*.svg: what stands where when the driver dies at each place.

``python docs/kill_places.py`` writes all of them, from the one table below.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).with_name("images")
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


@dataclass(frozen=True, slots=True)
class Place:
    """One place where the driver can die, in batch 7 with three tasks.

    Attributes:
        name: the failpoint; ``timeout`` is ``decided``, and no recovery runs in time.
        when: what has just been done.
        kafka: the state of each task's transaction.
        decided: whether ``decisions/7/1.json`` in ``eos`` says COMMIT.
        plan: what the recovery plan says, an action or "nothing".
        recovery: what recovery does, in lines.
        then: what the app does when it is resumed, in lines.
    """

    name: str
    when: str
    kafka: tuple[str, str, str]
    decided: bool
    plan: str
    recovery: tuple[str, ...]
    then: tuple[str, ...]


PLACES = (
    Place(
        "prepared",
        "every task has written, nothing is decided",
        (OPEN, OPEN, OPEN),
        decided=False,
        plan="ABORT",
        recovery=("seals attempt 1 (ABORT),", "then aborts all three"),
        then=("runs batch 7 again,", "as a new attempt"),
    ),
    Place(
        "decided",
        "the decision is durable, nothing is committed",
        (OPEN, OPEN, OPEN),
        decided=True,
        plan="COMMIT",
        recovery=("commits all three: readers have", "the rows, the app is still down"),
        then=("finds batch 7 delivered,", "and writes no row of it"),
    ),
    Place(
        "settled-some",
        "some transactions are committed, others are not",
        (COMMITTED, OPEN, OPEN),
        decided=True,
        plan="COMMIT",
        recovery=("commits the other two; the first", "is known to be committed"),
        then=("finds batch 7 delivered,", "and writes no row of it"),
    ),
    Place(
        "settled",
        "all are committed, Spark does not know it yet",
        (COMMITTED, COMMITTED, COMMITTED),
        decided=True,
        plan="nothing",
        recovery=("finds nothing open,", "and does nothing"),
        then=("finds batch 7 delivered,", "and writes no row of it"),
    ),
    Place(
        "timeout",
        "decided, and no recovery ran before the timeout",
        (ABORTED, ABORTED, ABORTED),
        decided=True,
        plan="REPLAY",
        recovery=("ends nothing: the broker has", "aborted what was promised"),
        then=("evaluates batch 7 again, writes", "what is missing, and only that"),
    ),
)

_STYLE = """
    .box { fill: #f6f8fa; stroke: #57606a; } .inner { fill: #fff; stroke: #8c959f; }
    .text { fill: #1f2328; } .dim { fill: #57606a; font-size: 12px; } .bold { font-weight: 600; }
    .open { fill: #9a6700; } .committed { fill: #1a7f37; } .aborted, .absent { fill: #cf222e; }
    .act { fill: #0969da; font-weight: 700; }
    @media (prefers-color-scheme: dark) {
      .box { fill: #161b22; stroke: #8b949e; } .inner { fill: #0d1117; stroke: #6e7681; }
      .text { fill: #e6edf3; } .dim { fill: #9da7b3; }
      .open { fill: #d29922; } .committed { fill: #3fb950; } .aborted, .absent { fill: #f85149; }
      .act { fill: #58a6ff; }
    }
"""
_HOW = (
    'role="img" aria-labelledby="t d" font-family="ui-sans-serif, system-ui, sans-serif" '
    'font-size="14"'
)
_WIDTH, _HEIGHT, _COLUMN, _ROW = 860, 232, 270, 46


def draw(place: Place) -> str:
    """The picture of one place, as the text of an SVG."""
    title = f"Killed at {place.name}: {place.when}"
    columns: tuple[tuple[str, list[tuple[str, str, str]]], ...] = (
        ("Kafka", [(f"task {i}", state, state) for i, state in enumerate(place.kafka)]),
        ("Checkpoint", _files(place)),
        ("Recovery", []),
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_HOW}>',
        f'<title id="t">{escape(title)}</title>',
        f'<desc id="d">{escape(in_words(place))}</desc>',
        f"<style>{_STYLE}</style>",
        _text(15, 22, f"Killed at {place.name}", "text bold"),
        _text(15 + 9 * len(f"Killed at {place.name}"), 22, place.when, "dim"),
    ]
    for number, (name, rows) in enumerate(columns):
        left = 15 + number * (_COLUMN + 10)
        parts.append(
            f'<rect class="box" x="{left}" y="36" width="{_COLUMN}" height="186" rx="10"/>'
        )
        parts.append(_text(left + 16, 60, name, "text bold"))
        for at, (what, says, kind) in enumerate(rows):
            parts += _row(left + 14, 72 + at * _ROW, what, says, kind)
    return "\n".join([*parts, *_recovery(place, 15 + 2 * (_COLUMN + 10) + 16), "</svg>", ""])


def in_words(place: Place) -> str:
    """The same for those who do not see the picture."""
    decision = "a COMMIT decision names all" if place.decided else "there is no decision"
    return (
        f"Transactions: {', '.join(place.kafka)}. In the checkpoint {decision}; commits/7 is "
        f"absent. The plan says {place.plan}. Recovery {' '.join(place.recovery)}. The resumed app "
        f"{' '.join(place.then)}."
    )


def _files(place: Place) -> list[tuple[str, str, str]]:
    decision = ("COMMIT", COMMITTED) if place.decided else ("absent", "absent")
    return [
        ("offsets/7", "planned", "dim"),
        ("decisions/7/1.json", *decision),
        ("commits/7", "absent", "absent"),
    ]


def _recovery(place: Place, left: int) -> list[str]:
    lines = [("The plan says", "dim"), (place.plan, "act"), ("Recovery", "dim")]
    lines += [(line, "text") for line in place.recovery]
    lines += [("The app, resumed,", "dim"), *((line, "text") for line in place.then)]
    return [_text(left, 82 + at * 18, line, kind) for at, (line, kind) in enumerate(lines)]


def _row(left: int, top: int, what: str, says: str, kind: str) -> list[str]:
    wide = _COLUMN - 28
    return [
        f'<rect class="inner" x="{left}" y="{top}" width="{wide}" height="38" rx="6"/>',
        _text(left + 10, top + 24, what, "text"),
        _text(left + wide - 10, top + 24, says, kind, ' text-anchor="end"'),
    ]


def _text(x: int, y: int, text: str, kind: str, more: str = "") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}"{more}>{escape(text)}</text>'


if __name__ == "__main__":
    for each in PLACES:
        (IMAGES / f"killed-{each.name}.svg").write_text(draw(each), encoding="utf-8")
