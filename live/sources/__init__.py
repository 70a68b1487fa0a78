"""Where live events come from: files, Kafka, MQTT, simulated events, and a replay of recorded batches."""
