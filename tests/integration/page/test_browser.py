"""The page in a real browser, with a real pipeline behind it on a real broker.

The pictures of docs/page.md are taken on the way, where ``EOS_PICTURES`` names their folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, CDPSession, Locator, Page, ViewportSize, expect

from airflow_eos.core.checkpoint import CheckpointStore, history, read_heartbeat, standing_request
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.local import EmbeddedKafka
from airflow_eos.ops.page.views import pipeline_id
from tests.integration.page.conftest import beats, falls_silent, picture, recorded_checkpoint
from tests.support.airflow_server import airflow_server
from tests.support.browser import Scheme, page_in, serious_findings
from tests.support.fleet import fleet, kept_alive
from tests.support.pipeline import KILLED, Pipeline, finish, kill, wait_until

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[3]
expect.set_options(timeout=30_000)  # for a machine that is busy
SCHEMES: tuple[Scheme, ...] = ("light", "dark")

# Notes when the 500th row stood and was painted. What a test evaluates later would wait for it.
STOOD = """
new MutationObserver(() => {
  if (window.stoodAt || document.querySelectorAll("tbody tr").length < 500) return;
  window.stoodAt = -1;
  requestAnimationFrame(() => setTimeout(() => { window.stoodAt = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""
TOOK = """() => {
  const asked = performance.getEntriesByType("resource");
  return window.stoodAt - asked.find((each) => each.name.endsWith("/api/pipelines")).responseEnd;
}"""


def worked_s(measured: CDPSession) -> float:
    """Seconds for which the page itself has worked; other programs of the machine do not count."""
    found = measured.send("Performance.getMetrics")["metrics"]
    return next(float(each["value"]) for each in found if each["name"] == "TaskDuration")


SEEN_SILENT_MS = 40_000
"""A driver is silent once the page has seen it stand still for three of its intervals."""


@contextmanager
def served(
    folder: Path, *checkpoints: Path | str, bootstrap: str | None = None, port: int = 0
) -> Iterator[str]:
    """``airflow-eos ui`` as a person starts it in that folder; its address."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "airflow_eos", "ui", *map(str, checkpoints)),
            *("--port", str(port)),
            *(("-b", bootstrap) if bootstrap else ()),
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    local = [folder / each for each in checkpoints if isinstance(each, Path)]
    try:
        with kept_alive([each for each in local if each.parent.name[-3:].isdecimal()]):
            yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(120)
        process.stdout.close()


def colour_of(bar: Locator) -> str:
    return str(bar.evaluate("e => getComputedStyle(e).backgroundColor"))


def states(page: Page) -> set[str]:
    return set(page.locator("tbody .pill").all_inner_texts())


def test_500_pipelines_are_there_within_a_second_of_the_answer(browser, tmp_path):
    recorded = recorded_checkpoint(tmp_path / "recorded")
    with served(tmp_path, *fleet(recorded, tmp_path, 500)) as url:
        wait_until(lambda: answered(url) == 500, timeout=300, what="a first look at all of them")
        with page_in(browser) as page:
            page.add_init_script(STOOD)
            measured = page.context.new_cdp_session(page)
            measured.send("Performance.enable", {"timeDomain": "threadTicks"})
            page.goto(url)
            expect(page.locator("tbody tr")).to_have_count(500)
            worked, took = worked_s(measured), page.evaluate(TOOK)
            said = f"500 rows stood {took:.0f} ms after the answer, {1000 * worked:.0f} ms of work"
            print(said)  # noqa: T201
            assert took > 0
            assert 0 < worked < 1
            assert page.locator("tbody .pill").first.inner_text() == "failed"

            page.keyboard.press("/")
            page.keyboard.type("payments-eu")
            expect(page.locator("tbody tr")).to_have_count(13)
            page.keyboard.press("Escape")
            expect(page.locator("tbody tr")).to_have_count(500)
            page.get_by_role("button", name="Need somebody").click()
            expect(page.locator("tbody tr")).to_have_count(3, timeout=SEEN_SILENT_MS)
            assert states(page) == {"failed", "silent"}
            page.get_by_role("button", name="All").click()
            page.get_by_role("columnheader", name="Lag").get_by_role("button").click()
            assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Lag")
            page.keyboard.press("j")
            page.keyboard.press("j")
            page.keyboard.press("Enter")
            expect(page.locator(".part-batches table")).to_be_visible()
            page.keyboard.press("Escape")
            expect(page.locator("tbody tr")).to_have_count(500)

            page.get_by_placeholder("Filter").fill("no such pipeline")
            expect(page.get_by_role("heading", name="Nothing fits")).to_be_visible()
            page.get_by_role("button", name="Show all").click()
            expect(page.locator("tbody tr")).to_have_count(500)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_everybody_can_read_it_in_both_dresses(browser, tmp_path, scheme):
    recorded = recorded_checkpoint(tmp_path / "recorded")
    few = fleet(recorded, tmp_path, 32)
    with (
        served(tmp_path, *(each.relative_to(tmp_path) for each in few)) as url,
        page_in(browser, scheme) as page,
    ):
        page.goto(url)
        expect(page.locator("tbody tr")).to_have_count(32, timeout=30_000)
        assert serious_findings(page) == []
        # What was promised is in no calm where nobody is alive to settle it.
        calm = page.locator("tr[data-state=running] .left[data-urgency=calm] .left-fill").first
        alone = page.locator("tr[data-state=silent] .left[data-urgency=calm] .left-fill").first
        expect(alone).to_be_attached(timeout=SEEN_SILENT_MS)
        assert colour_of(calm) != colour_of(alone)
        expect(page.locator("tr[data-state=looking]")).to_have_count(0, timeout=SEEN_SILENT_MS)
        picture(page, f"list-{scheme}")
        expect(page.locator(".explained")).to_contain_text("readers were promised")
        expect(page.get_by_role("columnheader", name="Newest 16 batches")).to_be_visible()
        failed = page.locator("tr[data-state=failed]").first
        why = "the driver failed: TopicError: topic 'orders.clean' has 3 partitions"
        expect(failed).to_contain_text(why)
        page.get_by_role("link", name="stock-eu-003").click()
        expect(page.locator(".part-batches tbody tr")).to_have_count(24)
        expect(page.locator(".part-recovery > .calm")).to_contain_text("not told which cluster")
        expect(page.locator(".problem:visible")).to_have_count(0)  # nothing has gone wrong
        named = page.get_by_role("region", name="Open work").locator("td")
        assert named.nth(1).inner_text() == "sink"
        assert named.nth(2).inner_text().startswith("promised by batch 1003")
        expect(page.locator(".part-head .pill")).to_have_text("silent", timeout=SEEN_SILENT_MS)
        picture(page, f"one-{scheme}", whole=True)
        assert serious_findings(page) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_of_a_driver_that_lives_sparks_ui_is_a_link_that_says_from_where_it_opens(
    browser, tmp_path, scheme
):
    checkpoint = recorded_checkpoint(tmp_path / "recorded")
    beats(checkpoint)
    store = CheckpointStore.open(checkpoint)
    heartbeat = read_heartbeat(store)
    assert heartbeat is not None
    address = "http://node-1.example:4040"
    began = history.started(heartbeat, stood_by=False, app="etl.py", release="1", spark_ui=address)
    history.note(store, [began])
    with (
        served(tmp_path, checkpoint.relative_to(tmp_path)) as url,
        page_in(browser, scheme) as page,
    ):
        page.set_viewport_size(TELEPHONE)
        page.goto(url)
        page.locator("tbody tr a").first.click()
        link = page.get_by_role("link", name="Spark UI")
        expect(link).to_have_attribute("href", address)
        expect(link).to_have_attribute("rel", "noopener noreferrer")
        expect(page.locator(".part-facts")).to_contain_text("from the driver's network only")
        assert page.evaluate(WIDER) == 0
        assert serious_findings(page) == []
        falls_silent(checkpoint)
        expect(link).to_have_count(0, timeout=SEEN_SILENT_MS)


# A table that is cut at the edge of the screen hides what is beyond it.
CUT = """() => [...document.querySelectorAll(".scroll")]
  .filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.ariaLabel)"""
TELEPHONE: ViewportSize = {"width": 390, "height": 844}
WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Text that another thing covers, or that has no room for its first letters.
HIDDEN = """() => [...document.querySelectorAll("tbody td *, tbody td, dd, h1, h2")].filter((e) => {
  const box = e.getBoundingClientRect();
  if (!box.width || !e.innerText?.trim() || e.children.length) return false;
  if (e.closest(".c-name")?.getBoundingClientRect().width < 150) return true;
  if (box.bottom > innerHeight || box.top < 0 || box.right > innerWidth) return false;
  const there = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  return there && there !== e && !e.contains(there) && !there.contains(e);
}).map((e) => e.innerText)"""


def test_on_a_telephone_nothing_is_wider_than_the_screen_or_covered(browser, tmp_path):
    recorded = recorded_checkpoint(tmp_path / "recorded")
    few = fleet(recorded, tmp_path, 32)
    with (
        served(tmp_path, *(each.relative_to(tmp_path) for each in few)) as url,
        page_in(browser) as page,
    ):
        page.set_viewport_size(TELEPHONE)
        page.goto(url)
        expect(page.locator("tbody tr")).to_have_count(32, timeout=30_000)
        expect(page.locator("tr[data-state=silent]").first).to_be_visible(timeout=SEEN_SILENT_MS)
        picture(page, "list-telephone")
        assert page.evaluate(WIDER) == 0
        assert page.evaluate(HIDDEN) == []
        page.get_by_role("link", name="stock-eu-003").click()
        expect(page.locator(".part-batches tbody tr")).to_have_count(24)
        page.get_by_text("address", exact=True).click()
        expect(page.locator(".part-head .pill")).to_have_text("silent", timeout=SEEN_SILENT_MS)
        # What a person has unfolded stays so, however often the page is drawn anew.
        expect(page.locator("details[open]")).to_be_visible()
        picture(page, "one-telephone", whole=True)
        assert page.evaluate(WIDER) == 0
        assert page.evaluate(CUT) == []
        assert page.evaluate(HIDDEN) == []
        assert serious_findings(page) == []


def test_a_server_that_has_gone_is_said_and_what_was_seen_stands(browser, tmp_path):
    recorded = recorded_checkpoint(tmp_path / "recorded")
    few = [each.relative_to(tmp_path) for each in fleet(recorded, tmp_path, 8)]
    with page_in(browser, strict=False) as page:  # a browser logs each failed request
        with served(tmp_path, *few) as url:
            wait_until(lambda: answered(url) == 8, timeout=300, what="a first look at all of them")
            page.goto(url)
            expect(page.locator("tbody tr")).to_have_count(8)
            expect(page.locator("header .muted")).to_have_text("asked every 3 s · read only")
        gone = page.get_by_role("alert")
        expect(gone).to_contain_text("The server does not answer. It is asked again by itself.")
        expect(page.locator("header .muted")).to_have_text("no answer: what was seen last")
        expect(page.locator("tbody tr")).to_have_count(8)
        assert serious_findings(page) == []
        page.get_by_role("link", name="stock-eu-003").click()
        expect(page.locator(".part-head").get_by_role("alert")).to_contain_text("does not answer")
        with served(tmp_path, *few, port=int(url.rstrip("/").rpartition(":")[2])):
            expect(page.locator(".part-head .pill")).to_have_text("silent", timeout=SEEN_SILENT_MS)
            page.keyboard.press("Escape")
            expect(page.locator("header .muted")).to_have_text("asked every 3 s · read only")
            expect(gone).to_have_count(0)


def test_a_checkpoint_that_cannot_be_read_says_why_beside_those_that_can(browser, tmp_path):
    recorded = recorded_checkpoint(tmp_path / "recorded")
    broken, well = fleet(recorded, tmp_path, 2)
    (broken / "eos" / "driver.json").write_text("{ no heartbeat")
    with (
        served(tmp_path, *(each.relative_to(tmp_path) for each in (broken, well))) as url,
        page_in(browser) as page,
    ):
        wait_until(lambda: answered(url) == 2, timeout=300, what="a first look at both")
        page.goto(url)
        expect(page.locator("tbody tr")).to_have_count(2)
        # That one runs shows at a second look.
        expect(page.locator("tbody .pill")).to_have_text(["unreadable", "running"])
        unreadable = page.locator("tr[data-state=unreadable]")
        expect(unreadable).to_contain_text("driver.json")
        expect(page.get_by_role("button", name="Need somebody")).to_contain_text("1")
        assert serious_findings(page) == []
        unreadable.get_by_role("link").click()
        expect(page.locator(".part-head .problem")).to_contain_text("driver.json")
        expect(page.locator(".part-more")).to_contain_text("Checkpoint")
        # What can be read is shown: its batches are there, with the one in flight.
        expect(page.locator(".part-batches tbody tr")).to_have_count(24)
        assert serious_findings(page) == []


def test_who_has_no_pipeline_is_told_how_there_would_be_one(browser, tmp_path):
    checkpoint = recorded_checkpoint(tmp_path / "recorded")
    lake = tmp_path / "lake"
    others = fleet(checkpoint, lake, 13)
    with (
        airflow_server(
            tmp_path, str(checkpoint), {each.parent.name: str(each) for each in others}
        ) as server,
        page_in(browser) as page,
        page_in(browser, strict=False) as outer,
    ):
        page.context.add_cookies(
            [{"name": "_token", "value": server.token("ned"), "url": server.url}]
        )
        page.goto(f"{server.url}/eos/")
        expect(page.get_by_role("heading", name="No pipeline yet")).to_be_visible()
        expect(page.locator(".empty")).to_contain_text("SparkStreamingOperator")
        expect(page.locator("tbody tr")).to_have_count(0)
        assert serious_findings(page) == []
        shutil.rmtree(lake)
        # The server took its time, and they are to run now.
        alive = kept_alive(fleet(checkpoint, lake, 13))
        # Where a task's link leads: to its pipeline, in the frame of Airflow's own UI.
        outer.context.add_cookies(
            [{"name": "_token", "value": server.token("ann"), "url": server.url}]
        )
        there = pipeline_id(str(checkpoint), "orders_etl", "run")
        with alive:
            outer.goto(f"{server.url}/plugin/eos-pipelines#/{there}")
            frame = outer.frame_locator("iframe")
            expect(frame.locator(".part-head h1")).to_have_text("orders_etl")
            frame.get_by_role("link", name="← Pipelines").click()
            expect(frame.locator("tbody tr")).to_have_count(14)
            looking = frame.locator("tr[data-state=looking]")
            expect(looking).to_have_count(0, timeout=SEEN_SILENT_MS)
            picture(outer, "airflow")


def test_a_killed_pipeline_shows_its_open_work_and_the_plan_of_the_shell(
    browser: Browser, kafka_broker: EmbeddedKafka, host, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka_broker, tmp_path / "orders-etl", host=host)
    pipeline.feed(6000)
    pipeline.run(failpoints="settled-some=kill@2", expect=KILLED, timeout_s=120)
    open_now = {each.transactional_id for each in pipeline.open_transactions()}
    assert open_now
    shell = subprocess.run(
        [
            *(sys.executable, "-m", "airflow_eos", "plan", pipeline.checkpoint),
            *("-b", pipeline.bootstrap, "--json"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    plan = json.loads(shell.stdout)
    CheckpointStore.open(tmp_path / "all").put("metadata", b'{"id":"1"}')  # and no batch yet
    with (
        served(tmp_path, "orders-etl/checkpoint", "all", bootstrap=pipeline.bootstrap) as url,
        page_in(browser, "dark") as page,
    ):
        page.goto(url)
        page.get_by_role("link", name="orders-etl").click()
        expect(page.locator(".part-head .pill")).to_have_text("silent", timeout=SEEN_SILENT_MS)
        table = page.get_by_role("region", name="Recovery plan").locator("tbody tr")
        expect(table).to_have_count(len(plan["steps"]))
        for line, step in zip(table.all(), plan["steps"], strict=True):
            cells = line.locator("td").all_inner_texts()
            assert (cells[0], cells[1], cells[5]) == (
                step["action"].upper(),
                step["work"]["key"],
                step["reason"],
            )
        bars = page.get_by_role("region", name="Open work").get_by_role("progressbar")
        expect(bars).to_have_count(len(open_now))
        first = float(bars.first.locator("span").evaluate("e => parseFloat(e.style.width)"))
        page.wait_for_timeout(2500)
        later = float(bars.first.locator("span").evaluate("e => parseFloat(e.style.width)"))
        assert 0 < later < first <= 100, "the bar runs out"
        expect(page.locator(".part-facts")).to_contain_text("planned, ")
        ended = page.locator(".events li").first
        expect(ended).to_contain_text("no last word, in phase", timeout=SEEN_SILENT_MS)
        expect(page.locator(".part-facts")).to_contain_text("unread")
        assert serious_findings(page) == []
        picture(page, "killed-dark", whole=True)
        page.go_back()
        expect(page.get_by_role("link", name="all", exact=True)).to_be_visible()
        assert "new" in states(page)


def test_a_running_pipeline_is_drained_from_airflow(
    browser: Browser, kafka_broker: EmbeddedKafka, host, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka_broker, tmp_path / "pipeline", host=host)
    store = CheckpointStore.open(pipeline.checkpoint)
    process = pipeline.start(until_caught_up=False, max_offsets_per_trigger=600)
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": pipeline.bootstrap}}
    try:
        for batch in range(12):
            pipeline.feed(120 + 40 * (batch % 5))
            wait_until(partial(committed, store, batch), what="a batch")
        with (
            airflow_server(
                tmp_path, pipeline.checkpoint, {}, AIRFLOW_CONN_KAFKA_DEFAULT=json.dumps(kafka)
            ) as server,
            page_in(browser) as page,
        ):
            page.context.add_cookies(
                [{"name": "_token", "value": server.token("ann"), "url": server.url}]
            )
            pipeline.feed(500)
            page.goto(f"{server.url}/eos/")
            page.get_by_role("link", name="orders_etl").click()
            expect(page.locator(".part-batches tbody tr").nth(9)).to_be_visible()
            expect(page.locator(".part-recovery .well")).to_contain_text("nothing to recover")
            resume = page.get_by_role("button", name="Resume")
            expect(resume).to_have_attribute("aria-disabled", "true")
            # Why not is to be read without a mouse.
            expect(page.locator("#why-resume")).to_contain_text("It is running")
            expect(page.locator(".part-lines .drawn")).to_have_count(3)
            expect(page.locator(".events li").first).to_contain_text("started")
            expect(page.locator(".events li").first).to_contain_text("by hand")
            expect(page.locator(".part-facts")).to_contain_text("no watchdog has ever looked")
            expect(page.locator(".part-more")).to_contain_text("Newest consistent cut")
            assert serious_findings(page) == []
            # Each start seals an attempt, also the first one of all: nothing was tried before.
            expect(page.locator(".aborted")).to_have_count(0)
            oldest = page.locator(".c-decisions").last
            expect(oldest).to_have_text(re.compile("^[0-9]+ transactions?$"))
            picture(page, "running-light", whole=True)

            page.get_by_role("button", name="Drain").click()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_contain_text("eos/drain.json")
            assert serious_findings(page) == []
            picture(page, "drain")
            page.keyboard.press("Escape")
            expect(dialog).to_have_count(0)
            assert standing_request(store) is None, "who only looks has not drained"

            page.get_by_role("button", name="Drain").click()
            dialog.get_by_role("button", name="Drain").click()
            expect(page.get_by_role("status")).to_contain_text("Asked to drain by page ann")
            output = finish(process, 120)
            assert process.returncode == 0, output[-3000:]
            assert read_heartbeat(store).phase == "stopped"
            expect(page.locator(".part-head .pill")).to_have_text("stopped", timeout=30_000)
            expect(page.locator(".part-head")).to_contain_text("drained by ann on the page")
            expect(page.get_by_role("button", name="Drain")).to_have_attribute(
                "aria-disabled", "true"
            )
            assert len(pipeline.visible()) == rows_read(store)
    finally:
        kill(process)


def answered(url: str) -> int:
    """How many rows the list has; the others are still looked at."""
    return len(httpx.get(f"{url}api/pipelines", timeout=60).json()["rows"])


def committed(store: CheckpointStore, batch: int) -> bool:
    newest = read_state(store).latest_commit
    return newest is not None and newest >= batch


def rows_read(store: CheckpointStore) -> int:
    """Rows up to the end of the newest batch, which a drained pipeline has committed."""
    state = read_state(store)
    assert state.in_flight is None
    ends = [each for source in state.sources for each in (source.end or {}).values()]
    return sum(at for each in ends for at in each.values())
