"""The archive through Spark, for work too large for one machine. The only package that imports pyspark.

`session` starts or finds the session of a process. `ship` sends our code to executors that do not have it. `search`
searches the files of a stream for a pattern; `task` is its part in the executors, without Spark. `ingest` archives
files and `compact` rewrites data files; `files` is their part in the executors. All else works without pyspark and
Java.
"""
