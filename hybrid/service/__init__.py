"""`hybrid run`: the app file, the service with sources and sinks in threads, its status and metrics."""
