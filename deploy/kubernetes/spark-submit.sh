#!/bin/sh
# The same app by plain spark-submit: deploy/kubernetes/spark-submit.sh k8s://https://HOST:PORT
#   kubectl apply -f deploy/kubernetes/rbac.yaml
#   kubectl create secret generic orders-kafka --from-file=kafka.json
# It returns once the driver's pod is made; airflow-eos status CHECKPOINT shows the app from then on.
set -eu
exec spark-submit --master "$1" --deploy-mode cluster --name orders-etl \
    --conf spark.kubernetes.namespace=default \
    --conf spark.kubernetes.container.image=registry.example/eos:1 \
    --conf spark.kubernetes.authenticate.driver.serviceAccountName=eos-spark \
    --conf spark.kubernetes.driver.secrets.orders-kafka=/etc/orders-kafka \
    --conf spark.kubernetes.driverEnv.EOS_KAFKA_CONFIG_FILE=/etc/orders-kafka/kafka.json \
    --conf spark.kubernetes.submission.waitAppCompletion=false \
    --conf spark.driver.memory=1g \
    --conf spark.executor.memory=1g \
    --conf spark.executor.instances=2 \
    local:///usr/local/lib/python3.11/site-packages/airflow_eos/examples/spark_apps/orders_etl.py \
    --checkpoint=s3a://checkpoints/orders-etl \
    --prefix=orders-etl \
    --trigger="1 second" \
    --input-topic=orders \
    --output-topic=orders.clean \
    --dead-letter-topic=orders.rejected
