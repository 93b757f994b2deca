"""Sphinx and MyST: README and the docstrings of all rooms (`make docs`)."""

project = "StepTwin"
copyright = "the StepTwin authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
autodoc_mock_imports = ["torch", "pynvml", "psutil"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
myst_heading_anchors = 3
suppress_warnings = ["myst.header", "docutils", "ref.python", "myst.xref_missing"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "description": "Predict a training step, run the same plan, compare the two."}
