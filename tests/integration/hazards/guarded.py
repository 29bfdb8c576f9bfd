"""A broker that denies what is not granted, and one pipeline's topics and prefix on it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka.admin

from airflow_eos.kafka.client.compacted_topic import require_topic
from airflow_eos.kafka.client.settings import DEFAULT_TOPIC as PREFIXES
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.direct import Direct, wait_for

kafka: Any = confluent_kafka.admin
EVERYTHING = kafka.AclBindingFilter(
    kafka.ResourceType.ANY,
    None,
    kafka.ResourcePatternType.ANY,
    None,
    None,
    kafka.AclOperation.ANY,
    kafka.AclPermissionType.ANY,
)


class Acl(NamedTuple):
    role: str
    operation: str
    resource: str
    name: str
    pattern: str


class Guarded:
    """A broker with the authorizer on, and one pipeline's topics and prefix on it."""

    def __init__(self, broker: EmbeddedKafka, folder: Path) -> None:
        self.broker = broker
        self.admin = kafka.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        # Whoever may do everything makes it once; no app needs the right to.
        require_topic(
            KafkaSettings.from_librdkafka({"bootstrap.servers": broker.bootstrap_servers}), PREFIXES
        )
        name = uuid.uuid4().hex[:8]
        self.names = {
            "INPUT": broker.create_topic(f"in-{name}"),
            "OUTPUT": broker.create_topic(f"out-{name}", 2),
            "PREFIX-": f"etl-{name}-",
            "GROUP": f"lag-{name}",
            "GROUP-offsets": f"lag-{name}-offsets",
        }
        self.direct = Direct(
            broker.addresses("SASL"),
            folder,
            self.names["OUTPUT"],
            prefix=f"etl-{name}",
            kafka_config=self.login("app"),
            plain_bootstrap=broker.bootstrap_servers,
        )

    def login(self, user: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.broker.addresses("SASL"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": f"{user}-pw",
        }

    def grant(self, *acls: Acl) -> None:
        bindings = [self._binding(acl) for acl in acls]
        for done in self.admin.create_acls(bindings).values():
            done.result(30)
        wait_for(lambda: set(bindings) <= self._in_force())

    def revoke_all(self) -> None:
        for done in self.admin.delete_acls([EVERYTHING]).values():
            done.result(30)
        wait_for(lambda: not self._in_force())

    def _in_force(self) -> set[Any]:
        """What the broker goes by; its authorizer follows the answer a little later."""
        return set(self.admin.describe_acls(EVERYTHING).result(30))

    def _binding(self, acl: Acl) -> Any:
        operation = {"DescribeConfigs": "DESCRIBE_CONFIGS"}.get(
            acl.operation, acl.operation.upper()
        )
        resource = {"Cluster": "BROKER", "TransactionalId": "TRANSACTIONAL_ID"}.get(
            acl.resource, acl.resource.upper()
        )
        return kafka.AclBinding(
            kafka.ResourceType[resource],
            self.names.get(acl.name, acl.name),
            kafka.ResourcePatternType[acl.pattern.upper()],
            f"User:{acl.role}",
            "*",
            kafka.AclOperation[operation],
            kafka.AclPermissionType.ALLOW,
        )
