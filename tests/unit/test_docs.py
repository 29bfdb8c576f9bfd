"""What the README, the guides and the sources point at is there."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

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


def test_the_site_has_at_most_28_000_words():
    """As ``wc -w`` counts, code and tables with the rest; the reference is made of docstrings."""
    left_out = {ROOT / "docs" / "protocol.md", *(ROOT / "docs" / "reference").glob("*.md")}
    pages = set((ROOT / "docs").rglob("*.md")) - left_out
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= 28_000
