# %% [markdown]
# # Images: compare and tune
#
# You have images from several clients and want to know which method suits them. In this notebook you look at the
# images, compare methods with their default settings, and then tune each method with the same number of trials. It
# takes about ten minutes.

# %% [markdown]
# ## The images
#
# The package comes with 1,797 handwritten digits of 8 × 8 pixels, and this notebook uses 900 of them. To make six
# clients differ, three of them see the digits through a scanner that swaps black and white.

# %%
import numpy as np
from PIL import Image

import stratafl

[(pixels, labels)] = stratafl.digits("iid", clients=1)  # all of them
order = np.random.default_rng(0).permutation(len(labels))[:900]
clients = {}
for number, rows in enumerate(np.split(order, 6)):
    x = pixels[rows]
    clients[f"scanner {number}"] = (1 - x if number % 2 else x, labels[rows])

rows = [np.hstack([image[0] for image in x[:12]]) for x, _ in clients.values()]
Image.fromarray((255 * np.vstack(rows)).astype(np.uint8)).resize((12 * 32, 6 * 32), Image.Resampling.NEAREST)

# %% [markdown]
# Each row shows one client. The scanners with odd numbers swap black and white.
#
# For your own images, pass the name of a folder, such as `"scans/"`. It has a folder for each client, which contains
# a folder for each class ([your own images](../start/images.md)).
#
# ## Compare
#
# 8-bit pixels, in arrays or in files, are [scaled for you](../guide/data.md#images). The pixels here are already
# numbers from 0 to 1, so they are used unchanged.

# %%
result = stratafl.compare(
    "local,fedavg,fedper", clients, "mlp", rounds=8, lr=0.1, seeds=2, folder="runs/scanners", progress=False
)
result

# %% [markdown]
# `fedper` keeps the last layer with each client. Here the clients differ at the *input*, so another choice seems
# reasonable: keep the first layer, and share the rest. `personal="first:1"` does that:

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
# The idea does not work here. FedPer scores 0.746 with a personal head and 0.603 with a personal first layer. A
# comparison shows you this before you rely on the idea.
#
# ## Tune
#
# A comparison with default settings favours the method whose defaults happen to fit. `tune` gives each method the
# same number of trials, chooses settings on validation samples, and then runs the chosen settings on fresh seeds.
# Three trials and eight rounds keep this notebook short; the default is twelve trials. FedPer keeps its first layer
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
# - Which settings are tuned, and how trials are divided: [tune fairly](../guide/tuning.md).
# - How many seeds a difference needs: [noise between seeds](../understand/noise.md).
# - Idea, equations and options of each method: [methods](../methods/README.md).
