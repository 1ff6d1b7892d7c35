"""The few routes of a hub of models that a download uses, over folders `owner/name`: files by the
commit alone, and those of an owner `private` for whoever has a token."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

COMMIT = "c" * 40


@contextmanager
def running_hub(root: Path) -> Iterator[str]:
    """Serve until the end of the block; the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            parts = urlsplit(self.path).path.strip("/").split("/")
            is_hidden = "private" in parts and "Authorization" not in self.headers
            data = None if is_hidden else self._data(parts)
            self.send_response(404 if data is None else 200)
            if data is None:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(data or b"").hexdigest()}"')
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            if with_body and data:
                self.wfile.write(data)

        def _data(self, parts: list[str]) -> bytes | None:
            match parts:
                case ["api", "models", owner, name, *_] if (root / owner / name).is_dir():
                    files = [
                        {"rfilename": file.name, "size": file.stat().st_size}
                        for file in sorted((root / owner / name).iterdir())
                    ]
                    info = {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": files}
                    return json.dumps(info).encode()
                case [owner, name, "resolve", commit, file] if (
                    commit == COMMIT and (root / owner / name / file).is_file()
                ):
                    return (root / owner / name / file).read_bytes()
            return None

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
