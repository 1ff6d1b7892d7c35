"""A small S3 server of the tests' own, and a new bucket for each test."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from moto.server import ThreadedMotoServer

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass(frozen=True)
class S3Server:
    """One that listens on loopback; keeps all in memory."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """What clients read to find it."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.url}

    def make_bucket(self) -> str:
        """Name of a new bucket."""
        name = f"bucket-{uuid.uuid4().hex}"
        httpx.put(f"{self.url}/{name}").raise_for_status()
        return name


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """Run a server until the end of the block."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield S3Server(f"http://{host}:{port}")
    finally:
        server.stop()
