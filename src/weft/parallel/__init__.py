"""Data parallel modules that trace: replicate, fully shard, hybrid shard.

`data_parallel` changes a model in place. Its parameters become DTensors, which is what `parameters()`, `state_dict()`,
optimisers and attribute access from outside see. Inside a forward, and inside recomputation during a backward, the
same attribute is the whole parameter as an ordinary tensor: each module that owns parameters gets a generated subclass
in which every parameter name is a property.

**Communication.** One autograd function gathers in its forward and reduces in its backward. It calls the functional
collectives alone, so every collective is a start and a wait in a captured graph, and it calls them when the module
asks for the parameter: moving them apart is the compiler's task, not this package's.

**Gathering again in the backward.** A gathered parameter must not stay in memory from the forward to the backward, and
there is no one way to say so that works everywhere:

- In eager and under `make_fx`, autograd's saved-tensor hooks are in force during the forward. A saved tensor that is a
  view of a gathered parameter is replaced by a recipe, and gathered again when the backward asks for it. If other
  hooks are in force already, which is how activation checkpointing works, they are left alone: what they recompute
  gathers by itself.
- Under Dynamo hooks cannot be traced. There the gather is a checkpointed region, and the min-cut partitioner, which
  `torch.compile` uses for Inductor and `aot_eager`, repeats it in the backward. `functorch.compile.default_partition`
  keeps views of gathered parameters instead: correct, but not resharded.

**Lifetimes.** With `reshard_after_forward` a gathered parameter lives for one call of its module, and a module called
again gathers again. Tied parameters, and all parameters where nothing is resharded, live for one forward of the model,
so that they are gathered once and their gradient is reduced once. Under Dynamo only tied parameters do: what is
gathered inside a checkpointed region may not leave it, and they are gathered before the first one.

**Parts.** A module that was made parallel before the model that it is a part of keeps its own mesh, and joins the model
in everything else: its parameters are gathered again in the backward by the same hooks, and let go of together.

**Limits.** A gradient cannot be differentiated again. Code outside a forward that computes with a parameter, such as
a loss that reads the head's weight, computes with a DTensor. Reentrant checkpointing gathers three times. Copies of a
parameter that autocast makes are saved as they are: use `param_dtype` instead. A parameter with fewer rows than ranks
is padded to a row for each. A tensor-parallel parameter that is split on dimension 0 must split evenly again over the
data ranks to be sharded.
"""

from weft.parallel.wrap import data_parallel

__all__ = ["data_parallel"]
