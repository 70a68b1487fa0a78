"""`hybrid run`: the app file, sources and sinks in threads, status."""
