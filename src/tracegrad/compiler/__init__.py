"""Compile a model to a Program, and trace a dispatch back to the user's lines."""
