"""Renderers, which write kernel forms as source text: WGSL, C and NumPy."""
