"""What the guides, their tables and the sources point at is there, and says what the code does."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from airflow_eos.cli.explain import ERRORS
from airflow_eos.core.delivery import policy as restarts
from airflow_eos.core.recovery.plan import Action, make_plan
from airflow_eos.kafka.client.cluster import NEEDS
from airflow_eos.sinks import CheckpointPolicy
from demo.scenario import ACTS
from tests.brokers.releases import RELEASES
from tests.support.broker_profiles import KEYS, PROFILES
from tests.unit.core.recovery.facts_of import commit, facts, prepared, still_open, what_became
from tests.unit.core.recovery.test_plan import TABLE

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for room in ("docs", "notes", "benchmarks") for page in (ROOT / room).rglob("*.md")),
    ]
)
HOME = "https://github.com/airflow-eos/airflow-eos"
FILES = (f"{HOME}/blob/main/", f"{HOME.replace('github', 'raw.githubusercontent', 1)}/main/")
# A thread of another project is no address of this one.
ADDRESS = re.compile(
    r"github(?:usercontent)?\.com/[\w.-]+/[\w.-]+(?![\w.-])(?!/(?:issues|pull)/\d)"
)
NAMED = re.compile(r"(?<![\w./-])docs/[\w/-]+\.\w+")


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def targets(text: str) -> list[str]:
    """Of links and pictures, written in place or at the end of the page."""
    text = without_code(text)
    return [
        *re.findall(r"\]\(([^)\s]+)\)", text),
        *re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE),
    ]


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings}


def missing(file: Path, anchor: str) -> bool:
    return not file.exists() or bool(anchor and anchor not in anchors(file))


def test_the_readme_shows_pictures_and_follows_links_where_a_package_index_shows_it():
    assert targets(README)
    assert not [target for target in targets(README) if not target.startswith("https://")]


def test_every_reference_of_the_readme_is_defined_and_used():
    text = without_code(README)
    used = {name for _, name in re.findall(r"\[([^\]]*)\]\[([^\]]+)\]", text)}
    assert used == set(re.findall(r"^\[([^\]]+)\]: ", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_and_heading_that_a_page_links_is_there(page):
    dead = []
    for target in targets(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        ours = [path.removeprefix(base) for base in FILES if path.startswith(base)]
        if ours:
            file = ROOT / ours[0]
        elif ":" not in path:
            file = page.parent / path if path else page
        else:
            continue
        if missing(file, anchor):
            dead.append(target)
    assert not dead


def test_every_page_that_a_source_names_is_there():
    sources = [
        source
        for room in ("airflow_eos", "demo", "benchmarks", "dags", "spark_apps", "tests")
        for source in (ROOT / room).rglob("*.py")
        if source != Path(__file__)
    ]
    dead = {
        f"{source.relative_to(ROOT)} names {name}"
        for source in sources
        for name in NAMED.findall(source.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    }
    assert not dead


@pytest.mark.parametrize(
    ("page", "link", "address"),
    [
        ("airflow", "../dags/eos_orders.py", f"{HOME}/blob/main/dags/eos_orders.py"),
        ("howto/run", "../../tests/proof#kafka", f"{HOME}/tree/main/tests/proof#kafka"),
        ("howto/run", "../sinks.md#files", "../sinks.md#files"),
        ("index", "sinks.md", "sinks.md"),
        ("index", "./protocol.md#terms", f"{HOME}/blob/main/docs/protocol.md#terms"),
    ],
)
def test_on_the_site_a_link_to_a_source_leads_to_the_repository(page, link, address, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the site puts the sources in front
    point_out = runpy.run_path(str(ROOT / "docs" / "conf.py"))["point_out"]
    assert point_out(page, f"[there]({link}) and\n[there]: {link}\n") == (
        f"[there]({address}) and\n[there]: {address}\n"
    )


def test_a_change_is_built_into_the_site_and_a_warning_is_a_failure():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert "make docs" in [step.get("run") for step in jobs["docs"]["steps"]]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^docs: .*\n\t\S+sphinx-build -W ", makefile, re.MULTILINE)


def test_the_project_has_one_address():
    pages = [*PAGES, *(ROOT / ".github").rglob("*.yml"), ROOT / "pyproject.toml"]
    for page in pages:
        for other in re.findall(ADDRESS, page.read_text()):
            assert other.endswith(("airflow-eos/airflow-eos", "airflow-eos/airflow-eos.")), page


def test_the_site_has_at_most_30_000_words():
    """As ``wc -w`` counts, code and tables with the rest; the reference is made of docstrings."""
    left_out = {ROOT / "docs" / "protocol.md", *(ROOT / "docs" / "reference").glob("*.md")}
    pages = set((ROOT / "docs").rglob("*.md")) - left_out
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= 30_000


# --- runbook --------------------------------------------------------------------------------------
# The runbook has a line for every error and every state of a plan, with what the product says.


RUNBOOK = (Path(__file__).parents[2] / "docs" / "recovery.md").read_text(encoding="utf-8")
ROWS = {
    found[1]: line
    for line in RUNBOOK.splitlines()
    if (found := re.match(r"\| `?(\w+)`? \|", line)) is not None
}


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_a_remedy_does_something(kind):
    for each in kind.remedies:
        assert each.commands or each.settings or each.change or each.start


@pytest.mark.parametrize("action", Action, ids=lambda action: action.name)
def test_every_state_of_a_plan_has_its_line_and_its_remedy(action):
    assert action.name in ROWS
    plans = [make_plan(found) for found, *_ in TABLE.values()]
    steps = [step for plan in plans for step in plan.steps if step.action is action]
    assert steps
    for step in steps:
        assert step.remedies
        for command in (c for each in step.remedies for c in each.commands):
            assert "/checkpoint" in command
            verb = re.sub(r" /checkpoint| --transaction \S+| --prefix \S+| --force", "", command)
            assert verb.removeprefix("airflow-eos recover").strip() in ROWS[action.name]


def test_a_plan_says_each_remedy_once_and_in_json():
    found, *_ = TABLE["only named ones are open: nothing is sealed"]
    plan = make_plan(found)
    assert plan.said == ("Run `airflow-eos recover /checkpoint`, then start the app again.",)
    assert plan.to_json().count(b'"remedies"') == 1 + len(plan.steps)


# --- The pictures of the places where a driver can be killed say what the code does ---------------


DRAWING = runpy.run_path(str(ROOT / "docs" / "kill_places.py"))
PLACES = DRAWING["PLACES"]
PAGE = (ROOT / "docs" / "kill-places.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_the_picture_is_the_one_that_the_table_draws(place: Any):
    picture = ROOT / "docs" / "images" / f"killed-{place.name}.svg"
    assert picture.read_text(encoding="utf-8") == DRAWING["draw"](place), (
        "run python docs/kill_places.py"
    )
    assert f"{DRAWING['in_words'](place)}](images/{picture.name})" in PAGE


def test_each_place_is_one_where_the_code_can_be_killed():
    code = "".join(
        (ROOT / "airflow_eos" / path).read_text()
        for path in ("core/delivery/batch.py", "kafka/participant.py")
    )
    places = set(re.findall(r'failpoint\("([\w-]+)"\)', code))
    assert {place.name for place in PLACES} - {"timeout"} <= places


def test_the_demo_dies_at_places_that_are_drawn():
    acted = {"timeout" if act.until_timeout else act.failpoint for act in ACTS}
    assert acted <= {place.name for place in PLACES}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_the_plan_of_the_table_is_the_one_that_is_made(place: Any):
    said = {step.action.name for step in make_plan(facts_at(place)).steps}
    assert said == {place.plan} - {"nothing"}


def facts_at(place: Any) -> Any:
    """What a recovery finds when the driver has died there."""
    works = [prepared(task) for task in range(len(place.kafka))]
    found = {
        state: [work for work, is_ in zip(works, place.kafka, strict=True) if is_ == state]
        for state in ("open", "committed", "aborted")
    }
    return facts(
        listed=tuple(still_open(work) for work in found["open"]),
        decisions=(commit(*works),) if place.decided else (),
        outcomes=what_became(committed=found["committed"], aborted=found["aborted"]),
    )


# --- Each setting of ``CheckpointPolicy`` has its line in the page of tests, and its tests --------


POLICY_PAGE = (ROOT / "tests/integration/policy/README.md").read_text(encoding="utf-8")
POLICY_TABLE = (
    POLICY_PAGE[POLICY_PAGE.index("| setting | tried by |") :].split("\n\n")[0].splitlines()[2:]
)
POLICY_ROWS = dict(line.strip("|").strip().split(" | ") for line in POLICY_TABLE)
STRATEGIES = {
    name
    for name, each in vars(restarts).items()
    if isinstance(each, type) and hasattr(each, "delay")
}
"""Whoever adds a strategy adds its line."""


def setting(row: str) -> str:
    """``restart`` of ``restart: FixedDelay``."""
    return re.sub("`", "", row).partition(":")[0]


def test_each_field_has_its_line_and_no_line_is_of_a_field_that_is_gone():
    told = {setting(row) for row in POLICY_ROWS if row.startswith("`")}
    assert told == {each.name for each in fields(CheckpointPolicy)}


def test_each_restart_strategy_has_its_line():
    told = {row.rpartition(" ")[2].strip("`") for row in POLICY_ROWS if row.startswith("`restart`")}
    assert told == STRATEGIES - {"RestartStrategy"}


def test_both_forms_of_cancellation_are_answered():
    ends = [row for row in POLICY_ROWS if "after cancellation" in row]
    assert {row.partition(" ")[0] for row in ends} == {"retained", "removed"}
    assert "refused" in POLICY_ROWS["removed after cancellation"]


@pytest.mark.parametrize("row", [row for row in POLICY_ROWS if not row.startswith("removed")])
def test_each_line_names_tests_on_a_running_stream_that_use_the_setting(row):
    named = re.findall(r"`(tests/integration/[^`]+)::([^`]+)`", POLICY_ROWS[row])
    assert named
    for path, name in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        found = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        assert len(found) == 1, (path, name)
        if row.startswith("`restart`"):
            assert row.rpartition(" ")[2].strip("`") in text
        elif row.startswith("`"):
            assert f"{setting(row)}=" in text


# --- The table of requests names tests that are there ---------------------------------------------


REQUESTS_PAGE = (ROOT / "notes" / "requests.md").read_text(encoding="utf-8")
REQUESTS_ROWS = [line for line in REQUESTS_PAGE.splitlines() if line.startswith("| [")]
REQUESTED = re.findall(r"`(tests/[^`]+)`", REQUESTS_PAGE)
ASKED = {
    *(f"airflow {n}" for n in (17479, 19752, 41212, 49900, 57416, 64205, 66437, 67168, 69586)),
    *("airflow 72128", *(f"spark-operator {n}" for n in (155, 858, 1581, 3040))),
    *("spark-k8s-operator 457", "spark-k8s-operator 646"),
    *("OpenLineage 3105", "OpenLineage 3398", "FLINK-39218", "FLINK-40626"),
}
"""Whoever reads another thread adds it here and in the table."""


def test_no_request_that_was_read_is_without_its_row():
    rows = [re.match(r"\| \[([^]]+)\]\(https://github\.com/\S+\) \|", row) for row in REQUESTS_ROWS]
    asked = [found[1] for found in rows if found]
    assert len(asked) == len(set(asked)) == len(REQUESTS_ROWS)
    assert set(asked) == ASKED


@pytest.mark.parametrize("row", [row for row in REQUESTS_ROWS if "FLINK" not in row])
def test_the_thread_that_is_linked_is_the_one_that_is_named(row):
    named, number, linked = re.findall(r"\[(\S+) (\d+)\]\((\S+)\)", row)[0]
    assert re.fullmatch(rf"https://github\.com/\S+/{named}/(issues|pull)/{number}", linked)


@pytest.mark.parametrize("named", REQUESTED)
def test_each_test_that_is_named_exists(named):
    path, _, name = named.partition("::")
    assert (ROOT / path).exists()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not name or name in defined


@pytest.mark.parametrize("row", REQUESTS_ROWS, ids=lambda row: row[3 : row.index("]")])
def test_each_request_has_its_thread_and_a_test(row):
    asked, *_, held = row.strip("|").split(" | ")
    assert re.search(r"\]\(https://github\.com/[^)]+/(issues|pull)/\d+\)", asked)
    assert "tests/" in held


# --- docs/brokers.md: no row without its profile or its run, and none that says other than these --


BROKERS_PAGE = (ROOT / "docs" / "brokers.md").read_text(encoding="utf-8")
RESULT = ROOT / "tests" / "brokers" / "RESULT.md"


def table(heading: str) -> list[list[str]]:
    """The rows of the first table after a heading, without its head."""
    rows = re.findall(
        r"^\|.*\|$", BROKERS_PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0], re.M
    )
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_what_is_asked_for_is_what_the_code_asks_for() -> None:
    expected = [
        [
            need.name,
            need.purpose,
            need.without or ("refused, where a group is set" if need.of_groups else "refused"),
        ]
        for need in NEEDS
    ]
    assert table("What is asked for") == expected


def test_each_profile_has_its_row_with_date_and_end() -> None:
    rows = {row[0]: row[1:] for row in table("Which brokers") if row[1] == "*profile*"}
    assert list(rows) == [each.name for each in PROFILES]
    for each in PROFILES:
        _, read, _, ends = rows[each.name]
        assert read == each.read
        assert each.source
        if each.refused:
            word = ends.removeprefix("refused: ")
            assert word in each.refused, each.name
            assert word != ends
        else:
            assert ends == "delivers", each.name


def test_whatever_is_called_run_was_run() -> None:
    run = [row for row in table("Which brokers") if row[1] == "*run*"]
    result = RESULT.read_text(encoding="utf-8")
    ran = re.findall(r"^\| (\d[\d.]+-tv\d|kfake|\d\S+ to \S+: .*?) \|(.*)\|$", result, re.M)
    releases = dict.fromkeys(name for name, _ in ran if "-tv" in name)
    assert releases.keys() <= set(map(str, RELEASES))
    minors = dict.fromkeys(".".join(name.split(".")[:2]) for name in releases)
    assert run[0][0] == f"Apache Kafka {', '.join(minors)}"
    assert run[1][0].startswith("kfake")
    assert len(run) == 2
    assert "kfake" in dict(ran)
    for name, told in ran:
        assert "✓" in told, name
        assert "✗" not in told, name
        assert re.search(r"[|;] [0-9a-f]{7,12}\*?, \d{4}-\d\d-\d\d $", told), name


def test_the_keys_of_the_profiles_are_kafkas() -> None:
    ours = {str(n.message.name).removesuffix("Request"): n.message.API_KEY for n in NEEDS}
    assert ours.items() <= KEYS.items()


def test_a_profile_only_takes_away_what_there_is() -> None:
    for each in PROFILES:
        assert {*each.without, *each.most} <= KEYS.keys()


# --- a first pipeline -----------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["docs/tutorial.md", "airflow_eos/cli/templates/README.md"])
def test_what_a_beginner_pastes_listens_on_this_machine_only(page):
    """Spark's UI and its ports, and an Airflow whose login may be off, are open to all else."""
    before_spark, spark, _ = (ROOT / page).read_text().partition("spark-submit ")
    assert spark
    assert "export SPARK_LOCAL_IP=127.0.0.1" in before_spark
    before_airflow, _, _ = (ROOT / page).read_text().partition("\nairflow standalone")
    exported = before_airflow.rpartition("export AIRFLOW_HOME")[2]
    assert "AIRFLOW__API__HOST=127.0.0.1 SPARK_LOCAL_IP=127.0.0.1" in exported
