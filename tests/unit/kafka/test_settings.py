from __future__ import annotations

import pickle
import re
import ssl

import pytest
from structlog.testing import capture_logs

from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.client import settings as tls
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.secret_names import spark_redaction_regex

SERVERS = {"bootstrap.servers": "one:9092,two:9092"}
SASL = {
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "ann",
    "sasl.password": 'to"p\\secret',
}
OIDC = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
    "sasl.oauthbearer.client.id": "etl",
    "sasl.oauthbearer.client.secret": "oidc-secret",
    "sasl.oauthbearer.scope": "kafka",
}
MODULES = "org.apache.kafka.common.security"


def settings(**config):
    return KafkaSettings.from_librdkafka({**SERVERS, **config.pop("config", {}), **config})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"client.id": "etl"}, {"client_id": "etl"}),
        ({"socket.timeout.ms": "5000"}, {"request_timeout_ms": 5000}),
        (
            {"socket.connection.setup.timeout.ms": 900},
            {"socket_connection_setup_timeout_ms": 900},
        ),
        ({"reconnect.backoff.max.ms": 2000}, {"reconnect_backoff_max_ms": 2000}),
        ({"metadata.max.age.ms": 1000}, {"metadata_max_age_ms": 1000}),
        ({"group.id": "readers", "statistics.interval.ms": 5}, {}),
        (
            SASL,
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_plain_username": "ann",
                "sasl_plain_password": 'to"p\\secret',
            },
        ),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.kerberos.service.name": "brokers",
            },
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "GSSAPI",
                "sasl_kerberos_service_name": "brokers",
            },
        ),
    ],
)
def test_translation_for_kafka_python(config, expected):
    plain = {"bootstrap_servers": ["one:9092", "two:9092"], "security_protocol": "PLAINTEXT"}
    assert settings(config=config).kafka_python() == plain | expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        (
            SASL,
            {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "SCRAM-SHA-512",
                "kafka.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required "
                'username="ann" password="to\\"p\\\\secret";',
            },
        ),
        (
            {**SASL, "sasl.mechanism": "PLAIN", "sasl.password": "x"},
            {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required "
                'username="ann" password="x";',
            },
        ),
        (
            OIDC,
            {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "OAUTHBEARER",
                "kafka.sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
                "kafka.sasl.login.callback.handler.class": (
                    f"{MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
                ),
                "kafka.sasl.jaas.config": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required "
                'clientId="etl" clientSecret="oidc-secret" scope="kafka";',
            },
        ),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/ca.pem"},
            {
                "kafka.security.protocol": "SSL",
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.location": "/ca.pem",
            },
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.certificate.location": "/me.pem",
                "ssl.key.password": "x",
                "ssl.endpoint.identification.algorithm": "none",
            },
            {
                "kafka.security.protocol": "SSL",
                "kafka.ssl.keystore.type": "PEM",
                "kafka.ssl.keystore.location": "/me.pem",
                "kafka.ssl.key.password": "x",
                "kafka.ssl.endpoint.identification.algorithm": "",
            },
        ),
    ],
)
def test_translation_for_spark(config, expected):
    always = {
        "kafka.bootstrap.servers": "one:9092,two:9092",
        "kafka.allow.auto.create.topics": "false",
    }
    assert settings(config=config).spark_options() == always | expected


def test_a_key_apart_from_its_certificate_goes_inline_to_java(tmp_path):
    (tmp_path / "me.crt").write_text("chain")
    (tmp_path / "me.key").write_text("key")
    options = settings(
        config={
            "security.protocol": "SSL",
            "ssl.certificate.location": str(tmp_path / "me.crt"),
            "ssl.key.location": str(tmp_path / "me.key"),
        }
    ).spark_options()
    assert options["kafka.ssl.keystore.certificate.chain"] == "chain"
    assert options["kafka.ssl.keystore.key"] == "key"


@pytest.mark.parametrize(
    ("config", "verify_mode", "check_hostname"),
    [
        ({}, ssl.CERT_REQUIRED, True),
        ({"ssl.endpoint.identification.algorithm": "none"}, ssl.CERT_REQUIRED, False),
        ({"enable.ssl.certificate.verification": "false"}, ssl.CERT_NONE, False),
        ({"enable.ssl.certificate.verification": False}, ssl.CERT_NONE, False),
        ({"enable.ssl.certificate.verification": True}, ssl.CERT_REQUIRED, True),
    ],
)
def test_tls_verification(config, verify_mode, check_hostname):
    options = settings(config={"security.protocol": "ssl", **config}).kafka_python()
    assert options["ssl_context"].verify_mode is verify_mode
    assert options["ssl_context"].check_hostname is check_hostname


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"enable.ssl.certificate.verification": "false"},
            ["enable.ssl.certificate.verification=false"],
        ),
        (
            {"ssl.endpoint.identification.algorithm": "none"},
            ["ssl.endpoint.identification.algorithm=none"],
        ),
        ({"ssl.endpoint.identification.algorithm": "https"}, []),
        ({}, []),
    ],
)
@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "PLAINTEXT"])
def test_a_broker_that_anybody_can_pose_as_is_told_of_once(config, told, protocol):
    tls._tell.cache_clear()
    with capture_logs() as lines:
        for _ in range(3):
            settings(config={**SASL, "security.protocol": protocol, **config})
    assert [line["log_level"] for line in lines] == ["warning"] * len(lines)
    assert [line["setting"] for line in lines] == ([] if protocol == "PLAINTEXT" else told)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"bootstrap.servers": None}, "bootstrap.servers"),
        ({"bootstrap.servers": " , "}, "bootstrap.servers"),
        ({"security.protocol": "TLS"}, "SASL_SSL"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "MD5"}, "SCRAM-SHA-256"),
        ({**SASL, "sasl.password": ""}, "sasl.password"),
        ({**SASL, "sasl.username": None}, "sasl.username"),
    ],
)
def test_what_cannot_work_is_refused(config, said):
    with pytest.raises(ConfigurationError, match=said):
        settings(config=config)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"socket.timeout.ms": "soon"}, "milliseconds"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/no/such/ca.pem"}, "/no/such/ca.pem"),
        ({"security.protocol": "SSL", "ssl.key.pem": "-----"}, "ssl.key.location"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "/k.p12"}, "librdkafka"),
        ({**OIDC, "sasl.oauthbearer.method": "default"}, "oidc"),
        ({**OIDC, "sasl.oauthbearer.client.secret": None}, "client.secret"),
        ({**OIDC, "sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd"}, "http"),
    ],
)
def test_what_kafka_python_cannot_do_is_said_when_it_is_needed(config, said):
    with pytest.raises(ConfigurationError, match=said):
        settings(config=config).kafka_python()


