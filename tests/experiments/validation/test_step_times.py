import pandas as pd
import pytest
import torch

from bagua_algos.communication.communicator import Operation
from experiments.plan.compose import compose_config
from experiments.simulated.profile import Profile
from experiments.validation.step_times import closed_formula, page
from experiments.validation.step_times.compare import compare
from experiments.validation.step_times.grid import CI_GRID, GRID, PRESETS, Cell
from netsim.conditions.condition import NetworkCondition
from netsim.timeline.timeline import TimelineJob


def rows():
    cells = [
        Cell("allreduce", "mlp", 2, "lan_1g"),
        Cell("bytegrad", "cnn", 4, "1000 Mbit/s, 10 ms", 8, "halving_doubling"),
    ]
    return pd.DataFrame(
        [
            cells[0]._asdict()
            | {"measured_ms": 100.0, "predicted_ms": 105.0, "error": 0.05}
            | {"closed_ms": 80.0, "closed_error": -0.2},
            cells[1]._asdict()
            | {"measured_ms": 30.0, "predicted_ms": 24.0, "error": -0.2}
            | {"closed_ms": 33.0, "closed_error": 0.1},
        ]
    )


def test_the_grid_is_wide_enough():
    assert len({cell.algo for cell in GRID}) >= 6
    assert {cell.net for cell in GRID} > set(PRESETS)
    assert {2, 4, 8, 16} <= {cell.workers for cell in GRID}
    assert {cell.streams for cell in GRID} == {1, 8}
    assert {cell.pattern for cell in GRID} == {"ring", "halving_doubling"}
    assert len(GRID) == len(set(GRID)) >= 100


@pytest.mark.parametrize("cell", GRID[::7] + CI_GRID)
def test_a_cell_is_a_run(cell):
    config = compose_config(cell.overrides)
    assert config.streams == cell.streams and config.pattern == cell.pattern
    assert config.workers == cell.workers == config.cluster.sharing
    words = cell.net.split()
    if words[1:2] == ["Mbit/s,"]:
        assert [config.net.rate_mbit, config.net.delay_ms] == [float(words[0]), float(words[2])]
    else:
        assert config.names.net == cell.net


def test_the_summary_names_the_worst_cell_and_who_is_nearer():
    assert page.summary(rows()) == (
        "Mean absolute error 12.5 %, median 12.5 %, worst -20.0 % (bytegrad, cnn, 4 workers, "
        "1000 Mbit/s, 10 ms, 8 streams, halving_doubling), over 2 cells. The closed formula is off "
        "by 15.0 % on the mean, 20 % at worst; the simulator is nearer in 1 of them."
    )


def test_the_page_and_the_plot(tmp_path):
    text = page.markdown(rows())
    assert "| allreduce | mlp | 2 | lan_1g | 1 | ring | 100.0 | 105.0 | +5.0% | -20.0% |\n" in text
    assert "| `net=lan_1g` | 1 | +5.0% | 5.0% | +5.0% | 20.0% |\n" in text
    assert "| steps under 35 ms | 1 | -20.0% | 20.0% | -20.0% | 10.0% |\n" in text
    assert "| other rates and delays | 1 | -20.0% | 20.0% | -20.0% | 10.0% |\n" in text
    page.plot(rows(), tmp_path)
    assert (tmp_path / "time.png").stat().st_size > 10_000
    assert (tmp_path / "time.svg").exists()


@pytest.mark.parametrize(
    ("name", "pattern", "ms"),
    [
        ("all_reduce_mean", "ring", 6 * 10 + 150),
        ("all_reduce_mean", "halving_doubling", 4 * 10 + 150),
        ("all_to_all", "ring", 10 + 75),
        ("exchange", "ring", 10 + 100),
        ("reduce_scatter_mean", "ring", 3 * 10 + 75),
        ("all_gather", "ring", 3 * 10 + 300),
        ("broadcast", "ring", 2 * 10 + 75),
    ],
)
def test_the_closed_formula_of_an_operation(name, pattern, ms):
    """10^6 bytes of each of 4 workers take 100 ms at 80 Mbit/s."""
    condition = NetworkCondition(rate_mbit=80, delay_ms=10)
    operation = Operation(name=name, num_bytes=1_000_000, ranks=(0, 1, 2, 3))
    seconds = closed_formula.operation_s(operation, condition, pattern)
    assert seconds == pytest.approx(ms / 1000)


def test_the_closed_formula_adds_up_compute_kernels_and_messages():
    operation = Operation(name="exchange", num_bytes=1_000_000, ranks=(0, 1))
    jobs = (TimelineJob(moment="step_end", work=(0.001, operation, 0.002)),)
    seconds = {"forward_s": 0.01, "late_s": 0.004, "backward_s": 0.02, "optimizer_s": 0.003}
    profile = Profile(device="", sharing=1, setting={}, ready_s=(), jobs=(), **seconds)
    condition = NetworkCondition(rate_mbit=80, delay_ms=10)
    # Three steps, of which two communicate.
    step_s = closed_formula.step_s([jobs, (), jobs], profile, condition, "ring")
    assert step_s == pytest.approx(0.037 + 2 * (0.003 + 0.11) / 3)


@pytest.mark.slow
@pytest.mark.root
def test_three_cells_are_predicted():
    threads = torch.get_num_threads()
    compared = pd.DataFrame(compare(CI_GRID, seconds=0.5))
    torch.set_num_threads(threads)
    print(compared)
    assert len(compared) == len(CI_GRID) == 3
    # A busy machine disturbs what is measured; a factor of three is more than it can.
    assert compared.predicted_ms.div(compared.measured_ms).between(1 / 3, 3).all()
