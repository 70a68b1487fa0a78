# One image for the service, its command line and Spark: the driver and the executors then have the same Python, the
# same packages and the same Spark.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home hybrid \
    && install -d -o hybrid /state

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY query query
COPY matching matching
COPY live live
COPY archive archive
COPY simulator simulator
COPY hybrid hybrid
COPY deploy/constraints.txt deploy/constraints.txt
RUN pip install --no-cache-dir --constraint deploy/constraints.txt ".[kafka,metrics,mqtt,s3,spark]"
COPY deploy deploy

USER hybrid
ENV SPARK_CONF_DIR=/app/deploy/spark
ENTRYPOINT ["hybrid"]
CMD ["run", "/app/deploy/app.toml"]
