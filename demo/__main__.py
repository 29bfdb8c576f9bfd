"""The command ``make demo``, or ``python -m demo``: runs the demo on a real broker and Airflow."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from airflow_eos.errors import EosError, printable
from demo.play import play
from demo.stage import Source
from demo.story import Story

NOT_EXACTLY_ONCE = 1
INTERRUPTED = 130


def demo(
    orders: Annotated[int, typer.Option(min=100_000, help="How many orders to write.")] = 200_000,
    source: Annotated[
        Source, typer.Option(help="What reads them: Spark's Kafka source, or ArrowKafkaSource.")
    ] = "spark",
    save_svg: Annotated[
        Path | None, typer.Option(help="Write a picture of the end to this file.")
    ] = None,
) -> None:
    """Kill a streaming app four times, then Airflow's worker alone, and count every row.

    Starts a Kafka broker and an Airflow of its own, and leaves nothing running. Exit status: 0
    every row exactly once, 1 not so, 2 something is missing on this machine.
    """
    story = Story()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _like_ctrl_c)
    try:
        report = play(orders, story, source)
    except KeyboardInterrupt:
        story.say("Interrupted; everything was ended")
        raise typer.Exit(INTERRUPTED) from None
    if save_svg is not None:
        story.save_picture(save_svg)
    if not report.ok:
        raise typer.Exit(NOT_EXACTLY_ONCE)


def _like_ctrl_c(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Run the demo; an error is one message, and exit status 2. Its trace is in the work folder."""
    try:
        typer.run(demo)
    except Exception as error:  # noqa: BLE001 - whatever it is, a trace says nobody what to do
        said = str(error) if isinstance(error, EosError) else f"{type(error).__name__}: {error}"
        print("demo:", "\n".join(map(printable, said.splitlines())), file=sys.stderr)  # noqa: T201
        sys.exit(2)


if __name__ == "__main__":
    main()
