"""Those parts of the reference that the code itself knows, made as Markdown when the site is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from . import commands, compatibility, errors, fields, figures, http_api, metrics
from .accessible import mend_pages

MAKERS: dict[str, Callable[..., str]] = {
    "commands": commands.markdown,
    "compatibility": compatibility.markdown,
    "errors": errors.markdown,
    "figures": figures.markdown,
    "fleet-costs": figures.fleet_costs,
    "fleet-memory": figures.fleet_memory,
    "http-api": http_api.markdown,
    "limit-costs": figures.limit_costs,
    "metrics": metrics.markdown,
    "record": fields.record,
    "settings": fields.settings,
}


class Generated(SphinxDirective):
    """`{generated} settings heatsink.BucketRules`: a maker, and what it is to be made of."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[Any]:
        maker, *arguments = self.arguments[0].split()
        text = MAKERS[maker](*arguments)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("generated", Generated)
    app.connect("build-finished", mend_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
