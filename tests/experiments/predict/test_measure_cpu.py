import time

import pytest
import torch
import yaml

from experiments.commands import devices
from experiments.predict import measure_cpu
from experiments.predict.device import Device
from experiments.predict.load_model import make_model
from experiments.predict.measure_cpu import CASES


@pytest.fixture
def small(monkeypatch):
    """Three models of a layer or two, and small peaks: a second in all."""
    linear = {"model._target_": "torch.nn.Linear", "model.in_features": 64, "features": 64}
    cases = [(name, 4, linear | {"model.out_features": 64}) for name in ("lstm", "vgg16", "gpt2")]
    monkeypatch.setattr(measure_cpu, "CASES", cases)
    monkeypatch.setattr(measure_cpu, "MATRIX", 256)
    monkeypatch.setattr(measure_cpu, "COPIED_BYTES", 2**20)

    def make(words, batch_size, device):
        return make_model({k: v for k, v in words.items() if k != "model"}, batch_size, device)

    monkeypatch.setattr(measure_cpu, "make_model", make)


def test_a_measured_file_is_a_device(small, tmp_path, monkeypatch, capsys):
    threads = torch.get_num_threads()
    monkeypatch.setattr(
        measure_cpu, "fits_of", lambda name, device, where: [fit_without_models(device, where)]
    )
    file = tmp_path / "cpu.yaml"
    monkeypatch.setattr("sys.argv", ["devices", "--measure", str(file)])
    assert devices.main() == 0
    assert torch.get_num_threads() == threads
    known = Device.load(str(file))
    assert known.shares_of("float32").basis == "measured"
    assert known.peak_tflops["float32"] > 1e-4 and known.memory_gb_per_s > 0.01
    assert [figure.model for figure in known.figures] == ["lstm", "vgg16", "gpt2"]
    assert all(figure.examples_per_s > 1 for figure in known.figures)
    assert yaml.safe_load(file.read_text())["figures"][0]["words"]["features"] == 64
    assert "one core of" in capsys.readouterr().out


def fit_without_models(device, where):
    from experiments.predict.shares_table import DeviceFit
    from experiments.predict.step_trace import KINDS

    return DeviceFit(
        name="cpu",
        device=device,
        precision="float32",
        by_kind=dict.fromkeys(KINDS, 0.5),
        basis=where,
        figures=device.figures,
        errors=(0.0,) * len(device.figures),
        left_out=(None,) * len(device.figures),
    )


def test_time_is_a_processor_s_and_that_of_the_least_disturbed_repeat():
    waits_s = iter([0.0, 0.03, 0.0, 0.0])
    spins_s = iter([0.0, 0.04, 0.01, 0.02])

    def work():
        time.sleep(next(waits_s))  # takes no processor
        until_s = time.process_time() + next(spins_s)
        while time.process_time() < until_s:
            pass

    assert measure_cpu._processor_s(work) == pytest.approx(0.01, abs=0.008)


def test_three_models_and_more_are_measured():
    assert len({model for model, _, _ in CASES}) >= 3
