"""What a spectator reads at the end, and in the picture."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from airflow_eos.recovery import AuditReport
from demo.scenario import ACTS
from demo.story import Story


def report(**counts: int) -> AuditReport:
    zero = {"lost": 0, "duplicated": 0, "reordered": 0, "unexpected": 0}
    return AuditReport(
        input_topics=("orders",),
        output_topics=("orders.clean", "orders.rejected"),
        rows_in=200_000,
        rows_out={"orders.clean": 196_000, "orders.rejected": 4_000},
        visible_undecided=0,
        open_rows=0,
        open_partitions=(),
        unidentified=0,
        matched=1,
        unjudged=(),
        offenders=(),
        seconds=1.0,
        **(zero | counts),  # type: ignore[arg-type]
    )


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), record=True, width=100, force_terminal=True)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({}, "lost 0, duplicated 0, reordered 0"),
        ({"duplicated": 7}, "lost 0, duplicated 7, reordered 0"),
    ],
)
def test_the_end_says_the_three_counts(console, counts, words):
    Story(console).end(report(**counts), deaths=4)

    shown = console.export_text()
    assert words in shown
    assert "after 4 deaths" in shown


def test_the_picture_begins_with_the_last_death(console, tmp_path):
    story = Story(console)
    story.say("prologue")
    story.act(4, ACTS[-1])
    story.end(report(), deaths=4)

    story.save_picture(tmp_path / "demo.svg")

    picture = (tmp_path / "demo.svg").read_text()
    assert "prologue" not in picture
    assert "http" not in picture.replace("http://www.w3.org", "").replace("https://www.textual", "")
    assert "duplicated" in picture
