"""Without PyTorch, what needs it says so in one message; all else works."""

from __future__ import annotations

import subprocess
import sys

import pytest

_WITHOUT = """
import importlib.abc, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.partition(".")[0] == "torch" else find(name, package)
import steptwin
sys.argv = ["steptwin", *sys.argv[1:]]
steptwin.main()
"""


@pytest.mark.parametrize(
    "verb", ["run tiny-ddp", "twin tiny-ddp", "probe", "here ddp", "here --gpu", "plan capture a:b --input 1:fp32 --out x.json --trust"]
)
def test_one_message_and_exit_code_2(verb: str) -> None:
    found = subprocess.run([sys.executable, "-c", _WITHOUT, *verb.split()], capture_output=True, text=True, timeout=60)
    assert found.returncode == 2, found.stderr
    assert "Traceback" not in found.stderr and "needs PyTorch" in found.stderr and "pip install" in found.stderr


def test_predictions_work() -> None:
    found = subprocess.run([sys.executable, "-c", _WITHOUT, "predict", "gpt2-ddp8"], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0 and "step time" in found.stdout


def test_marking_a_loop_says_what_it_needs() -> None:
    code = _WITHOUT.replace(
        "steptwin.main()",
        "from topologies.errors import Refused\ntry:\n    steptwin.marked(None)\nexcept Refused as told:\n    print(told)",
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0 and "needs PyTorch" in found.stdout and "pip install" in found.stdout, found.stderr
