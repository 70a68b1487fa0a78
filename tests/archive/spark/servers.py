"""Spark's own servers for tests: on free ports of the loopback interface, stopped at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conftest import JAVA_OPTIONS_WITH_CLASSES
from tests.waiting import GUARD_S, until

#: Kept from executors: whatever on their path has our packages, so that only what is shipped to them can be ours.
WITHOUT_US = """
import os, sys
sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p, "matching"))]
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def environment(work: Path, cache: Path) -> dict[str, str]:
    """Of a server whose Python workers are this Python without our packages. cache: where those that are shipped to
    them are unpacked and compiled."""
    (work / "python").mkdir(parents=True, exist_ok=True)
    (work / "python" / "sitecustomize.py").write_text(WITHOUT_US)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK", "PYTHON"))}
    return kept | {
        "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(work / "python"), "SPARK_LOCAL_IP": "127.0.0.1",
        "XDG_CACHE_HOME": str(cache), "SPARK_LOG_DIR": str(work), "SPARK_PID_DIR": str(work),
        "SPARK_WORKER_DIR": str(work), "SPARK_NO_DAEMONIZE": "1",
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS_WITH_CLASSES,  # of servers, and of the executors that they start
    }  # fmt: skip


@contextmanager
def server(command: list[str], log: Path, env: Mapping[str, str], says: str) -> Iterator[None]:
    """A server, from when its log says that it is up."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(env), cwd=log.parent,
            start_new_session=True,
        )  # fmt: skip
    try:
        until(
            lambda: says in log.read_text(errors="replace") or process.poll() is not None,
            seen=lambda: log.read_text(errors="replace")[-2000:],
        )
        assert process.poll() is None, f"{command[0]} does not come up:\n{log.read_text(errors='replace')[-2000:]}"
        yield
    finally:
        with_children = process.pid  # its own session: the group has nobody else in it
        try:
            os.killpg(with_children, signal.SIGTERM)
            process.wait(GUARD_S)
        except ProcessLookupError:
            pass
        except subprocess.TimeoutExpired:
            os.killpg(with_children, signal.SIGKILL)
        process.wait(GUARD_S)


def home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


@contextmanager
def cluster(work: Path, cache: Path, workers: int = 2) -> Iterator[str]:
    """A standalone master with workers of one core each: its address."""
    port, env = free_port(), environment(work, cache)
    env["SPARK_MASTER_OPTS"] = "-Dspark.master.rest.enabled=false"
    env["SPARK_DAEMON_MEMORY"] = "256m"
    run = [str(home() / "bin" / "spark-class")]
    deploy = "org.apache.spark.deploy"
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as up:
        master = [*run, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        up.enter_context(server(master, work / "master.log", env, "I have been elected leader"))
        for i in range(workers):
            worker = [
                *run, f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g",
                "--webui-port", "0", "--work-dir", str(work / f"worker{i}"), address,
            ]  # fmt: skip
            up.enter_context(server(worker, work / f"worker{i}.log", env, "Successfully registered with master"))
        yield address


@contextmanager
def connect_server(work: Path, cache: Path) -> Iterator[str]:
    """A Spark Connect server in front of two local cores: its address."""
    port = free_port()
    options = {
        "spark.master": "local[2]", "spark.connect.grpc.binding.port": str(port), "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "3",
    }  # fmt: skip
    given = [word for key, value in options.items() for word in ("--conf", f"{key}={value}")]
    command = [str(home() / "sbin" / "start-connect-server.sh"), *given]
    with server(command, work / "connect.log", environment(work, cache), "Spark Connect server started at"):
        yield f"sc://127.0.0.1:{port}"
