"""Files of uploads that come in pieces: whatever is sent, and whoever dies."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from loraplex.platform import resumable


def test_bytes_that_a_killed_process_had_taken_are_still_there(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from loraplex.platform import resumable
file = resumable._open(Path(sys.argv[1]), 0)
file.write(b"x" * 1000); file.flush()
print("ready", flush=True)
sys.stdin.read()
"""
    path = tmp_path / "file"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(resumable.UploadConflict):
            resumable._open(path, 1000)
        os.kill(child.pid, signal.SIGKILL)
    with resumable._open(path, 1000) as file:
        assert file.tell() == 1000


class Pieces(RuleBasedStateMachine):
    """A file that is sent in any pieces, from any offsets, is what was meant, or not whole."""

    data = bytes(range(200))

    @initialize(folder=st.builds(tempfile.mkdtemp))
    def start(self, folder: str) -> None:
        self.path, self.size = Path(folder) / "file", 0

    @rule(offset=st.integers(0, 220), length=st.integers(0, 60))
    def send(self, offset: int, length: int) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for start in range(offset, offset + length, 7):
                yield self.data[start : min(start + 7, offset + length)]

        async def work() -> int:
            file = resumable._open(self.path, offset)
            with file:
                return await resumable._write(file, offset, len(self.data), chunks())

        if offset != self.size:
            with pytest.raises(resumable.UploadOffsetMismatch) as refused:
                asyncio.run(work())
            assert refused.value.offset == self.size
            return
        self.size = asyncio.run(work())

    @invariant()
    def it_is_a_beginning_of_the_data(self) -> None:
        written = self.path.read_bytes() if self.path.exists() else b""
        assert written == self.data[: self.size]


TestPieces = Pieces.TestCase
TestPieces.settings = examples(max_examples=15, stateful_step_count=15, deadline=None)
