"""S3 on this machine: moto's server, with one bucket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from servers.mlflow_server import answers
from servers.ports import free_port
from waiting import wait_until

BUCKET = "runs"


@dataclass(frozen=True)
class ObjectStore:
    """One S3 bucket and how it is reached."""

    url: str

    @property
    def environment(self) -> Mapping[str, str]:
        """What a client of this store has in its environment."""
        return {
            "MLFLOW_S3_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """boto3's own client."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )

    def keys(self, below: str = "") -> list[str]:
        """The names of all objects."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=below)
        return [row["Key"] for page in pages for row in page.get("Contents", ())]


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """An empty bucket, kept in memory."""
    port = free_port()
    store = ObjectStore(f"http://127.0.0.1:{port}")
    command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "s3.log").open("wb") as log:
        server = subprocess.Popen(command, env=os.environ, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: answers(f"{store.url}/moto-api/"), 60, (folder / "s3.log").read_text)
        store.client().create_bucket(Bucket=BUCKET)
        yield store
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
