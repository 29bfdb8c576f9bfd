"""What time it is for the cluster: asked of its metadata quorum, as no other answer has a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.errors import KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.messages import DescribeQuorumRequest

if TYPE_CHECKING:
    from airflow_eos.kafka.client.wire import Wire

_TOPIC = "__cluster_metadata"


def cluster_clock_ms(wire: Wire) -> int | None:
    """The active controller's clock, in ms since the epoch; None where the cluster does not tell.

    That leader has always caught up with itself *now* (KIP-836). Telling it needs Describe on
    Cluster, and a cluster without ZooKeeper.

    Raises:
        KafkaUnavailableError: no broker answered.
    """
    topic = DescribeQuorumRequest.TopicData
    request = DescribeQuorumRequest(
        topics=[
            topic(topic_name=_TOPIC, partitions=[topic.PartitionData(partition_index=0)]),
        ],
        min_version=1,  # the times
    )
    try:
        answer = wire.request(request)
    except KafkaUnavailableError:
        raise
    except KafkaError:  # a broker that does not know the question
        return None
    if answer.error_code != faults.NONE:
        return None
    [found] = answer.topics[0].partitions
    if found.error_code != faults.NONE:
        return None
    leader = next(each for each in found.current_voters if each.replica_id == found.leader_id)
    return int(leader.last_caught_up_timestamp)