def test_java_cannot_skip_verification():
    config = {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        settings(config=config).spark_options()


JAVAS = (
    "kafka.ssl.keystore.key",
    "kafka.sasl.jaas.config",
    "kafka.ssl.key.password",
    "kafka.ssl.truststore.password",
)


def test_spark_hides_what_it_hides_by_default_and_every_secret_of_ours():
    for chosen in (None, "(?i)mine"):
        hidden = re.compile(spark_redaction_regex(chosen))
        assert all(hidden.search(name) for name in (*SECRETS, *JAVAS))
    assert re.search(spark_redaction_regex(), "spark.hadoop.fs.s3a.ACCESS.KEY")
    assert re.search(spark_redaction_regex("(?i)mine"), "spark.MINE")


def test_every_secret_that_java_gets_is_hidden_by_spark(tmp_path):
    """By its name or by its value, as Spark redacts: no secret is in what is left to read."""
    for name in ("me.crt", "me.key"):
        (tmp_path / name).write_text(f"-----BEGIN {name}-----")
    files = {
        "ssl.certificate.location": str(tmp_path / "me.crt"),
        "ssl.key.location": str(tmp_path / "me.key"),
        "ssl.key.password": "hidden-2",
    }
    hidden = re.compile(spark_redaction_regex())
    for login in (
        SASL | {"sasl.password": "hidden-1"},
        OIDC | {"sasl.oauthbearer.client.secret": "hidden-3"},
    ):
        given = settings(config={**login, **files, "security.protocol": "SASL_SSL"})
        shown = {k: v for k, v in given.spark_options().items() if not hidden.search(k)}
        assert not any("hidden" in v or "me.key" in v for v in shown.values())


SECRETS = {
    "sasl.password": "S1",
    "ssl.key.password": "S2",
    "ssl.keystore.password": "S3",
    "sasl.oauthbearer.client.secret": "S4",
    "sasl.oauthbearer.config": "S5",
    "ssl.key.pem": "S6",
    "sasl.jaas.config": "S7",
    "sasl.oauthbearer.assertion.private.key.passphrase": "S8",
    "sasl.oauthbearer.assertion.private.key.pem": "S9",
    "ssl.keystore.key": "S10",
}


@pytest.mark.parametrize("shown", [repr, str, "{}".format, "{!r}".format], ids=range(4))
def test_secrets_are_not_shown(shown):
    text = shown(settings(config=SECRETS))
    assert not any(secret in text for secret in SECRETS.values())
    assert "one:9092" in text


def test_secrets_are_not_in_a_refusal():
    with pytest.raises(ConfigurationError) as refused:
        settings(config={**SASL, "sasl.username": ""})
    assert SASL["sasl.password"] not in str(refused.value)


def test_settings_travel_compare_and_hash_by_value():
    one = settings(config=SASL)
    assert pickle.loads(pickle.dumps(one)) == one
    assert hash(one) == hash(settings(config=SASL))
    assert one != settings()


def test_librdkafka_gets_everything_under_one_name():
    config = {"metadata.broker.list": "one:9092", "sasl.mechanism": "PLAIN", "linger.ms": 5}
    assert KafkaSettings.from_librdkafka(config).librdkafka() == {
        "bootstrap.servers": "one:9092",
        "sasl.mechanisms": "PLAIN",
        "linger.ms": 5,
        "allow.auto.create.topics": False,
    }


def test_servers_may_be_a_list():
    servers = KafkaSettings.from_librdkafka({"bootstrap.servers": ["a:1", "b:2"]})
    assert servers.bootstrap_servers == "a:1,b:2"


@pytest.mark.parametrize(
    "wrong",
    [
        {"retriez": 1},
        {"retries": "many"},
        {"ssl.ca.location": "/nowhere", "security.protocol": "SSL"},
    ],
    ids=["a typo", "no number", "a file that is not there"],
)
def test_what_librdkafka_does_not_take_is_refused_by_name_and_in_no_trace(wrong):
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": "localhost:1", **wrong})
    with pytest.raises(ConfigurationError, match=f"does not take.*{next(iter(wrong))}"):
        settings.librdkafka()
