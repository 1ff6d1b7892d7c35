"""What Helm makes at install, as pods see it."""

import base64

import pytest
from tests.helm.chart import one, render

from loraplex.engine.frames import Security


@pytest.fixture(scope="session")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    """Token and certificate of the stream, as they are mounted into the worker."""
    data = one(render({}), "Secret", "-stream")["data"]
    folder = tmp_path_factory.mktemp("stream")
    for name in ("tls.crt", "tls.key"):
        (folder / name).write_bytes(base64.b64decode(data[name]))
    token = base64.b64decode(data["token"]).decode()
    return Security(token, folder / "tls.crt", folder / "tls.key")
