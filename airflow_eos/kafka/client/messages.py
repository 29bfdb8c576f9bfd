"""What we use of kafka-python beyond its public clients; nothing else imports it.

Public in kafka-python are its clients (consumer, producer, admin) and ``kafka.errors``, which
:mod:`~airflow_eos.kafka.client.errors` reads. None of its clients can end another process's
transaction, send a record batch as it is, or fetch outside a consumer. So these are used, which no
release promises to keep, and which is why ``pyproject.toml`` holds kafka-python below 3.1:

* the message classes (``kafka.protocol.*``), one for each request that we send;
* what carries them (``kafka.net.*``): connections, their login, and the loop that drives them;
* the class that a token provider for SASL/OAUTHBEARER inherits from.

*Considered:* Aiven's ``kio`` (0.6) has every message of Kafka's own definitions, in every version,
as public and tested dataclasses that are written to and read from a file object. It carries
nothing: connections, TLS, the SASL mechanisms, the choice of versions, correlation of answers and
throttling would be ours to write, and the half of this list that is harder to replace than a
message is ``kafka.net``. aiokafka discusses the same exchange (its issue 1027, open since 2024).
Should kafka-python change its messages, this module is where kio would come in.

*Considered as well:* the admin client's public ``list_transactions``, ``describe_transactions``,
``describe_producers`` and ``abort_transaction``. Each raises at the first id, partition or broker
that answers with an error, and what the others answered is lost with it: a coordinator that is
loading, or an id that was forgotten meanwhile, would leave everything unknown. They ask one broker
after another, cannot write a commit marker, and hold connections and logins of their own. What
stands around our four messages (asking again, one deadline, which ACL is missing) would stay.
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
