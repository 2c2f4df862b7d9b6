"""Two processes, set up by accelerate, train one head."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.tiny_training import states_of_target

SCRIPT = """
import hashlib, sys
from pathlib import Path
import torch
from foredraft.train.team import joined
from tests.support.tiny_training import head_trainer
torch.set_num_threads(1)
team = joined()
trainer = head_trainer(Path(sys.argv[1]), Path(sys.argv[2]) / str(team.rank), team)
trainer.run(lambda event: None, lambda head, found: None)
digest = hashlib.sha256()
for weight in trainer.head.state_dict().values():
    digest.update(weight.numpy().tobytes())
print(type(team).__name__, team.rank, team.size, trainer.loop.step, digest.hexdigest())
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run(folder: Path, out: Path, size: int) -> list[list[str]]:
    """What each of ``size`` processes says of itself."""
    port, started = str(free_port()), []
    for rank in range(size):
        (out / str(rank)).mkdir(parents=True)
        there = {"WORLD_SIZE": str(size), "RANK": str(rank), "LOCAL_RANK": str(rank), "ACCELERATE_USE_CPU": "true"}
        there |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", SCRIPT, str(folder), str(out)]
        environment = os.environ | (there if size > 1 else {}) | {"PYTHONPATH": os.pathsep.join(["src", "."])}
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    said = []
    for process in started:
        out_text, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        said.append(out_text.splitlines()[-1].split())
    return said


def test_two_processes_train_one_head(tmp_path: Path) -> None:
    states_of_target(tmp_path / "data")
    alone = run(tmp_path / "data", tmp_path / "alone", 1)
    both = run(tmp_path / "data", tmp_path / "both", 2)
    assert [words[:4] for words in alone] == [["Alone", "0", "1", "6"]]
    assert [words[:4] for words in both] == [["Launched", "0", "2", "6"], ["Launched", "1", "2", "6"]]
    assert both[0][4] == both[1][4] != alone[0][4], "the same weights everywhere, from twice as many texts"
    assert (tmp_path / "both" / "0" / "checkpoint.pt").exists()
    assert not (tmp_path / "both" / "1" / "checkpoint.pt").exists(), "only the first process writes"
