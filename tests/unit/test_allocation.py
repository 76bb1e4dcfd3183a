"""Freed memory is kept where the C library can be told so."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("switch", "kept"), [(None, sys.platform.startswith("linux")), ("0", False)])
def test_keep_freed_memory(switch, kept):
    environment = {name: value for name, value in os.environ.items() if name != "OPGRAFT_KEEP_MEMORY"}
    environment |= {} if switch is None else {"OPGRAFT_KEEP_MEMORY": switch}
    script = "from opgraft.allocation import keep_freed_memory; print(keep_freed_memory())"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(kept)
