"""Renderers: kernel forms to source, one file a language."""
