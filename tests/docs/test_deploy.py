"""docker-compose.yml and what it mounts: right by the schema of Compose, and of one mind with each other."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from hybrid.service.app_file import load
from hybrid.service.app_tables import KafkaSinkTable, KafkaSourceTable
from hybrid.service.status import read_status
from tests.archive.store import s3_server
from tests.docs.documents import ROOT
from tests.live.servers import kafka_broker
from tests.waiting import GUARD_S, until

yaml = pytest.importorskip("yaml") if not os.environ.get("CI") else __import__("yaml")

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
CONSTRAINTS = dict(
    line.split("==") for line in (ROOT / "deploy/constraints.txt").read_text().splitlines() if not line.startswith("#")
)
S3 = "http://s3:8333"


@pytest.mark.slow
def test_it_is_what_compose_reads() -> None:
    if importlib.util.find_spec("check_jsonschema") is None and not os.environ.get("CI"):
        pytest.skip("check-jsonschema is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"],
        cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_everything_is_there() -> None:
    images = {name: s.get("image", "") for name, s in SERVICES.items()}
    kinds = {image.partition(":")[0] for image in images.values()}
    assert kinds == {"apache/kafka", "chrislusf/seaweedfs", "prom/prometheus", "hybrid"}
    assert {"app", "spark-master", "spark-worker", "kafka", "s3", "prometheus"} <= set(SERVICES)
    # a version, not a name that means another image tomorrow
    assert [n for n, i in images.items() if not re.search(r":v?\d+\.\d+(\.\d+)?$|^hybrid:local$", i)] == []


def test_names_and_paths_mean_something() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], (name, volume)
        needed = service.get("depends_on", [])
        assert set(needed) <= set(SERVICES), name
        for other, how in needed.items() if isinstance(needed, dict) else ():
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[other]
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")  # nothing of this is for the net
        for word in service.get("command", []) + service.get("entrypoint", []):
            if word.startswith("/app/"):
                assert (ROOT / word.removeprefix("/app/")).exists(), word


@pytest.mark.slow
@pytest.mark.parametrize("name", ["app", "feed"])
def test_the_app_files_are_right_and_name_the_services(name: str) -> None:
    file = ROOT / "deploy" / f"{name}.toml"
    assert f"/app/deploy/{name}.toml" in SERVICES[name]["command"]
    app = load(file)
    tables = (*app.sources.values(), *app.sinks.values())
    ends = [t for t in tables if isinstance(t, (KafkaSourceTable, KafkaSinkTable))]
    assert ends
    listeners = SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert {f"PLAINTEXT://{end.brokers}" for end in ends} == {listeners}
    assert str(app.state) == "/state"
    assert "/state" in DOCKERFILE


def test_what_is_fed_is_what_is_read() -> None:
    app, feed = load(ROOT / "deploy/app.toml"), load(ROOT / "deploy/feed.toml")
    read, written = app.sources["ticks"], feed.sinks["ticks"]
    assert isinstance(read, KafkaSourceTable)
    assert isinstance(written, KafkaSinkTable)
    assert read.topic == (written.topic,)
    assert app.streams["ticks"].columns == feed.streams["made"].columns


def test_the_store() -> None:
    environment = SERVICES["app"]["environment"]
    assert environment["AWS_ENDPOINT_URL"] == S3
    assert "-s3.port=8333" in SERVICES["s3"]["command"]
    (identity,) = json.loads((ROOT / "deploy/s3.json").read_text())["identities"]
    assert identity["credentials"] == [
        {"accessKey": environment["AWS_ACCESS_KEY_ID"], "secretKey": environment["AWS_SECRET_ACCESS_KEY"]}
    ]
    path = load(ROOT / "deploy/app.toml").database.path
    assert str(path).startswith(f"s3://{SERVICES['bucket']['entrypoint'][-1]}/")
    spark = dict(
        line.split(maxsplit=1)
        for line in (ROOT / "deploy/spark/spark-defaults.conf").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert spark["spark.hadoop.fs.s3a.endpoint"] == S3
    assert "SPARK_CONF_DIR=/app/deploy/spark" in DOCKERFILE


def test_metrics_reach_prometheus() -> None:
    scraped = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    (target,) = scraped[0]["static_configs"][0]["targets"]
    metrics = load(ROOT / "deploy/app.toml").metrics
    assert metrics is not None
    assert (target, metrics.host) == (f"app:{metrics.port}", "0.0.0.0")
    page = (ROOT / "docs/run.md").read_text()
    for address in ("spark://spark-master:7077", "s3://market/db", "port 9090", "8080"):
        assert address in page
    assert SERVICES["spark-master"]["entrypoint"][-1] == "7077"
    assert SERVICES["spark-worker"]["entrypoint"][-1] == "spark://spark-master:7077"


@pytest.mark.slow
def test_the_image_has_what_the_tests_have_run_with() -> None:
    """Pins lie in the ranges of pyproject.toml, and the jar of s3a belongs to the Hadoop of that Spark."""
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    allowed = {r.name: r.specifier for lines in lists for r in map(Requirement, lines)}
    assert set(CONSTRAINTS) >= {"pyspark", "confluent-kafka", "paho-mqtt", "deltalake", "prometheus-client"}
    assert [n for n, v in CONSTRAINTS.items() if Version(v) not in allowed[n]] == []
    extras = re.search(r'"\.\[(.*?)\]"', DOCKERFILE)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    for copied in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE):
        for path in copied.split():
            assert (ROOT / path).exists()
            assert f"!{path.split('/')[0]}" in (ROOT / ".dockerignore").read_text().splitlines()
    pyspark = pytest.importorskip("pyspark")
    if pyspark.__version__ == CONSTRAINTS["pyspark"]:
        (jar,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
        version = jar.stem.removeprefix("hadoop-client-api-")
        assert f"org.apache.hadoop:hadoop-aws:{version}\n" in (ROOT / "deploy/spark/spark-defaults.conf").read_text()


@pytest.mark.slow
def test_the_app_files_work_together(tmp_path: Path) -> None:
    """The feed and the service of the containers, as they are but for the addresses: ticks go through a broker into an
    archive in a store, and what is found comes back by the broker."""
    from confluent_kafka import Consumer

    with kafka_broker(tmp_path) as broker, s3_server(tmp_path / "store") as store:
        environment = os.environ | {name.upper(): value for name, value in store.options.items()}
        environment |= {"PYTHONPATH": str(ROOT), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{store.port}"}

        def run(*command: str) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, *command], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip

        bucket = run(str(ROOT / "deploy/make_bucket.py"), "market")
        _, said = bucket.communicate(timeout=GUARD_S)
        assert bucket.returncode == 0, said
        for name, changes in (
            ("feed", {"events = 1_000_000": "events = 20_000", "rate = 1000": "rate = 20_000"}),
            ("app", {"9100": "0x0", "0.0.0.0": "127.0.0.1"}),
        ):  # fmt: skip
            text = (ROOT / f"deploy/{name}.toml").read_text()
            for old, new in ({"kafka:9092": broker.address, "/state": f"{name}-state"} | changes).items():
                assert old in text
                text = text.replace(old, new)
            (tmp_path / f"{name}.toml").write_text(text)
        feed = run("-m", "hybrid", "run", "feed.toml")
        _, said = feed.communicate(timeout=GUARD_S)
        assert feed.returncode == 0, said
        app = run("-m", "hybrid", "run", "app.toml")
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "t", "auto.offset.reset": "earliest",
                             "topic.metadata.refresh.interval.ms": 500})  # fmt: skip
        consumer.subscribe(["falls"])
        found: list[dict[str, Any]] = []

        def read() -> None:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append(json.loads(message.value()))

        until(lambda: len(found) >= 5, read)
        consumer.close()
        # Before: the status, which is written now and then, was that from before the first events at times.
        until(lambda: read_status(tmp_path / "app-state")["streams"]["ticks"]["accepted"] > 1000)
        status = read_status(tmp_path / "app-state")
        app.terminate()
        _, said = app.communicate(timeout=GUARD_S)
        assert app.returncode == 0, said
        assert len(found) >= 5, (said, status)
        assert all(row["low"] < row["high"] for row in found)
        assert status["streams"]["ticks"]["accepted"] > 1000
        assert status["trouble"] == {}
        assert list((tmp_path / "store/market/db/ticks/table/_delta_log").iterdir())


def test_whoever_stops_it_waits_longer_than_it_takes() -> None:
    # Before: a stop took as long as the store did, and Compose killed it after 30 s.
    from hybrid.service.service import STOP_MORE_S, STOP_S

    unit = (ROOT / "deploy/hybrid.service").read_text(encoding="utf-8")
    found = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    found += re.findall(r"^(\d+)s$", SERVICES["app"]["stop_grace_period"])
    assert len(found) == 2
    assert all(int(seconds) > STOP_S + STOP_MORE_S for seconds in found)


def test_checks_of_health_are_commands_that_there_are() -> None:
    from tests.docs.cli_help import commands

    _, *words = SERVICES["app"]["healthcheck"]["test"]
    unit = (ROOT / "deploy/hybrid.service").read_text(encoding="utf-8")
    called = [words[1], *re.findall(r"^Exec\w+=\S*/hybrid (\w+)", unit, re.MULTILINE)]
    assert called == ["status", "check", "run"]
    assert {(name,) for name in called} <= {tuple(c) for c in commands()}
