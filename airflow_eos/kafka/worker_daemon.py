"""The process that forks the workers of a task that writes to Kafka; see ``core``'s."""

from airflow_eos.core.delivery.worker_daemon import fork_workers

if __name__ == "__main__":
    # confluent-kafka checks the settings of every client.
    fork_workers("confluent_kafka", "airflow_eos.kafka.sink", "airflow_eos.arrow.producer.writer")
