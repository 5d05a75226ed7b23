"""How the site is made: `./dev docs`. Nothing in it is fetched from outside."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from heatsink import __version__

project = "Heatsink"
author = "The Heatsink authors"
version = release = __version__
language = "en_GB"

extensions = ["myst_parser", "sphinx.ext.autodoc", "docs.generate"]
exclude_patterns = ["generate"]
root_doc = "index"

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
smartquotes = False  # quoted messages and commands stay as they are typed: "…", --flag
default_role = "code"  # our docstrings say `code` as Markdown does
python_maximum_signature_line_length = 90
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "Heatsink"
html_static_path = ["style"]
html_css_files = ["heatsink.css"]
html_favicon = "../src/heatsink/server/dashboard/static/icon.svg"
html_logo = "../src/heatsink/server/dashboard/static/icon.svg"
html_copy_source = False
html_show_copyright = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#b3400f", "color-brand-content": "#b3400f"},
    "dark_css_variables": {"color-brand-primary": "#ff9a5c", "color-brand-content": "#ff9a5c"},
    "footer_icons": [],
}
