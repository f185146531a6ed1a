import pytest

from tests.bagua_algos.gloo import run_program_once


@pytest.fixture(scope="session")
def processes(tmp_path_factory) -> list[dict[str, dict]]:
    """What each of the 4 processes has found, by part and case."""
    return run_program_once(tmp_path_factory, "tests.bagua_algos.fsdp2.workers", 4)
