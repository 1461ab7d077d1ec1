"""Wrong programs: what users of this library, PyTorch, NumPy, Keras and JAX write by mistake.

Each function of the modules beside this one is one mistake, and its name says which. `table.MISTAKES` holds them all;
`tests/test_misuse.py` runs them and compares their messages with `tests/golden/misuse`.
"""
