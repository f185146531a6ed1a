"""What is told of a configuration before torch is imported."""

import subprocess
import sys
from collections.abc import Sequence

_SCRIPT = """
import sys
from experiments.plan.compose import compose_config
from experiments.runs.job import check_before_imports
from host.errors import UserError
for line in sys.stdin.read().splitlines():
    try:
        check_before_imports(compose_config(line.split()))
    except UserError as error:
        said = str(error)
    else:
        said = "taken"
    print("with torch:" if "torch" in sys.modules else "without:", said)
"""


def told(configurations: Sequence[Sequence[str]]) -> list[str]:
    """Of each, given by its overrides, what a run is refused with, or "taken"; before it, whether
    that has imported torch.
    """
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input="\n".join(map(" ".join, configurations)),
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(configurations), done.stderr
    return lines
