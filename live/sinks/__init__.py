"""Where the rows of a watched query go: files, Kafka and MQTT are not supported yet; rows are fetched in process."""
