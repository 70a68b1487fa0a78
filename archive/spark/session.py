"""The one place that starts a Spark session: in this process's machine, on a standalone cluster, or by Spark Connect.

    spark_session()                          the one that runs in this process, or else local[*]
    spark_session("spark://host:7077")       a standalone cluster; this process is its driver
    spark_session("sc://host:15002")         Spark Connect: the driver is elsewhere, and no Java is needed here
    spark_session(session)                   one that the caller has started: taken as it is
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What a caller may say of where Spark runs: the address of a master, a session, or None for LOCAL.
Where: TypeAlias = "str | SparkSession | None"

LOCAL = "local[*]"
#: Of a driver that this process starts, where nobody says otherwise; Spark's own is 1 GB.
DRIVER_MEMORY = "2g"
JAVA_VERSION_MIN = 17
#: Rows of one Arrow batch: Spark's own 10,000 cost a fifth more time.
ARROW_ROWS = 65_536

CONNECT_PORT = 15_002
#: So long a server of Spark Connect may take to answer.
CONNECT_SECONDS = 10

#: Options that a session may change while it runs; the others are for its start.
_RUNNING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
    # files that Spark has not written say nothing of old calendars: their days are ours
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_STARTING = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # rows come back to the driver whole, and it is for the one who asks to know how many they are
    "spark.driver.maxResultSize": "0",
    "spark.executorEnv.PYTHONWARNINGS": "ignore",
}
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

#: A process starts one session, and several threads may ask for it.
_STARTS = threading.Lock()

#: Spark's client: what is raised or run by these packages is its.
PACKAGES = ("pyspark", "py4j", "grpc")


def spark_session(
    where: Where = None, *, memory: str | None = None, options: Mapping[str, str] | None = None
) -> SparkSession:
    """The session at an address, started if there is none; a second call gives the same one.

    where: see above. memory: of the driver, for example "4g". options: of Spark, as in its documentation; they come
    after ours. Starting one takes 10 seconds or more; it lives until it is stopped or the process ends. Java's own
    output goes to a file that is deleted then: what Spark logs is not printed.
    Raises DataError where pyspark or Java is missing, where a session of another address runs in this process, and
    where none can be started, with what Java said.
    """
    if where is not None and not isinstance(where, str):
        return where
    _need_pyspark()
    ignore_pandas()  # the first call into Java imports more of pyspark
    with _STARTS:
        return _at(where, memory, options or {})


def check_where(where: Where) -> None:
    """Raises DataError for what is neither an address of Spark nor a session, and where there is no pyspark. Starts
    nothing."""
    if isinstance(where, str) or where is None:
        if importlib.util.find_spec("pyspark") is None:
            raise DataError("Spark is not installed", "pip install -e '.[spark]'")
        _check_address(LOCAL if where is None else where)
    elif type(where).__module__.partition(".")[0] != "pyspark":
        raise _no_address(where)


def _check_address(address: str) -> None:
    if not re.match(r"sc://|(local|spark|yarn|k8s)\b", address):
        raise _no_address(address)


def _no_address(where: Any) -> DataError:
    return DataError(f"{where!r} is no address of Spark", "local[*], spark://host:7077 or sc://host:15002")


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
        message = f"a Spark session of {has} runs in this process, and there can be but one"
        raise DataError(message, f"stop it (session.stop()), or ask {has}")
    return _started(address, memory, options)


def java_version() -> int | None:
    """The major version of the Java that Spark would run on, or None if there is none."""
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
    """Whether a session is one of Spark Connect: its driver is not in this process."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def functions(session: SparkSession) -> Any:
    """The module of pyspark with the functions of columns: Spark Connect has one of its own."""
    if is_connect(session):
        from pyspark.sql.connect import functions as remote

        return remote
    from pyspark.sql import functions as classic

    return classic


