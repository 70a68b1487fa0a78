"""Starts Spark sessions: on this machine, on a standalone cluster, or through Spark Connect.

    spark_session()                          the running session of this process, else local[*]
    spark_session("spark://host:7077")       a standalone cluster with this process as driver
    spark_session("sc://host:15002")         Spark Connect: the driver is elsewhere, no Java is needed here
    spark_session(session)                   a session started by the caller, used unchanged
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from query.errors import DataError, first_line
from query.extras import install_command, not_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Where Spark runs: the address of a master, a session, or None for LOCAL.
Where: TypeAlias = "str | SparkSession | None"

LOCAL = "local[*]"
#: Default memory of a driver that this process starts; Spark's default is 1 GB.
DRIVER_MEMORY = "2g"
JAVA_VERSION_MIN = 17
#: Rows of an Arrow batch: Spark's default of 10,000 takes a fifth more time.
ARROW_ROWS = 65_536

CONNECT_PORT = 15_002
#: Timeout for a connection to a master or a Spark Connect server.
CONNECT_SECONDS = 10

#: Options that can be set in a running session; _STARTING only at its start.
_RUNNING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
    # files not written by Spark do not state their calendar: their days are proleptic Gregorian
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_STARTING = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # the driver collects all result rows; the caller is responsible for their number
    "spark.driver.maxResultSize": "0",
    "spark.executorEnv.PYTHONWARNINGS": "ignore",
}
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

#: A process has one session, which several threads may request.
_STARTS = threading.Lock()

#: Packages of Spark's client, whose errors are Spark's.
PACKAGES = ("pyspark", "py4j", "grpc")


def spark_session(
    where: Where = None, *, memory: str | None = None, options: Mapping[str, str] | None = None
) -> SparkSession:
    """Returns the session at an address; starts it if needed.

    where: see above. memory: of the driver, for example "4g". options: Spark options, which override ours. Starting a
    session takes 10 seconds or more; it lives until it is stopped or the process ends. Java's output, with Spark's log,
    goes to a temporary file.
    Raises DataError if pyspark or Java is missing, if a session at another address runs in this process, or if Spark
    does not start (with Java's error).
    """
    if where is not None and not isinstance(where, str):
        return where
    _need_pyspark()
    ignore_pandas()  # the first call into Java imports more of pyspark
    with _STARTS:
        return _at(where, memory, options or {})


def check_where(where: Where) -> None:
    """Raises DataError if `where` is neither a Spark address nor a session, or if pyspark is missing. Starts
    nothing."""
    if isinstance(where, str) or where is None:
        if importlib.util.find_spec("pyspark") is None:
            raise not_installed("Spark needs pyspark", "spark")
        _check_address(LOCAL if where is None else where)
    elif type(where).__module__.partition(".")[0] != "pyspark":
        raise _no_address(where)


def _check_address(address: str) -> None:
    if not re.match(r"sc://|(local|spark|yarn|k8s)\b", address):
        raise _no_address(address)


def _no_address(where: Any) -> DataError:
    return DataError(f"invalid Spark address {where!r}", "use local[*], spark://host:7077 or sc://host:15002")


def _at(where: str | None, memory: str | None, options: Mapping[str, str]) -> SparkSession:
    active = _active()
    if where is None and active is not None:
        return active
    address = LOCAL if where is None else where
    _check_address(address)
    if address.startswith("sc://"):
        return _connected(address, options)
    if active is not None:
        has = active.conf.get("spark.master", "")
        if has == address:
            return active
        message = f"a Spark session at {has} already runs in this process, which can have only one"
        raise DataError(message, f"stop it (session.stop()), or use {has}")
    return _started(address, memory, options)


def java_version() -> int | None:
    """Returns the major version of Spark's Java, or None without Java."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def is_connect(session: SparkSession) -> bool:
    """Returns True for a session of Spark Connect, whose driver is not in this process."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def functions(session: SparkSession) -> Any:
    """Returns pyspark's module of column functions, which differs for Spark Connect."""
    if is_connect(session):
        from pyspark.sql.connect import functions as remote

        return remote
    from pyspark.sql import functions as classic

    return classic


@contextmanager
def in_words(failed: str, hint: str = "") -> Iterator[None]:
    """Context manager and decorator that turns errors of Spark and of the connection into DataError. failed: beginning
    of the message. hint: placed before the hint about the cause."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, ConnectionError) and type(error).__module__.split(".")[0] not in PACKAGES:
            raise
        why, advice = what_failed(error)
        raise DataError(f"{failed}: {why}", f"{hint}; {advice}" if hint else advice) from None


def what_failed(error: Exception) -> tuple[str, str]:
    """Returns the last cause in an error of Spark, and a hint."""
    name = type(error).__name__
    # After the end of Java, py4j raises various errors, also about unknown names.
    if (name.startswith("Py4J") and name != "Py4JJavaError") or isinstance(error, ConnectionError):
        return "its Java has ended", "it may have had too little memory: --memory 4g, or spark_session(memory='4g')"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"(Caused by: )?(\w+\.)*\w*(Error|Exception|Warning)\b", line)]
    if "java.lang.OutOfMemoryError" in str(error):
        return "its Java has too little memory", "--memory 4g, or spark_session(memory='4g')"
    why = raised[-1] if raised else lines[0] if lines else name
    return why.removeprefix("Caused by: "), "see Spark's own log"


def _need_pyspark() -> None:
    try:
        ignore_pandas()
        import pyspark.sql  # noqa: F401
    except ImportError as error:
        raise DataError(f"Spark is not installed: {error}", install_command("spark")) from None


def _active() -> SparkSession | None:
    """Returns the session whose driver is this process, started by any thread; None without one, or if it has ended."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        return None
    try:
        stopped = context._jsc.sc().isStopped()
    except Exception:  # noqa: BLE001  (its Java has ended, for which py4j has several errors)
        stopped = True
        _forget_java()
    if stopped:  # by Spark itself, after its master has ended
        context._jsc = None  # there is no Java to stop
        context.stop()
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        return None
    return SparkSession.getActiveSession() or SparkSession(context)


def _forget_java() -> None:
    """Makes pyspark start a new Java for the next session instead of using the ended one."""
    from pyspark import SparkContext

    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()


def _need_java() -> None:
    version = java_version()
    if version is None or version < JAVA_VERSION_MIN:
        found = "found none" if version is None else f"found version {version}"
        raise DataError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, {found}",
            "install it (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME",
        )


