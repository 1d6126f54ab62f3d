# %% [markdown]
# # An own method in thirty lines
#
# You have an idea for a personalised method and want to know whether it works. In this notebook you write it, check
# that it obeys the contract of all methods, and compare it with the method that it extends. It takes about ten minutes.
#
# Here is the idea. In FedPer, the head stays with each client and sees only that client's samples. So let the head
# learn faster than the layers that all clients share.

# %% [markdown]
# ## The method
#
# A method is a record of steps, and a builder is a function that returns one. Everything that you need is in
# `stratafl.methods`. This method changes only one thing in FedPer: the learning rate of some layers. A `Rate` is a
# record that returns a factor for each tensor.

# %%
from dataclasses import replace

from stratafl.methods import LocalTraining, Rate, Select, fedper, record, select


@record
class FasterLayers(Rate):
    """The learning rate of some layers is multiplied by a factor."""

    layers: Select = select("head")
    factor: float = 3.0
    reads = ()  # it needs no field of the client's state

    def __call__(self, gradients, row, client, layout):
        fast = layout.trainable(self.layers)
        return {name: g.new_tensor(self.factor if name in fast else 1.0) for name, g in gradients.items()}


def fasthead(*, personal="head", factor: float = 3.0, train=LocalTraining()):
    """FedPer whose personal layers learn faster."""
    faster = FasterLayers(select(personal), factor)
    return fedper(personal=personal, train=replace(train, rates=(*train.rates, faster)))


# %% [markdown]
# Tensors have a leading axis for clients: `gradients["fc.weight"]` has the shape `[C, 10, 200]`. The factor
# broadcasts over all axes, so there is no loop over clients.
#
# ## Check it
#
# `check` runs the method in many small federations and compares the results. It trains clients together and over
# messages, in several orders, poisons every value that the method did not declare, saves and restores runs, and lets
# clients join late. If the method breaks a law, `check` raises an error that names the law. `strata check` does the
# same on the command line.

# %%
from stratafl.methods import SpecialCase, check

check(fasthead(), [SpecialCase("with factor 1 it is FedPer", fasthead(factor=1.0), fedper())])
print("it obeys the contract, and with factor 1 it is FedPer")

# %% [markdown]
# You define the special case: with a factor of 1, every client must end with FedPer's model. Such a law finds more
# mistakes than any plot of an accuracy.
#
# The next cell shows a broken method. It draws its own random numbers, which are not keyed by client and round:

# %%
import torch

from stratafl import StrataError


@record
class NoisyRate(Rate):
    """A random factor, which is another one whenever it is asked for."""

    reads = ()

    def __call__(self, gradients, row, client, layout):
        return {name: 1 + torch.rand(()) for name in gradients}


try:
    check(fedper(train=LocalTraining(rates=(NoisyRate(),))), settings=[("follow", 1.0)])
except StrataError as error:
    print(error)

# %% [markdown]
# ## Does it help?
#
# Compare it with FedPer on the same clients, seed by seed. The data are the digits that come with the package,
# divided among twenty clients that each hold a few of the ten classes.

# %%
import stratafl

train = LocalTraining(lr=0.1)
for seed in range(3):
    clients = stratafl.digits(clients=20, alpha=0.3, seed=seed)
    methods = fedper(train=train), fasthead(factor=2.0, train=train), fasthead(factor=4.0, train=train)
    scores = [stratafl.fit(method, clients, "mlp", rounds=15, seed=seed).accuracy for method in methods]
    print(f"seed {seed}: fedper {scores[0]:.1%}, fasthead(2) {scores[1]:.1%}, fasthead(4) {scores[2]:.1%}")

# %% [markdown]
# Three seeds give a first impression, not a result. For a result, save the first code cell as `fasthead.py`. Then
# tune both methods in the same way and test the difference:
#
# ```console
# $ strata check fasthead:fasthead
# $ strata tune --algorithms fedper,fasthead:fasthead --trials 12
# ```
#
# ## Next
#
# - Steps for the other slots, and fields that clients keep: [write a method](../guide/write-a-method.md).
# - The public names in `stratafl.methods`: [the methods' module](../reference/methods-api.md).
# - How a comparison decides: [noise between seeds](../understand/noise.md).
