"""The secret of a deployment: it peppers the hashes of keys and derives the demo's keys."""

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.errors import SecretUnusable
from loraplex.tenants.tables import Deployment

MIN_BYTES = 32
SECRET_FILE = "secret"  # noqa: S105  a file name


def load_secret(data_dir: Path, given: str | None = None) -> bytes:
    """Return the secret: the one given in the settings, or the data directory's, made at first use.

    Raises:
        SecretUnusable: it is shorter than 32 bytes, unreadable, or others may read it.
    """
    if given is not None:
        return _long_enough(given.encode(), "The secret in the settings")
    path = data_dir / SECRET_FILE
    try:
        if not path.exists():
            _create(path)
        return _read(path)
    except OSError as error:
        raise SecretUnusable(
            f"The secret {path} cannot be used: {error.strerror}. Make it readable and its folder "
            "writable for this user, or set LORAPLEX_SECRET."
        ) from error


def fingerprint(secret: bytes) -> str:
    """Return what tells a secret from others and does not tell it."""
    return hmac.digest(secret, b"loraplex fingerprint", hashlib.sha256).hex()


async def confirm_secret(session: AsyncSession, secret: bytes) -> None:
    """Tie the database to the secret at first use, and see that it is the same ever after.

    Raises:
        SecretUnusable: the keys in the database were hashed with another secret.
    """
    own = fingerprint(secret)
    await session.execute(
        insert_unless_there(session, Deployment, "id", id=1, secret_fingerprint=own)
    )
    deployment = await session.get_one(Deployment, 1)
    if not hmac.compare_digest(deployment.secret_fingerprint, own):
        raise SecretUnusable(
            "The secret is not the one that the keys in this database were hashed with, so no key "
            "would be accepted. Restore the data directory's file 'secret' or LORAPLEX_SECRET."
        )


def _create(path: Path) -> None:
    """Write a secret under another name, then link it: the first of two processes wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(MIN_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(draft)
    except FileExistsError:
        pass  # Another process was first; its secret is read.
    finally:
        draft.unlink()


def _read(path: Path) -> bytes:
    if stat.S_IMODE(path.stat().st_mode) & stat.S_IRWXO:
        raise SecretUnusable(f"The secret {path} is open to other users: chmod 600 {path}")
    return _long_enough(path.read_bytes().strip(), f"The secret {path}")


def _long_enough(secret: bytes, what: str) -> bytes:
    if len(secret) < MIN_BYTES:
        raise SecretUnusable(f"{what} has {len(secret)} bytes; at least {MIN_BYTES} are needed.")
    return secret
