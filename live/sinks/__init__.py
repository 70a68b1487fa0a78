"""Sinks for the rows of live queries: functions, stdout, files, Kafka, MQTT, a web server."""
