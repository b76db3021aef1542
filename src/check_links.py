"""The build stops where the links in `src/organs` are not links: a wheel without code would be the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LinksHook(BuildHookInterface):
    """Checks, before a wheel or an editable install is built, that each link leads to its folder."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raise FileNotFoundError with the links that are text files, as Git on Windows writes them."""
        links = sorted((Path(self.root) / "src" / "organs").iterdir())
        broken = [link.name for link in links if link.name != "__pycache__" and not link.is_dir()]
        if broken or not links:
            names = ", ".join(broken) or "organs"
            raise FileNotFoundError(
                f"src/organs: {names}: not a link to the folder of this name, so the package would be empty. Check the "
                "project out with symbolic links (on Windows: git clone -c core.symlinks=true), or unpack an archive "
                "that keeps them"
            )