@contextmanager
def in_words(failed: str, hint: str = "") -> Iterator[None]:
    """Around what Spark does: what it or the way to it complains of is a DataError. failed: what it could not do; hint:
    said before what is said of the cause."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, ConnectionError) and type(error).__module__.split(".")[0] not in PACKAGES:
            raise
        why, advice = what_failed(error)
        raise DataError(f"{failed}: {why}", f"{hint}; {advice}" if hint else advice) from None


def what_failed(error: Exception) -> tuple[str, str]:
    """What an error of Spark says went wrong, the last cause it names, and a hint."""
    name = type(error).__name__
    # Of a Java that is gone py4j also says that it does not know what it is asked for.
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
        raise DataError(f"Spark is not installed: {error}", "pip install -e '.[spark]'") from None


def _active() -> SparkSession | None:
    """The session that this process is the driver of, whichever thread has started it, if it still answers."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        return None
    try:
        stopped = context._jsc.sc().isStopped()
    except Exception:  # noqa: BLE001  (its Java has ended, which py4j says in several classes)
        stopped = True
        _forget_java()
    if stopped:  # by Spark itself, when its master is gone
        context._jsc = None  # nobody is there to be told
        context.stop()
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        return None
    return SparkSession.getActiveSession() or SparkSession(context)


def _forget_java() -> None:
    """Lets the next session start a Java of its own: pyspark would ask the one that has ended."""
    from pyspark import SparkContext

    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()


def _need_java() -> None:
    version = java_version()
    if version is None or version < JAVA_VERSION_MIN:
        found = "there is no Java" if version is None else f"Java is of version {version}"
        raise DataError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {found}",
            "install one (Debian: apt-get install openjdk-17-jre-headless), and let JAVA_HOME name it",
        )


def _connected(address: str, options: Mapping[str, str]) -> SparkSession:
    try:
        from pyspark.sql.connect.session import SparkSession as Remote
    except ImportError as error:
        raise DataError(f"Spark Connect cannot be used: {error}", "pip install -e '.[spark]'") from None
    found = re.match(r"sc://\[?([^/;\]]+?)\]?(?::(\d+))?(?:/|;|$)", address)
    try:
        if found is not None:  # the client itself goes on trying for many minutes
            socket.create_connection((found[1], int(found[2] or CONNECT_PORT)), CONNECT_SECONDS).close()
        session = Remote.builder.remote(address).getOrCreate()
        try:
            _set(session, options)
        except Exception:  # noqa: BLE001  (a server that was started anew does not know it)
            session.stop()
            session = Remote.builder.remote(address).getOrCreate()
            _set(session, options)
    except Exception as error:  # noqa: BLE001  (gRPC's, pyspark's and the server's own complaints come in many classes)
        message = f"{address} does not answer: {first_line(error)}"
        raise DataError(message, "Spark's start-connect-server.sh starts a server") from None
    return cast("SparkSession", session)


def _set(session: Any, options: Mapping[str, str]) -> None:
    """Sets the options that a running session takes."""
    for key, value in {**_RUNNING, **options}.items():
        session.conf.set(key, value)


def _need_master(address: str) -> None:
    """Raises DataError where none of the masters of a cluster takes a connection: Spark itself goes on trying for a
    minute, and then says that something was null."""
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
        python = sys.executable  # what `python3` finds on the path may lack all that we need
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
            if SparkContext._gateway is None:  # else Java still runs, of a session that was stopped
                gateway = launch_gateway(conf, {"stdout": log, "stderr": log})
            return SparkSession(SparkContext(conf=conf, gateway=gateway))
        except Exception as error:  # noqa: BLE001  (py4j's and pyspark's own complaints come in many classes)
            raise DataError(f"Spark does not start on {master}: {_why(error, path)}", "see what it says") from None


def ignore_pandas() -> None:
    """Before calls of pyspark in which it says that it has not been tried with the pandas that is there: none of ours
    goes through pandas. The filter stays: a thread that puts the filters back as they were undoes what others have done
    to them, and a warning of theirs may go unheard."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)


@contextmanager
def _environment(**wanted: str | None) -> Iterator[None]:
    """Sets variables for a while; those that are None stay as they are."""
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
    """What went wrong at the start: the last complaint in Java's own output, or else the error."""
    lines: list[str] = []
    with suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line.strip() for line in lines if re.search(r"(ERROR|Exception|Error)\b", line) and "\tat " not in line]
    return told[-1] if told else first_line(error)
