from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from airflow_eos.local.jars import LOCKS, Bundle, locked_versions, nearest_patch, read_bundle
from tests.support.servers import jars as servers

LISTS = sorted((path.stem, path.parent) for at in (LOCKS, servers.LOCKS) for path in at.iterdir())


@pytest.mark.parametrize(("name", "locks"), LISTS, ids=[name for name, _ in LISTS])
def test_every_list_holds_whole_checksums_and_each_jar_once(name, locks):
    jars = read_bundle(name, locks).jars
    assert all(len(jar.sha256) == 64 and jar.size > 0 for jar in jars)
    assert len({jar.file_name for jar in jars}) == len(jars)


@pytest.mark.parametrize("version", locked_versions("spark"))
def test_the_connector_of_the_version_comes_with_its_three_companions(version):
    connector, *companions = read_bundle(f"spark-{version}").jars
    assert (connector.module, connector.revision) == ("spark-sql-kafka-0-10_2.13", version)
    assert {jar.module for jar in companions} == {
        "spark-token-provider-kafka-0-10_2.13",
        "kafka-clients",
        "commons-pool2",
    }


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [
        ("4.2.0", "4.2.0"),
        ("4.2.1", "4.2.0"),
        ("4.1.11", "4.1.10"),
        ("4.1.5", "4.1.2"),
        ("4.0.1", "4.0.2"),
        ("4.2.0.dev1", "4.2.0"),
        ("4.3.0", None),
        ("5.2.0", None),
    ],
)
def test_a_patch_without_a_list_takes_the_nearest_of_its_minor_before_it_if_there_is_one(
    installed, chosen
):
    assert nearest_patch(installed, ["4.0.2", "4.1.2", "4.1.10", "4.2.0"]) == chosen


def test_versions_are_those_that_have_a_list():
    assert "4.2.0" in locked_versions("spark")
    assert locked_versions("kafka") == ["4.3.0"]


def test_ivy_is_asked_for_each_jar_without_its_dependencies():
    bundle = read_bundle("spark-4.2.0")
    wanted = ET.fromstring(bundle.ivy_module()).findall("dependencies/dependency")
    assert [d.get("name") for d in wanted] == [jar.module for jar in bundle.jars]
    assert {d.get("transitive") for d in wanted} == {"false"}


def test_a_jar_that_is_not_its_module_s_main_one_is_asked_for_by_its_classifier():
    maven = "{http://ant.apache.org/ivy/maven}classifier"
    for name, locks, classifier in (
        ("s3proxy-4.1.0", servers.LOCKS, "jar-with-dependencies"),
        ("spark-4.2.0", LOCKS, None),
    ):
        (artifact, *_) = ET.fromstring(read_bundle(name, locks).ivy_module()).iter("artifact")
        assert artifact.get(maven) == classifier


def test_an_archive_that_is_no_jar_is_asked_for_and_kept_under_its_own_extension():
    bundle = read_bundle("apicurio-registry-2.6.13", servers.LOCKS)
    (artifact,) = ET.fromstring(bundle.ivy_module()).iter("artifact")
    assert (artifact.get("ext"), artifact.get("type")) == ("tar.gz", "tar.gz")
    assert [jar.file_name for jar in bundle.jars] == ["apicurio-registry-app-2.6.13.Final.tar.gz"]


def test_another_checksum_means_another_folder():
    bundle = read_bundle("spark-4.2.0")
    first, *others = bundle.jars
    changed = Bundle(bundle.name, (replace(first, sha256="0" * 64), *others))
    assert changed.folder_name != bundle.folder_name
