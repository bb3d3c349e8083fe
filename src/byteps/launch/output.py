"""What the launcher prints: the lines of many processes, whole and each with its process's name in front."""

from __future__ import annotations

import os
import re
import select

from byteps.errors import NO_SPACE

LONGEST_LINE_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_END_OF_LINE = re.compile(rb"\r\n|\r(?!\Z)|\n")
_ERASE_REST = b"\x1b[K"
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class Console:
    """The launcher's own stdout or stderr.

    Attributes:
        broken: nobody reads it any more; what is written is dropped.
        lost_bytes: what could not be written because there was no space.
    """

    def __init__(self, fd: int, *, colour: bool = True) -> None:
        """Write to the open file descriptor ``fd``; ``colour`` has an effect on terminals only."""
        self._fd = fd
        self.terminal = os.isatty(fd)
        self._colour = colour and self.terminal
        self.broken = False
        self.lost_bytes = 0
        self._news = ""

    def news(self) -> str:
        """Why output is lost, once; empty if it is not, or that was told."""
        news, self._news = self._news, ""
        return news

    def prefix(self, name: str, index: int) -> bytes:
        """What stands before each line of the process ``name``; ``index`` chooses the colour."""
        if not self._colour:
            return f"[{name}] ".encode()
        return f"\x1b[{_COLOURS[index % len(_COLOURS)]}m[{name}]\x1b[0m ".encode()

    def write(self, data: bytes) -> None:
        """Write all of ``data``; the only thread that writes, so that lines stay whole."""
        view = memoryview(data)
        while view and not self.broken:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                select.select([], [self._fd], [])
            except OSError as error:
                if error.errno not in NO_SPACE:
                    self.broken = True
                    return
                # Training is worth more than its log: it goes on, and so does the log when there is room.
                if not self.lost_bytes:
                    self._news = f"cannot write output: {error.strerror}; the job goes on, its output is lost"
                self.lost_bytes += len(view)
                return


class Stream:
    """One output pipe of one process, cut into lines.

    A carriage return ends a line too and is kept, so that progress bars still overwrite themselves.
    """

    def __init__(self, fd: int, console: Console, prefix: bytes) -> None:
        """Read from ``fd`` (owned from now on) and write to ``console``."""
        self.fd = fd
        self.last_line = b""
        self._console = console
        self._prefix = prefix
        self._pending = b""
        self._rewrites = False
        os.set_blocking(fd, False)

    def pump(self) -> bool:
        """Forward what is there now, at most one buffer full. Returns whether there may be more at once."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._forward(data)
        return True

    def drain(self) -> None:
        """Forward all that is there, then close: the process has ended."""
        while self.fd >= 0 and self.pump():
            pass
        self.close()

    def close(self) -> None:
        """Write the last, unfinished line, and close the pipe. May be repeated."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        if self._pending:
            self._console.write(self._line(self._pending.removesuffix(b"\r"), b"\n"))
            self._pending = b""

    def _forward(self, data: bytes) -> None:
        output = []
        start = 0
        buffer = self._pending + data
        for match in _END_OF_LINE.finditer(buffer):
            text, end = buffer[start : match.start()], match.group()
            # A progress bar starts its line with the carriage return: nothing stands before it.
            if text or end != b"\r":
                output.append(self._line(text, end))
            self._rewrites = end == b"\r"
            start = match.end()
        self._pending = buffer[start:]
        if len(self._pending) > LONGEST_LINE_BYTES:
            output.append(self._line(self._pending, b"\n"))
            self._pending = b""
        if self._console.terminal and self._pending and (self._rewrites or self._pending.endswith(b"\r")):
            # Show a progress bar as it is now, not when its next state comes.
            output.append(self._line(self._pending.removesuffix(b"\r"), b"\r"))
        self._console.write(b"".join(output))

    def _line(self, text: bytes, end: bytes) -> bytes:
        self.last_line = text.strip() or self.last_line
        erase = _ERASE_REST if self._console.terminal else b""
        return self._prefix + text + erase + end
