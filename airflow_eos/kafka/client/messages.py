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

from kafka.net.manager import KafkaConnectionManager as KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider as AbstractTokenProvider
from kafka.net.selector import NetworkSelector as NetworkSelector
from kafka.net.transport import KafkaTCPTransport as KafkaTCPTransport
from kafka.protocol.admin import DescribeConfigsRequest as DescribeConfigsRequest
from kafka.protocol.admin import DescribeGroupsRequest as DescribeGroupsRequest
from kafka.protocol.admin import DescribeProducersRequest as DescribeProducersRequest
from kafka.protocol.admin import DescribeQuorumRequest as DescribeQuorumRequest
from kafka.protocol.admin import DescribeTransactionsRequest as DescribeTransactionsRequest
from kafka.protocol.admin import ListGroupsRequest as ListGroupsRequest
from kafka.protocol.admin import ListTransactionsRequest as ListTransactionsRequest
from kafka.protocol.consumer import FetchRequest as FetchRequest
from kafka.protocol.consumer import ListOffsetsRequest as ListOffsetsRequest
from kafka.protocol.consumer import OffsetFetchRequest as OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest as ApiVersionsRequest
from kafka.protocol.metadata import CoordinatorType as CoordinatorType
from kafka.protocol.metadata import FindCoordinatorRequest as FindCoordinatorRequest
from kafka.protocol.metadata import MetadataRequest as MetadataRequest
from kafka.protocol.producer import AddOffsetsToTxnRequest as AddOffsetsToTxnRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest as AddPartitionsToTxnRequest
from kafka.protocol.producer import EndTxnRequest as EndTxnRequest
from kafka.protocol.producer import InitProducerIdRequest as InitProducerIdRequest
from kafka.protocol.producer import ProduceRequest as ProduceRequest
from kafka.protocol.producer import TxnOffsetCommitRequest as TxnOffsetCommitRequest
from kafka.protocol.producer import WriteTxnMarkersRequest as WriteTxnMarkersRequest
from kafka.record import MemoryRecordsBuilder as MemoryRecordsBuilder
from kafka.record.default_records import DefaultRecordBatch as DefaultRecordBatch
