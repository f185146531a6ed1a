"""Asynchronous averaging on real workers, that differ in speed, stand still, and die."""

from typing import Any

import pytest
import torch

from tests.bagua_algos.async_workers import LEARNING_RATE
from tests.bagua_algos.gloo import run_program, run_program_once

NUM_WORKERS = 3


PROGRAM = "tests.bagua_algos.async_workers"


@pytest.fixture(scope="module")
def survivors(tmp_path_factory) -> list[dict[str, Any]]:
    """What each worker of each case returned, by rank."""
    return run_program_once(tmp_path_factory, PROGRAM, NUM_WORKERS, "surviving")


def test_workers_of_any_speed_and_number_of_steps_meet_at_a_pause(survivors):
    results = [worker["uneven"] for worker in survivors]
    for round_of_training in range(2):
        weights, num_rounds = zip(*(r["after"][round_of_training] for r in results), strict=True)
        assert num_rounds[0] > round_of_training
        assert len(set(num_rounds)) == 1
        for worker_weights in weights:  # 0, 1 and 2 before
            torch.testing.assert_close(worker_weights, torch.ones_like(worker_weights))


def test_an_evaluation_sees_the_mean_and_leaves_the_round_in_flight(survivors):
    results = [worker["evaluated"] for worker in survivors]
    for result in results:
        assert all(result["kept"])
        assert max(result["errors"]) < 1e-6
        assert result["rounds"] > 1


@pytest.mark.parametrize("case", ["learning", "evaluated"])
def test_no_update_is_lost_or_counted_twice(survivors, case):
    results = [worker[case] for worker in survivors]
    total = sum(r["weights"] for r in results)
    expected = -LEARNING_RATE * sum(r["num_steps"] for r in results)
    torch.testing.assert_close(total, torch.full_like(total, expected), rtol=1e-5, atol=0)


def test_weights_change_in_steps_alone(survivors):
    results = [worker["between_steps"] for worker in survivors]
    assert sum(r["landings"] for r in results) > 0
    for result in results:
        assert not any(result["changes"])
        assert result["num_rounds"] > 1


def test_a_worker_that_stands_still_does_not_hold_the_others(survivors):
    results = [worker["stopped"] for worker in survivors]
    # One round may have been in flight, and worker 2 may have begun one that had not.
    assert results[0]["while_stopped"] <= 2
    total = sum(r["weights"] for r in results)
    expected = -LEARNING_RATE * NUM_WORKERS * 70
    torch.testing.assert_close(total, torch.full_like(total, expected), rtol=1e-5, atol=0)


def test_after_a_death_the_others_train_on_alone_and_say_so_once(tmp_path):
    *survivors, gone = run_program(PROGRAM, tmp_path, NUM_WORKERS, "dying")
    assert gone == "gone"
    for survivor in survivors:
        assert len(survivor["warnings"]) == 1
        assert "each worker trains on alone: worker" in survivor["warnings"][0]
        assert "2 failed" in survivor["warnings"][0]
        torch.testing.assert_close(
            survivor["fallen"], torch.full_like(survivor["fallen"], 20 * LEARNING_RATE)
        )
        assert "2 failed" in survivor["error"]


def test_an_overflow_is_its_own_workers_affair(survivors):
    results = [worker["overflowing"] for worker in survivors]
    assert [r["scale"] for r in results] == [2.0**10, 2.0**8, 2.0**10]
    total = sum(r["weights"] for r in results)
    expected = -LEARNING_RATE * (20 + 18 + 20)
    torch.testing.assert_close(total, torch.full_like(total, expected), rtol=1e-5, atol=0)
