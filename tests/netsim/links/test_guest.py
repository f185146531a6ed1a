import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.links import guest
from netsim.links.guest import GuestError
from netsim.validation import back_ends
from netsim.validation.back_ends import ValidationOutcome, ValidationTask
from tests import app

# At 100 Mbit/s the guest's one processor takes up to a tenth of an all-reduce itself.
CONDITION = NetworkCondition(rate_mbit=50, delay_ms=5)
NUM_ALL_REDUCES = 6
NUM_ATTEMPTS = 4

pytestmark = [
    pytest.mark.guest,
    pytest.mark.slow,
    pytest.mark.skipif(guest.why_not() is not None, reason=str(guest.why_not())),
    pytest.mark.usefixtures("processor_for_guests"),
]


@pytest.fixture(scope="module")
def processor_for_guests() -> None:
    """Skips where the guest kernel itself says that it cannot run."""
    try:
        guest.run_module("timeit", ["--number=1"], limit_s=60)
    except guest.ProcessorError as error:
        pytest.skip(str(error))


@pytest.fixture
def temporary_files(tmp_path, monkeypatch) -> Path:
    """Where a guest has its files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.root
@pytest.mark.timeout(600)
def test_netem_in_a_guest_and_the_switch_agree(scenario):
    del scenario  # it skips where the host forbids namespaces
    # A busy host only slows down: the least of all attempts is the network's own.
    least: dict[str, list[float]] = {}
    for _ in range(NUM_ATTEMPTS):
        outcomes = {"netem": in_guest(task("netem")), "switch": on_host(task("switch"))}
        for backend, outcome in outcomes.items():
            assert len(outcome.links) == back_ends.NUM_WORKERS
            took = [
                min(outcome.all_reduce_seconds),
                *(link.achieved_rtt_ms for link in outcome.links),
                *(1 / link.achieved_rate_mbit for link in outcome.links),
            ]
            least[backend] = list(map(min, least.get(backend, took), took))
        if least["switch"] == pytest.approx(least["netem"], rel=0.1):
            break
    assert least["switch"] == pytest.approx(least["netem"], rel=0.1)


def in_guest(task: ValidationTask) -> ValidationOutcome:
    [outcome] = back_ends.measure_in_guest([task])
    assert outcome.refused is None
    return outcome


def on_host(task: ValidationTask) -> ValidationOutcome:
    said = app.run(back_ends.to_json([task]), module="netsim.validation.back_ends", strict=False)
    assert said.returncode == 0, said.stderr
    [outcome] = back_ends.outcomes_from_json(said.stdout)
    return outcome


def test_a_guest_cannot_change_the_hosts_files(temporary_files):
    archive = Path(__file__).with_name("unwanted.tar")
    with pytest.raises(GuestError, match=r"(?s)tarfile failed .* Read-only file system"):
        guest.run_module("tarfile", ["--create", str(archive), __file__], limit_s=60)
    assert not archive.exists()
    assert list(temporary_files.iterdir()) == []


def test_a_guest_that_takes_too_long_is_killed(temporary_files, monkeypatch):
    monkeypatch.setattr(guest, "_BOOT_LIMIT_S", -50)
    sleep = "import time; time.sleep(1000)"
    with pytest.raises(GuestError, match="did not end within 10 s"):
        guest.run_module("timeit", ["--number=1", sleep], limit_s=60)
    assert list(temporary_files.iterdir()) == []
    assert str(temporary_files) not in command_lines()


def task(backend: str) -> ValidationTask:
    return ValidationTask(
        condition=replace(CONDITION, backend=backend), num_all_reduces=NUM_ALL_REDUCES
    )


def command_lines() -> str:
    """Of all the processes of this host."""
    return subprocess.run(["ps", "-eo", "args"], stdout=subprocess.PIPE, check=True).stdout.decode()
