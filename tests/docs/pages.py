"""The README and the pages of the docs, and the code blocks in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = tuple(
    sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), ROOT / "collector" / "README.md"])
)
TITLES: Final = tuple(page.relative_to(ROOT).as_posix() for page in PAGES)

_BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"\s+#\s.*$")


class Block(NamedTuple):
    """A fenced block: the words after the fence, its text, and the line where the text starts."""

    info: str
    text: str
    line: int

    @property
    def language(self) -> str:
        """The first word after the fence."""
        return self.info.partition(" ")[0]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(match["info"], match["text"], text.count("\n", 0, match.start("text")) + 1)
        for match in _BLOCK.finditer(text)
    ]


def commands(page: Path) -> list[str]:
    """Return the shell commands of a page, without comments; continued lines are joined."""
    found: list[str] = []
    for block in blocks(page):
        lines = block.text.replace("\\\n", " ").splitlines()
        if block.language in {"sh", "bash"}:
            found += lines
        elif block.language == "console":
            found += [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in (_COMMENT.sub("", line).strip() for line in found) if line]


def program(page: Path) -> str:
    """Return the Python blocks of a page as one program, each on the line where the page has it."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python":
            lines += [""] * (block.line - 1 - len(lines))
            lines += block.text.splitlines()
    return "\n".join(lines)


def outputs(page: Path) -> list[str]:
    """Return the blocks titled "Output": what the page's program prints, in order."""
    return [block.text for block in blocks(page) if 'title="Output"' in block.info]
