"""`loraplex adapter upload`: a folder of this machine goes to a gateway, wherever it runs."""

import hashlib
import json
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from loraplex.platform.cli.context import AsJson, CommandFailed, reporting_errors
from loraplex.platform.cli.output import print_json

PIECE_BYTES = 8 * 1024 * 1024
TRIES = 5
"""Of a piece, before the upload is given up; it can be gone on with later."""


class Gateway:
    """A gateway's API, with a tenant's key."""

    def __init__(self, url: str, key: str, timeout_s: float = 600.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise CommandFailed(f"{url!r} is no address such as https://gateway.example")
        self._base = parts.path.rstrip("/")
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout_s)
        self._headers = {"authorization": f"Bearer {key}"}

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The JSON of an answer. Raises CommandFailed with the gateway's reason."""
        data = None if body is None else json.dumps(body).encode()
        status, answer, _ = self.send(method, path, data, {"content-type": "application/json"})
        found: dict[str, Any] = json.loads(answer or b"{}")
        if status >= 400:
            raise CommandFailed(str(found.get("error", found).get("message", found)))
        return found

    def send(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes, HTTPResponse]:
        """Status, body and the answer itself. Raises OSError, HTTPException."""
        self._connection.request(method, self._base + path, data, self._headers | headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read(), answer

    def close(self) -> None:
        """Close the connection; what is asked next opens another."""
        self._connection.close()


def upload(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The adapter's, without the tenant.")],
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a PEFT LoRA checkpoint.")
    ],
    url: Annotated[str, typer.Option(envvar="LORAPLEX_URL", help="Where the gateway is.")],
    key: Annotated[
        str, typer.Option(envvar="LORAPLEX_KEY", help="The tenant's key; better as a variable.")
    ],
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with an upload that was broken off.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a checkpoint to a gateway, in pieces; there it is checked and published."""
    with reporting_errors(), closing(Gateway(url, key)) as gateway:
        done = _upload(gateway, name, directory, resume)
    if as_json:
        print_json([done])
        return
    typer.echo(f"Published {done['version']} ({done['digest']}).")
    typer.echo(f"self-test: {_told(done['self_test'])}")


def _told(self_test: dict[str, Any] | None) -> str:
    if self_test is None:
        return "not run"
    return (
        f"passed ({self_test['method']}), {self_test['num_compared']} of "
        f"{self_test['num_tokens']} tokens compared, log-probabilities within "
        f"{self_test['max_abs_logprob_diff']:.2g}"
        + ("" if self_test["changes_output"] else "; it changed no answer of the base model")
    )


def _upload(gateway: Gateway, name: str, directory: Path, resume: str | None) -> dict[str, Any]:
    """The upload as the gateway shows it, with `digest` and `self_test` of its version."""
    files = _files(directory)
    sha256 = {file: _sha256(path) for file, path in files.items()}
    try:
        if resume is None:
            shown = _begin(gateway, name, files, sha256)
        else:
            shown = _resumed(gateway, resume, name)
            _check_same(shown, files, sha256)
        upload_id = shown["id"]
        if shown["status"] in {"ready", "rejected"}:
            typer.echo(f"Upload {upload_id} had ended already: {shown['status']}.", err=True)
        else:
            typer.echo(
                f"Upload {upload_id}; go on with --resume {upload_id} if it breaks.", err=True
            )
            for path in files.values():
                _send_file(gateway, upload_id, path)
            typer.echo("checking and testing …", err=True)
        done = gateway.ask("POST", f"/v1/adapters/uploads/{upload_id}/complete")
        _, _, number = done["version"].rpartition("@")
        version = gateway.ask("GET", f"/v1/adapters/{name}/versions/{number}")
    except (OSError, HTTPException) as error:
        raise CommandFailed(f"the gateway does not answer: {error!r}") from error
    return done | {"digest": version["digest"], "self_test": version["self_test"]}


def _files(directory: Path) -> dict[str, Path]:
    from loraplex.platform.upload_files import ADAPTER_FILES, REQUIRED_FILES

    for name in REQUIRED_FILES:
        if not (directory / name).is_file():
            raise CommandFailed(f"{directory} holds no {name}")
    return {name: directory / name for name in ADAPTER_FILES if (directory / name).is_file()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _begin(
    gateway: Gateway, name: str, files: dict[str, Path], sha256: dict[str, str]
) -> dict[str, Any]:
    announced = {
        file: {"bytes": path.stat().st_size, "sha256": sha256[file]} for file, path in files.items()
    }
    return gateway.ask("POST", "/v1/adapters/uploads", {"name": name, "files": announced})


def _resumed(gateway: Gateway, upload_id: str, name: str) -> dict[str, Any]:
    """The upload to go on with. Raises CommandFailed if it is not one of `name`, or given up."""
    shown = gateway.ask("GET", f"/v1/adapters/uploads/{upload_id}")
    if shown["name"] != name:
        raise CommandFailed(f"the upload {upload_id} is one of {shown['name']}, not of {name}")
    if shown["status"] == "cancelled":
        raise CommandFailed(
            f"the upload {upload_id} had ended already: cancelled, by DELETE or because nothing "
            "came for long; begin another, without --resume"
        )
    return shown


def _check_same(shown: dict[str, Any], files: dict[str, Path], sha256: dict[str, str]) -> None:
    """Raise CommandFailed unless a folder's files are those that the upload was begun with."""
    upload_id, announced = shown["id"], shown["files"]
    for name in announced.keys() ^ files.keys():
        which = "with" if name in announced else "without"
        raise CommandFailed(f"the upload {upload_id} was begun {which} {name}; begin another")
    for name, path in files.items():
        told = announced[name]
        if told["total"] != path.stat().st_size or told["sha256"] not in {None, sha256[name]}:
            raise CommandFailed(
                f"{name} is not the file that the upload {upload_id} was begun with; begin "
                "another, without --resume"
            )
        if told["sha256"] is None:
            typer.echo(f"warning: only the length of {name} could be compared", err=True)


def _send_file(gateway: Gateway, upload_id: str, path: Path) -> None:
    """Send what the gateway does not have of a file, going on where a connection broke."""
    shown = gateway.ask("GET", f"/v1/adapters/uploads/{upload_id}")["files"][path.name]
    offset, total, tries = shown["received"], shown["total"], 0
    with path.open("rb") as file:
        while offset < total:
            file.seek(offset)
            sent = _send_piece(gateway, f"{upload_id}/{path.name}", offset, file.read(PIECE_BYTES))
            tries = 0 if sent > offset else tries + 1
            if tries >= TRIES:
                raise CommandFailed(f"{path.name} does not get beyond {offset} of {total} bytes")
            offset = sent
            typer.echo(f"{path.name}: {offset:,} of {total:,} bytes", err=True)


def _send_piece(gateway: Gateway, place: str, offset: int, data: bytes) -> int:
    """Send one piece; return how many bytes the gateway has then."""
    url = f"/v1/adapters/uploads/{place}"
    try:
        status, body, answer = gateway.send("PATCH", url, data, {"upload-offset": str(offset)})
    except (OSError, HTTPException):
        gateway.close()
        status, body, answer = gateway.send("HEAD", url, None, {})
    told = answer.getheader("upload-offset")
    if status >= 400 and told is None:
        raise CommandFailed(json.loads(body or b"{}").get("error", {}).get("message", f"{status}"))
    return offset if told is None else int(told)
