"""MkDocs hook: make links from a page to the rest of the repository work on the site too.

A page links to ``../collector/README.md`` so that the link works where the repository is browsed.
On the site the link goes to the repository; a picture is copied into the site instead.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

_LINK = re.compile(
    r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\(\.\./(?P<path>[^)#\s]+)(?P<anchor>#[^)]*)?\)"
)
_PICTURES = ("dashboards/preview/*.png",)


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures that pages show and that lie outside the docs folder."""
    root = Path(config.config_file_path).parent
    for pattern in _PICTURES:
        for picture in sorted(root.glob(pattern)):
            name = picture.relative_to(root).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Point links that leave the docs folder to the repository or to the copied picture.

    Raises:
        PluginError: a link names a file that does not exist.
    """
    root = Path(config.config_file_path).parent

    def replace(link: re.Match[str]) -> str:
        path = link["path"]
        if not (root / path).exists():
            raise PluginError(f"{page.file.src_uri} links to ../{path}, which does not exist")
        if link["picture"]:
            return f"![{link['text']}]({path})"
        kind = "tree" if (root / path).is_dir() else "blob"
        url = f"{config.repo_url.rstrip('/')}/{kind}/main/{path}{link['anchor'] or ''}"
        return f"[{link['text']}]({url})"

    return _LINK.sub(replace, markdown)
