"""docs/brokers.md: no row without its profile or its run, and none that says other than these."""

from __future__ import annotations

import re
from pathlib import Path

from airflow_eos.kafka.client.cluster import NEEDS
from tests.brokers.releases import RELEASES
from tests.support.broker_profiles import KEYS, PROFILES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "brokers.md").read_text(encoding="utf-8")
RESULT = ROOT / "tests" / "brokers" / "RESULT.md"


def table(heading: str) -> list[list[str]]:
    """The rows of the first table after a heading, without its head."""
    rows = re.findall(r"^\|.*\|$", PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0], re.M)
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


def test_each_profile_has_its_row_with_source_date_and_end() -> None:
    rows = {row[0]: row[1:] for row in table("Which brokers") if row[1] == "*profile*"}
    assert list(rows) == [each.name for each in PROFILES]
    for each in PROFILES:
        _, read, source, ends = rows[each.name]
        assert (read, source) == (each.read, each.source)
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
