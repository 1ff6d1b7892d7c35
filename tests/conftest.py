"""Environment of all tests, set before anything imports torch; what they share, made once."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from tests.services.migrated import MigratedDatabases, migrate_url
from tests.services.postgres import Postgres, running_postgres
from tests.services.valkey import Valkey, running_valkey
from tests.services.valkey_cluster import ValkeyCluster, running_cluster

from loraplex.platform.demo.base import demo_model_dir, find_gguf

if TYPE_CHECKING:
    from tests.services.s3 import S3Server

    from loraplex.kernels.cpu_kernels import CpuKernels

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ.setdefault("TRITON_INTERPRET", "1")  # on a machine with a GPU, its script says 0
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Kernels are compiled once for all tests, and kept between runs."""
    assert config.cache is not None
    os.environ["LORAPLEX_KERNELS_DIR"] = str(config.cache.mkdir("kernels"))


@pytest.fixture(scope="session")
def compiled_kernels() -> "CpuKernels":
    from loraplex.kernels.cpu_kernels import compile_kernels  # noqa: PLC0415  after the environment is set

    compiled = compile_kernels(Path(os.environ["LORAPLEX_KERNELS_DIR"]))
    assert compiled is not None, "the tests need a C++ compiler"
    return compiled


# No test has a time limit, and a change is judged by the same examples on every machine;
# HYPOTHESIS_PROFILE=explore looks for others.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the demo's base model, converted from its package."""
    from loraplex.engine.gguf_model import convert_gguf  # noqa: PLC0415  after the environment is set

    folder = demo_model_dir(tmp_path_factory.mktemp("demo"))
    convert_gguf(find_gguf(), folder)
    return folder


@pytest.fixture(scope="session")
def new_demo_data_dir(
    demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Path]:
    """Makes data directories that hold the converted model and nothing else."""

    def make() -> Path:
        data_dir = tmp_path_factory.mktemp("served") / "data"
        shutil.copytree(demo_model, demo_model_dir(data_dir), copy_function=os.link)
        return data_dir

    return make


@pytest.fixture(scope="session")
def demo_data_dir(new_demo_data_dir: Callable[[], Path]) -> Path:
    """Data directory of the platform that all tests share."""
    return new_demo_data_dir()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL cluster of the session. Whoever kills it starts one of their own."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    """The Valkey of the session. Whoever kills it starts one of their own."""
    with running_valkey() as server:
        yield server


@pytest.fixture(scope="session")
def valkey_cluster() -> Iterator[ValkeyCluster]:
    """The cluster of the session. Whoever kills one of its servers starts one of their own."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def s3() -> "Iterator[S3Server]":
    """The S3 server of the session. Whoever stops it starts one of their own."""
    from tests.services.s3 import running_s3  # noqa: PLC0415  it takes a second to import

    with running_s3() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite database without rows, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "loraplex.db"
    asyncio.run(migrate_url(f"sqlite+aiosqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def _migrated_databases(postgres: Postgres) -> MigratedDatabases:
    return MigratedDatabases(postgres)


@pytest.fixture
def sqlite_url(migrated_file: Path, tmp_path: Path) -> str:
    """URL of a migrated SQLite database of the test's own."""
    return f"sqlite+aiosqlite:///{shutil.copy(migrated_file, tmp_path / 'loraplex.db')}"


@pytest.fixture
def postgres_url(postgres: Postgres, _migrated_databases: MigratedDatabases) -> Iterator[str]:
    """URL of a migrated PostgreSQL database of the test's own."""
    name = _migrated_databases.take()
    yield postgres.url(name)
    _migrated_databases.give_back(name)


@pytest.fixture
def empty_postgres_url(postgres: Postgres) -> Iterator[str]:
    """URL of a PostgreSQL database of the test's own, without tables."""
    name = postgres.create_database()
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """URL of a migrated database of the test's own; the test runs once on each kind."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database without tables; the test runs once on each kind."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'loraplex.db'}"
    return request.getfixturevalue("empty_postgres_url")
