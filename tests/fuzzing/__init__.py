"""Differential fuzzing: one random program on every runtime, and a bound on how far results may differ.

program  a program as plain data: inputs, steps, results; reads and writes JSON
table    the ops a step can name, in tracegrad, PyTorch and JAX
cases    rows of the case table as steps, at other shapes
nested   steps that hold a program: checkpoint, grad, jvp, hessian, custom_vjp, vmap, scan
drawing  values, shapes and indices for a step
grow     random programs from a seed
apply    runs a program in one of the three libraries
exact    the float64 reference, and the rounding bound of every element
halves   the same where values are stored in half precision
bounds   the bound of each primitive, with the derivation
runners  eager, C, NumPy, WebGPU, PyTorch, JAX
compare  which elements lie outside the bound
shrink   the smallest program that still fails
snippet  that program as Python
command  tools/fuzz
"""