def _connected(address: str, options: Mapping[str, str]) -> SparkSession:
    try:
        from pyspark.sql.connect.session import SparkSession as Remote
    except ImportError as error:
        raise DataError(f"Spark Connect cannot be used: {error}", install_command("spark")) from None
    found = re.match(r"sc://\[?([^/;\]]+?)\]?(?::(\d+))?(?:/|;|$)", address)
    try:
        if found is not None:  # checked first, because the client retries for many minutes
            socket.create_connection((found[1], int(found[2] or CONNECT_PORT)), CONNECT_SECONDS).close()
        session = Remote.builder.remote(address).getOrCreate()
        try:
            _set(session, options)
        except Exception:  # noqa: BLE001  (a restarted server does not know the session)
            session.stop()
            session = Remote.builder.remote(address).getOrCreate()
            _set(session, options)
    except Exception as error:  # noqa: BLE001  (gRPC, pyspark and the server have many error classes)
        message = f"{address} does not answer: {first_line(error)}"
        raise DataError(message, "Spark's start-connect-server.sh starts a server") from None
    return cast("SparkSession", session)


def _set(session: Any, options: Mapping[str, str]) -> None:
    """Sets the options of a running session."""
    for key, value in {**_RUNNING, **options}.items():
        session.conf.set(key, value)


def _need_master(address: str) -> None:
    """Raises DataError if no master of a cluster accepts a connection. Spark itself would retry for a minute and then
    raise an unhelpful error."""
    said = ""
    for host, port in re.findall(r"\[?([^/,;\]]+?)\]?:(\d+)(?:,|$)", address.removeprefix("spark://")):
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
            return
        except OSError as error:
            said = first_line(error)
    if said:
        raise DataError(f"{address} does not answer: {said}", "Spark's start-master.sh starts a master")


def _started(master: str, memory: str | None, options: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf

    _need_java()
    if master.startswith("spark://"):
        _need_master(master)
    alone = re.match(r"local\b|spark://(127\.|localhost)", master) is not None
    wanted = {
        **_RUNNING, **_STARTING, **(_LOOPBACK if alone else {}), "spark.app.name": "hybrid", "spark.master": master,
        "spark.driver.memory": memory or DRIVER_MEMORY, **options,
    }  # fmt: skip
    conf = SparkConf(loadDefaults=False)
    for key, value in wanted.items():
        conf.set(key, value)
    python = wanted.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    if python is None and master.startswith("local"):
        python = sys.executable  # the `python3` on the path may lack our dependencies
    with _environment(PYSPARK_PYTHON=python, SPARK_LOCAL_IP="127.0.0.1" if alone else None):
        return _launched(master, conf)


def _launched(master: str, conf: Any) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    with tempfile.NamedTemporaryFile("wb", prefix="hybrid-spark-", suffix=".log", delete=False) as log:
        path = Path(log.name)
        atexit.register(path.unlink, missing_ok=True)
        try:
            gateway = None
            if SparkContext._gateway is None:  # else the Java of a stopped session still runs
                gateway = launch_gateway(conf, {"stdout": log, "stderr": log})
            return SparkSession(SparkContext(conf=conf, gateway=gateway))
        except Exception as error:  # noqa: BLE001  (py4j and pyspark have many error classes)
            message = f"Spark does not start on {master}: {_why(error, path)}"
            raise DataError(message, "check the address, the options and the memory") from None


def ignore_pandas() -> None:
    """Suppresses pyspark's warning about an untested version of pandas, which we do not use. The filter stays: removing
    it in one thread would undo changes of other threads to the warning filters."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)


@contextmanager
def _environment(**wanted: str | None) -> Iterator[None]:
    """Context manager that sets environment variables; those that are None stay unchanged."""
    before = {name: os.environ.get(name) for name, value in wanted.items() if value is not None}
    os.environ.update({name: value for name, value in wanted.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _why(error: Exception, log: Path) -> str:
    """Returns the cause of a failed start: the last error in Java's output, else the given error."""
    lines: list[str] = []
    with suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line.strip() for line in lines if re.search(r"(ERROR|Exception|Error)\b", line) and "\tat " not in line]
    return told[-1] if told else first_line(error)
