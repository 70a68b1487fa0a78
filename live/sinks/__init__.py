"""Where the rows of a live query go: functions, stdout, files, Kafka, MQTT, a web server."""
