"""A broker that denies everything but the table in docs/security.md: enough, and each row named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import EosError, TopicError, TransactionError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.hanging import find_hanging
from airflow_eos.kinds.consumer_group.participant import connect as connect_group
from airflow_eos.kinds.consumer_group.participant import work_of
from airflow_eos.local import EmbeddedKafka
from airflow_eos.ops.blocked import find_blocked
from airflow_eos.recovery import Action, AuditReport, audit, execute_recovery, plan_recovery
from tests.integration.hazards.direct import forget_writers, wait_for
from tests.integration.hazards.guarded import Acl, Guarded
from tests.integration.kafka.conftest import raw_kafka
from tests.support.topics import produce

__all__ = ["raw_kafka"]

DOCUMENT = Path(__file__).parents[3] / "docs" / "security.md"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_app="app-pw" user_recovery="recovery-pw" user_audit="audit-pw";'
)
AUTHORIZED = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # the plain listener: the broker itself, and this test
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
}


def documented() -> list[Acl]:
    rows = re.findall(
        r"^\| (app|recovery|audit) \| (\w+) \| (\w+) \| (\S+) \| (\w+) \|",
        DOCUMENT.read_text(),
        re.M,
    )
    return [Acl(*row) for row in rows]


def of_a_group() -> list[Acl]:
    """What an app and a recovery need where a consumer group is named."""
    rows = re.findall(
        r"^\| app, recovery \| (\w+) \| (\w+) \| (\S+) \| (\w+) \|", DOCUMENT.read_text(), re.M
    )
    return [Acl("app", *row) for row in rows]


def of_role(role: str) -> list[Acl]:
    return [acl for acl in documented() if acl.role == role]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(AUTHORIZED, listeners={"SASL": "SASL_PLAINTEXT"}) as running:
        yield running


@pytest.fixture
def guarded(broker: EmbeddedKafka, tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(broker, tmp_path)
    yield made
    forget_writers()
    made.revoke_all()


def run_app(guarded: Guarded, die_at: Callable[[str], None]) -> None:
    """Every request of an app: start, write, decide, settle, die, ask the log, replay."""
    direct = guarded.direct
    direct.feed_numbers(50)
    direct.run()
    direct.timeout = timedelta(seconds=8)  # promised well within it, also by a busy machine
    direct.feed_numbers(50)
    die_at("settled-some")
    with pytest.raises(RuntimeError, match="failpoint"):
        direct.run()
    die_at("")
    wait_for(lambda: not direct.open_transactions())
    direct.timeout = timedelta(seconds=30)
    direct.run()


def run_recovery(guarded: Guarded) -> None:
    settings = guarded.login("recovery")
    checkpoint = str(guarded.direct.checkpoint)
    plan = plan_recovery(checkpoint, settings)
    execute_recovery(plan, settings, force=True)
    assert plan.count(Action.COMMIT) == 2
    assert plan_recovery(checkpoint, settings).steps == ()


def run_audit(guarded: Guarded) -> AuditReport:
    names = guarded.names
    rows = [("k", f"v{n}") for n in range(5)]
    produce(guarded.broker.bootstrap_servers, names["INPUT"], rows)
    produce(guarded.broker.bootstrap_servers, names["OUTPUT"], rows)
    report = audit(
        guarded.login("audit"),
        names["INPUT"],
        names["OUTPUT"],
        id_expression="value",
        timeout_s=100,
    )
    assert (report.lost, report.duplicated, report.rows_in) == (0, 0, 5)
    return report


def half_settled(guarded: Guarded, die_at: Callable[[str], None]) -> None:
    """Promised, one of three committed: what recovery is called for."""
    guarded.grant(*of_role("app"))
    guarded.direct.feed_numbers(50)
    die_at("settled-some")
    with pytest.raises(RuntimeError, match="failpoint"):
        guarded.direct.run()
    die_at("")


def test_the_table_is_found():
    assert {acl.role for acl in documented()} == {"app", "recovery", "audit"}


@pytest.mark.long
def test_the_app_needs_no_more(guarded: Guarded, die_at: Callable[[str], None]) -> None:
    guarded.grant(*of_role("app"))
    run_app(guarded, die_at)
    guarded.direct.assert_exactly_once()


ON_THE_CLUSTER = Acl("app", "DescribeConfigs", "Cluster", "kafka-cluster", "literal")
"""Nobody can have it on some servers, as MSK Serverless."""


def test_settings_of_the_cluster_that_may_not_be_read_are_said_to_be_untold(
    guarded: Guarded,
) -> None:
    assert ON_THE_CLUSTER in of_role("app")
    guarded.grant(*[acl for acl in of_role("app") if acl != ON_THE_CLUSTER])
    guarded.direct.feed_numbers(10)
    with capture_logs() as logs:
        guarded.direct.run()
    guarded.direct.assert_exactly_once()
    [said] = [each["what"] for each in logs if each["event"] == "not_with_these_brokers"]
    assert said.startswith("transaction.max.timeout.ms is not told")
    names(said, ON_THE_CLUSTER, guarded)


@pytest.mark.parametrize(
    "missing",
    [acl for acl in of_role("app") if acl != ON_THE_CLUSTER],
    ids=lambda a: f"{a.operation}-{a.name}",
)
def test_an_acl_that_the_app_lacks_is_named(guarded: Guarded, missing: Acl) -> None:
    guarded.grant(*[acl for acl in of_role("app") if acl != missing])
    guarded.direct.feed_numbers(10)
    with pytest.raises(EosError) as refused:
        guarded.direct.run()
    names(str(refused.value), missing, guarded)
    assert guarded.direct.visible() == []


@pytest.mark.long
def test_recovery_needs_no_more(guarded: Guarded, die_at: Callable[[str], None]) -> None:
    half_settled(guarded, die_at)
    guarded.grant(*of_role("recovery"))
    run_recovery(guarded)
    assert len(guarded.direct.visible()) == 50


@pytest.mark.long
@pytest.mark.parametrize("missing", of_role("recovery"), ids=lambda a: f"{a.operation}-{a.name}")
def test_an_acl_that_recovery_lacks_is_named(
    guarded: Guarded, die_at: Callable[[str], None], missing: Acl
) -> None:
    half_settled(guarded, die_at)
    guarded.grant(*[acl for acl in of_role("recovery") if acl != missing])
    with pytest.raises(EosError) as refused:
        run_recovery(guarded)
    names(str(refused.value), missing, guarded)


@pytest.mark.long
def test_the_right_to_describe_is_enough_to_plan_and_not_to_end(
    guarded: Guarded, die_at: Callable[[str], None]
) -> None:
    half_settled(guarded, die_at)
    only_describe = Acl("recovery", "Describe", "TransactionalId", "PREFIX-", "prefixed")
    others = [acl for acl in of_role("recovery") if acl.resource != "TransactionalId"]
    guarded.grant(*others, only_describe)
    with pytest.raises(EosError, match=r"while ending .* needs the ACL Write on TransactionalId"):
        run_recovery(guarded)


@pytest.mark.long
def test_the_audit_needs_no_more(guarded: Guarded) -> None:
    guarded.grant(*of_role("audit"))
    assert run_audit(guarded).verdict == "exact"


def of_audit(operation: str) -> list[Acl]:
    return [acl for acl in of_role("audit") if acl.operation == operation]


@pytest.mark.parametrize("missing", of_audit("Read"), ids=lambda a: f"{a.operation}-{a.name}")
def test_an_acl_that_the_audit_lacks_is_named(guarded: Guarded, missing: Acl) -> None:
    guarded.grant(*[acl for acl in of_role("audit") if acl != missing])
    with pytest.raises(EosError) as refused:
        run_audit(guarded)
    names(str(refused.value), missing, guarded)


@pytest.mark.long
@pytest.mark.parametrize(
    "missing", of_audit("DescribeConfigs"), ids=lambda a: f"{a.operation}-{a.name}"
)
def test_an_acl_without_which_no_audit_is_exact_is_named(guarded: Guarded, missing: Acl) -> None:
    guarded.grant(*[acl for acl in of_role("audit") if acl != missing])
    report = run_audit(guarded)
    assert report.verdict == "unknown"
    [each] = report.unjudged
    names(each.answer, missing, guarded)


def names(message: str, missing: Acl, guarded: Guarded) -> None:
    """It says which ACL to grant; Describe may stand for what includes it."""
    name = guarded.names.get(missing.name, missing.name)
    operations = f"(?:{missing.operation}|Describe)"
    wanted = rf"{operations} on {missing.resource}"
    if missing.resource != "Cluster":
        wanted += rf" '{re.escape(name)}"
    assert re.search(wanted, message), message
    assert "-pw" not in message


def set_offsets(guarded: Guarded) -> None:
    member = Member("consumer_group", "consumer_group", {"group": guarded.names["GROUP"]})
    with closing(connect_group(member, guarded.login("app"), timeout_s=100)) as group:
        group.offsets.used_by()
        work = work_of("consumer_group", "p" * 32, 0, 1, {guarded.names["INPUT"]: {0: 5}}, 0)
        group.commit([work])
        assert group.outcome([work]) == {work.identity: Outcome.COMMITTED}


def test_a_consumer_group_needs_no_more(guarded: Guarded) -> None:
    assert len(of_a_group()) == 3
    guarded.grant(*of_a_group())
    set_offsets(guarded)


@pytest.mark.parametrize("missing", of_a_group(), ids=lambda a: f"{a.operation}-{a.name}")
def test_an_acl_that_a_consumer_group_lacks_is_named(guarded: Guarded, missing: Acl) -> None:
    guarded.grant(*[acl for acl in of_a_group() if acl != missing])
    with pytest.raises(EosError) as refused:
        set_offsets(guarded)
    names(str(refused.value), missing, guarded)


def test_a_transaction_that_is_hidden_from_who_looks_is_neither_hanging_nor_nothing(
    guarded: Guarded, raw_kafka: Callable[[str], Any]
) -> None:
    """Kafka lists no id that one may not describe, and no error says so."""
    out, raw = guarded.names["OUTPUT"], raw_kafka(guarded.broker.bootstrap_servers)
    settings = KafkaSettings.from_librdkafka(guarded.login("audit"))
    theirs = raw.prepare(f"theirs-{out}", out)
    guarded.grant(
        Acl("audit", "Read", "Topic", "OUTPUT", "literal"),
        Acl("audit", "Describe", "TransactionalId", "PREFIX-", "prefixed"),
    )
    with closing(ConnectionPool(settings)) as wire:
        with pytest.raises(TransactionError, match=r"leave out.*TransactionalId '\*'"):
            find_hanging(wire, {out}, older_than_ms=0)
        found = find_blocked(wire, {out})
        assert [each.state for each in found.partitions] == ["not known"]
        assert "may not describe" in "".join(found.untold)
        guarded.grant(Acl("audit", "Describe", "TransactionalId", "*", "literal"))
        with pytest.raises(TopicError, match="Describe on Topic '__transaction_state'"):
            find_hanging(wire, {out}, older_than_ms=0)
        guarded.grant(Acl("audit", "Describe", "Topic", "__transaction_state", "literal"))
        assert find_hanging(wire, {out}, older_than_ms=0) == ()
        [told] = find_blocked(wire, {out}).partitions
        assert (told.transactional_id, told.state) == (theirs.transactional_id, "Ongoing")
    raw.end(theirs)
