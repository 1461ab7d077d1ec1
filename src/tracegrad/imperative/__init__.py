"""Eager tensors: ops on values, run at once by the array rules and VJPs of the table.

`tg.sum(x, axis=1)` outside of a trace, from the call to its gradient:

    sum(x, axis=1, keepdims=False)               the public function, written when it is called first   methods.Op
      |
      |  key = (x._spec, 1, FALSE)               what decides about a call                              keys.key
      |
      +-- plans[key] -- found -------------+     the one cache of the op
      |                                    |
      +-- new: keys.missed                 |
            | leaves in place of arrays    |
            v                              |
          sum(leaf, axis=1) -> a graph     |     the op itself, traced                                  plans.traced
            | array rules, VJPs            |
            v                              |
          Plan -> Python, one line a node  |                                                            plans, spell
            |                              v
            +-----------------------> run(x, 1, False)
                                           |
                  GradTensor  <------------+     and, if x wants a gradient, a Record                   tensors, tape
                      .backward() ->  the pullback of each Record, the latest first                     tape

A *key* holds what the computation depends on. For a tensor that is its `Spec`, one object for each type with or without
gradient. For an array it is dtype and shape, and for a setting its value. The text of the key is part of the public
function. `keys.part` computes the parts that this text has no shortcut for. Beside a tensor of floats a number is an
operand, and its part is `NUMBER`; elsewhere the key holds the number itself.

A *plan* is the graph that the op gives for such arguments. `Plan.function` writes it as Python over NumPy: array rules
as calls, constants computed, checks of indices, the making of the result. It contains no type rule and no broadcast.
If a gradient is needed, `transforms.grad` differentiates the same graph. A `Record` keeps what the backward pass reads.

A call costs one lookup and two calls of Python beyond NumPy: 0.4 us forward, 2.4 us with its backward (medians of
`python bench/eager.py` on Python 3.11, two cores of an Intel Xeon). Beside this, `stepwise` runs a model line by line,
`streams` counts the random numbers, and `values` says what types the data of users get.
"""
