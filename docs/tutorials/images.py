# %% [markdown]
# # Images: compare and tune
#
# You have images of several clients and want to know which method suits them. In this notebook you look at the images,
# compare methods as they come, and then tune each with the same number of trials. It takes about ten minutes.

# %% [markdown]
# ## The images
#
# These are the handwritten digits of the package, 1,797 images of 8 × 8 pixels. To have clients that differ, each of
# six clients sees the digits through a scanner of its own, which adds brightness and may swap black and white.

# %%
import numpy as np
from PIL import Image

from stratafl.data.digits import digits_arrays

pixels, labels = digits_arrays()
order = np.random.default_rng(0).permutation(len(labels))[:900]
clients = {}
for number, rows in enumerate(np.split(order, 6)):
    x = pixels[rows]
    clients[f"scanner {number}"] = (1 - x if number % 2 else x, labels[rows])

rows = [np.hstack([image[0] for image in x[:12]]) for x, _ in clients.values()]
Image.fromarray((255 * np.vstack(rows)).astype(np.uint8)).resize((12 * 32, 6 * 32), Image.Resampling.NEAREST)

# %% [markdown]
# One row per client: odd scanners swap black and white.
#
# In your case, `clients` is a folder: `"scans/"` with a folder for each client and in it one for each class
# ([your own images](../start/images.md)).
#
# ## Compare
#
# Pixels of 8 bits, in arrays or in files, are [scaled for you](../guide/data.md#images). These pixels are numbers from
# 0 to 1, which are taken as they are.

# %%
import stratafl

result = stratafl.compare(
    "local,fedavg,fedper", clients, "mlp", rounds=8, lr=0.1, seeds=2, folder="runs/scanners", progress=False
)
result

# %% [markdown]
# `fedper` keeps the last layer with each client. Here the clients differ at the *input*, so another choice seems
# reasonable: keep the first layer, and share what follows. `personal="first:1"` does that:

# %%
first = stratafl.compare(
    "fedper",
    clients,
    "mlp",
    rounds=8,
    lr=0.1,
    seeds=2,
    settings={"fedper.personal": "first:1"},
    folder="runs/first",
    progress=False,
)
first.to_pandas()[["method", "score_mean", "worst10_mean"]].round(3)

# %% [markdown]
# The idea does not hold here: FedPer with its own head scores 0.746, and with its own first layer 0.603. That is what a
# comparison is for.
#
# ## Tune
#
# A comparison with default settings favours the method whose defaults happen to fit. `tune` gives each method the same
# trials, chooses on validation samples, and then runs what it chose on fresh seeds.
# Three trials and eight rounds keep this notebook short; twelve trials are the default. FedPer keeps its first layer
# again.

# %%
tuned = stratafl.tune(
    "fedavg,fedper",
    clients,
    "mlp",
    trials=3,
    seeds=2,
    rounds=8,
    settings={"fedper.personal": "first:1"},
    folder="runs/tuned",
    progress=False,
)
tuned

# %%
tuned.to_pandas("trials").head()

# %% [markdown]
# ## Next
#
# - What may be tuned, and how trials are divided: [tune fairly](../guide/tuning.md).
# - How many seeds a difference needs: [noise between seeds](../understand/noise.md).
# - Idea, equations and options of each method: [methods](../methods/README.md).
