"""Where live events come from: a replay of recorded batches; files, Kafka and MQTT are not supported yet."""
