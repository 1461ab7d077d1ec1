"""From a model to a Program, and back from a dispatch to the user's lines."""
