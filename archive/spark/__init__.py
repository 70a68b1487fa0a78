"""The archive by Spark, for what one machine is too small for. The only package that imports pyspark.

`session` starts or finds the one session of a process; `ship` takes our own code to executors that do not have it;
`search` finds a pattern in the files of a stream: `task` is what runs in the executors, and knows nothing of Spark.
`ingest` archives files and `compact` rewrites data files, both with what `files` runs in the executors.
Everything else works without pyspark and Java.
"""
