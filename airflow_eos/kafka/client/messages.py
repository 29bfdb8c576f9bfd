"""The non-public parts of kafka-python that this package uses; no other module imports them.

Public in kafka-python are its clients (consumer, producer, admin) and ``kafka.errors``, which
:mod:`~airflow_eos.kafka.client.errors` reads. None of its clients can end another process's
transaction, send a record batch as it is, or fetch outside a consumer. So these parts are used,
which no release promises to keep: ``pyproject.toml`` therefore holds kafka-python below 3.1:

* the message classes (``kafka.protocol.*``), one for each request that we send;
* the transport (``kafka.net.*``): connections, their login, and the loop that drives them;
* the records of a batch, one by one (``kafka.record``), where speed does not matter;
* the class that a token provider for SASL/OAUTHBEARER inherits from.

What was considered instead: ``notes/versions.md``.
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
from kafka.record import MemoryRecordsBuilder
from kafka.record.default_records import DefaultRecordBatch

__all__ = [
    "AbstractTokenProvider",
    "AddOffsetsToTxnRequest",
    "AddPartitionsToTxnRequest",
    "ApiVersionsRequest",
    "CoordinatorType",
    "DefaultRecordBatch",
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
    "MemoryRecordsBuilder",
    "MetadataRequest",
    "NetworkSelector",
    "OffsetFetchRequest",
    "ProduceRequest",
    "TxnOffsetCommitRequest",
    "WriteTxnMarkersRequest",
]
