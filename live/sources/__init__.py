"""Sources of live events: files, Kafka, MQTT, simulated events, and a replay of recorded batches."""
