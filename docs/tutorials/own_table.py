# %% [markdown]
# # Own table to prediction
#
# You have a DataFrame with rows from several plants, hospitals or shops, and want a model for each. In this notebook
# you compare methods, see which plants gain, predict new rows, and save the models. It takes about ten minutes.

# %% [markdown]
# ## The table
#
# Ten plants record the state of their machines, and whether a machine failed in the following week. The table is made
# up. As in real tables, columns have different scales, some cells contain text or are empty, and plants have few
# rows.

# %%
import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
PLANTS = ["Aalst", "Brno", "Celle", "Dijon", "Espoo", "Fulda", "Ghent", "Hamm", "Imola", "Jena"]


def machines(plant, count):
    temperature, vibration = rng.normal(61, 9, count), rng.lognormal(0, 0.6, count)
    product = rng.choice(["bolts", "gears", "springs"], count)
    night = rng.choice(["yes", "no"], count)
    risk = 0.15 * (temperature - 65) + 2.2 * (vibration - 1.3) * rng.normal(1, 0.3) + 1.5 * (product == "gears")
    return pd.DataFrame(
        {
            "machine": [f"{plant[:2]}{number:03d}" for number in range(count)],
            "plant": plant,
            "temperature": temperature.round(1),
            "vibration": np.where(rng.random(count) < 0.15, np.nan, vibration.round(2)),
            "product": product,
            "night": night,
            "failed": np.where(rng.random(count) < 1 / (1 + np.exp(0.5 - risk)), "yes", "no"),
        }
    )


table = pd.concat([machines(plant, int(rng.integers(50, 150))) for plant in PLANTS], ignore_index=True)
table.head()

# %% [markdown]
# ## Compare
#
# `label` names the column to predict, and `client` names the column that identifies the plants. `local` trains each
# plant alone, `fedavg` trains one model for all, and `fedper` keeps the last layer with each plant. Each method runs
# with three seeds.

# %%
import stratafl

result = stratafl.compare(
    "local,fedavg,fedper",
    table,
    "mlp",
    label="failed",
    client="plant",
    rounds=15,
    seeds=3,
    folder="runs/plants",
    progress=False,
)
result

# %% [markdown]
# The sentence above the picture says whether a lead is certain. The runs are stored in `folder`. If you make the same
# call again, stratafl only reads them.
#
# The next table shows which plants gain from one model for all. `alone` is the score of `local`, here with the first
# seed. The last column says whether the difference is certain. With 13 to 37 test samples per plant, it is not:

# %%
gains = result.to_pandas("clients").query("method == 'fedavg' and seed == 0")
gains[["name", "training_samples", "alone", "score", "difference", "client_verdict"]].round(2)

# %% [markdown]
# ## Predict
#
# `result.fitted(method)` returns the models of one run. Without an argument, it returns the models of the best
# method. A plant's own model takes raw rows, with text, empty cells and columns in any order.

# %%
fitted = result.fitted("fedper")
brno = fitted.client("Brno")
new = machines("Brno", 5).drop(columns="failed")
new.assign(prediction=brno.predict(new), probability=brno.predict_proba(new)[:, 1].round(decimals=2))

# %% [markdown]
# The columns of `predict_proba` are in the order of `fitted.classes`:

# %%
print(fitted.classes)
print(f"AUROC at Brno: {brno.metric('auroc'):.2f}, of all plants: {fitted.metric('auroc'):.2f}")

# %% [markdown]
# ## Save
#
# A saved folder contains every plant's model and its preprocessing, and no data.

# %%
fitted.save("models")
loaded = stratafl.load("models")
print(loaded.client("Brno").predict(new))

# %% [markdown]
# ## Next
#
# - A model for a plant that did not take part: [add a client](../guide/life-cycle.md).
# - The same on the command line: [your own table](../start/table.md).
# - Kinds of columns, missing values, dates: [tables as they are](../guide/tables.md).
# - Give each method the same chance: [images, compare and tune](images.md).
