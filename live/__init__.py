"""Events as they arrive: accepted form, event time, lateness, watermark, sources and sinks."""
