"""Sphinx configuration: `sphinx-build docs docs/_build`."""

project = "distarray"
author = "The distarray developers"
project_copyright = "2026, The distarray developers"
extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
