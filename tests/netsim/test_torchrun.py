import pytest
from torch.distributed import launch as launcher
from torch.distributed.run import get_args_parser

from netsim.torchrun import FLAGS, PORT, of_one_node, without_meeting

ADDRESSES = ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    "words",
    [
        "--nproc-per-node 2",
        "--nproc_per_node=2 --nnodes=1:1 --log-dir logs -r3 -t 0:1,1:2",
        "--nnodes 1 --nproc-per-node 2 --max_restarts 0 --run-path",
        "--max-restarts 0 --nproc-per 2 --no-python --rdzv-conf join_timeout=9 -m",
        "-m --nproc-per-node 2 --",
        "",
    ],
)
@pytest.mark.parametrize("launcher", ["/bin/torchrun", "python3 -u -m torch.distributed.run"])
def test_each_worker_starts_a_torchrun_of_one_process(launcher, words):
    """torchrun's own parser says what it will do."""
    script = ["train.py", "--nproc-per-node", "7", "--nnodes", "--standalone"]
    command = [*launcher.split(), *words.split()]
    arguments = of_one_node([*command, *script], 1, ADDRESSES)
    assert arguments[: len(launcher.split())] == launcher.split()
    told = get_args_parser().parse_args(arguments[len(launcher.split()) :])
    assert (told.nnodes, told.node_rank, told.nproc_per_node) == ("2", 1, "1")
    assert (told.master_addr, told.master_port, told.local_addr) == ("10.0.0.1", PORT, "10.0.0.2")
    assert [told.training_script, *told.training_script_args] == script
    own = get_args_parser().parse_args([*words.split(), *script])
    assert (told.module, told.redirects) == (own.module, own.redirects)


def test_which_options_of_torchrun_have_no_value():
    actions = get_args_parser()._actions
    names = {name for action in actions if action.nargs == 0 for name in action.option_strings}
    assert {name.replace("_", "-") for name in names} | {"--use-env"} == FLAGS
    others = {name for action in actions if action.nargs != 0 for name in action.option_strings}
    assert not [name for name in others for flag in FLAGS if flag.startswith(name)]


def test_the_older_module_of_torchrun_is_turned_too():
    words = "python -m torch.distributed.launch"
    command = f"{words} --nproc-per-node=2 --use-env train.py".split()
    arguments = of_one_node(command, 1, ADDRESSES)
    told = launcher.parse_args(arguments[3:])
    assert (told.nnodes, told.node_rank, told.nproc_per_node) == ("2", 1, "1")
    assert (told.master_addr, told.use_env, told.training_script) == ("10.0.0.1", True, "train.py")


@pytest.mark.parametrize(
    "command",
    [
        ["chrt", "-b", "0", "torchrun", "--nproc-per-node", "2", "train.py"],
        ["env", "X=1", "/bin/torchrun", "train.py"],
        ["numactl", "-m", "0", "python", "-m", "torch.distributed.run", "train.py"],
        ["uv", "run", "python3", "-m", "torch.distributed.launch", "train.py"],
        ["sh", "-c", "cd here && torchrun --nproc-per-node 2 train.py"],
        ["bash", "-lc", "torchrun --nproc-per-node 2 train.py"],
        ["timeout", "60", "sh", "-c", "torchrun train.py"],
        ["mpirun", "-np", "2", "torchrun", "train.py"],
        ["srun", "torchrun", "train.py"],
        ["sudo", "--preserve-env", "torchrun", "train.py"],
    ],
)
def test_a_torchrun_that_another_command_starts_is_refused(command):
    """Each worker's would train alone, with as many processes as there are workers."""
    with pytest.raises(ValueError, match=f"^torchrun stands behind {command[0]}, .* begin the"):
        of_one_node(command, 1, ADDRESSES)


@pytest.mark.parametrize(
    "command",
    [
        ["python", "bin/train", "--launcher", "torchrun"],
        ["python", "-X", "importtime", "train.py", "torchrun"],
        ["python", "-m", "mine", "-m", "torch.distributed.run"],
        ["./train", "--launcher", "torchrun"],
        ["./train", "--note", "better than torchrun"],
        ["relaxlab", "run", "+algo=x", "hydra.run.dir=runs/torchrun"],
        ["bash", "run.sh", "torchrun"],
        ["sh", "-c", "./train against_torchrun"],
        ["env", "X=1", "./train"],
        ["env", "X=1", "python", "train.py", "--launcher", "torchrun"],
        ["uv", "run", "train.py", "--launcher", "torchrun"],
        ["sh", "-c", "python train.py --launcher torchrun"],
        ["pytest", "-k", "torchrun"],
        ["python"],
    ],
)
def test_a_command_that_is_no_torchrun_stays_as_it_is(command):
    assert of_one_node(command, 1, ADDRESSES) == command


def test_torchrun_is_known_behind_options_of_python():
    command = ["python3", "-X", "dev", "-u", "/usr/bin/torchrun", "--nproc-per-node=2", "train.py"]
    arguments = of_one_node(command, 1, ADDRESSES)
    assert arguments[:5] == command[:5] and "--node-rank=1" in arguments


def test_the_environment_does_not_say_how_torchruns_find_each_other(monkeypatch):
    own = {"PET_STANDALONE": "1", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "elsewhere:1"}
    others = {"PET_MAX_RESTARTS": "3", "HOME": "/"}
    assert without_meeting(own | others) == others
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    told = get_args_parser().parse_args(["train.py"])
    assert told.standalone and told.rdzv_endpoint == "elsewhere:1"  # torchrun would hear of it


@pytest.mark.parametrize(
    "command",
    [
        *("python train.py", "python -m train torch.distributed.run", "run --nnodes 2"),
        *("python -m train torchrun", "python train.py --by torchrun"),
    ],
)
def test_another_command_stays_as_it_is(command):
    assert of_one_node(command.split(), 1, ADDRESSES) == command.split()


@pytest.mark.parametrize(
    "words",
    [
        "--nproc-per-node 4",
        "--max-restarts 0 --nproc-per-node 4",
        "--nnodes=1 -m --nproc_per_node=4",
        "--rdzv-id c10d --nproc 4",
    ],
)
def test_torchrun_has_as_many_processes_as_there_are_workers(words):
    with pytest.raises(ValueError, match=r"start 4 processes for 2 workers: .* or workers=4"):
        of_one_node(["torchrun", *words.split(), "train.py"], 0, ADDRESSES)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("--nnodes 4 --nproc-per-node 2", "--nnodes 4"),
        ("--nproc-per-node 2 --nnodes=1:2", "--nnodes 1:2"),
        ("--standalone", "--standalone"),
        ("--max-restarts 3 --stand", "--stand"),
        ("--rdzv_backend c10d", "--rdzv-backend c10d"),
        ("--rdzv-endpoint=here:1", "--rdzv-endpoint here:1"),
        ("--node_rank=0", "--node-rank 0"),
        ("--master-addr here", "--master-addr here"),
        ("--master-port 1", "--master-port 1"),
        ("--local-addr here", "--local-addr here"),
    ],
)
def test_how_torchruns_find_each_other_is_not_the_callers_to_say(words, option):
    with pytest.raises(ValueError, match=f"^torchrun has {option}, .* leave it out"):
        of_one_node(["torchrun", *words.split(), "train.py"], 0, ADDRESSES)
