"""The non-public parts of kafka-python that this package uses; no other module imports them.

Public in kafka-python are its clients (consumer, producer, admin) and ``kafka.errors``, which
:mod:`~airflow_eos.kafka.client.errors` reads. None of its clients can end another process's
transaction, send a record batch as it is, or fetch outside a consumer. So these parts are used,
which no release promises to keep: ``pyproject.toml`` therefore holds kafka-python below 3.1:

* the message classes (``kafka.protocol.*``), one for each request that we send;
* the transport (``kafka.net.*``): connections, their login, and the loop that drives them;
* the class that a token provider for SASL/OAUTHBEARER inherits from.

*Considered:* Aiven's ``kio`` (0.6) has every message of Kafka's own definitions, in every version,
as public and tested dataclasses that are written to and read from a file object. It has no
transport: connections, TLS, the SASL mechanisms, the choice of versions, correlation of responses
and throttling would be ours to write, and ``kafka.net`` is harder to replace than the messages.
aiokafka discusses that replacement (its issue 1027, open since 2024). Should kafka-python change
its messages, kio would be used in this module.

*Considered as well:* the admin client's public ``list_transactions``, ``describe_transactions``,
``describe_producers`` and ``abort_transaction``. Each raises at the first id, partition or broker
that answers with an error, and the other answers are lost: a coordinator that is loading, or an
id that was forgotten meanwhile, would leave everything unknown. They ask one broker after another,
cannot write a commit marker, and hold connections and logins of their own. The code around our
four messages (asking again, one deadline, which ACL is missing) would stay.
"""

from __future__ import annotations

from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeProducersRequest,
    DescribeQuorumRequest,
    DescribeTransactionsRequest,
    ListGroupsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    CoordinatorType,
    FindCoordinatorRequest,
    MetadataRequest,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

__all__ = [
    "AbstractTokenProvider",
    "AddOffsetsToTxnRequest",
    "AddPartitionsToTxnRequest",
    "ApiVersionsRequest",
    "CoordinatorType",
    "DescribeConfigsRequest",
    "DescribeGroupsRequest",
    "DescribeProducersRequest",
    "DescribeQuorumRequest",
    "DescribeTransactionsRequest",
    "EndTxnRequest",
    "FetchRequest",
    "FindCoordinatorRequest",
    "InitProducerIdRequest",
    "KafkaConnectionManager",
    "KafkaTCPTransport",
    "ListGroupsRequest",
    "ListOffsetsRequest",
    "ListTransactionsRequest",
    "MetadataRequest",
    "NetworkSelector",
    "OffsetFetchRequest",
    "ProduceRequest",
    "TxnOffsetCommitRequest",
    "WriteTxnMarkersRequest",
]
