"""Who gains: for every client, the score of a method's model against that of the model it trains alone.

`client_gains` pairs runs and gives `records`; `intervals` has the statistics, from `influence` and `resampling` of test
samples, which paired differences of methods use too; `traits` is what gains may depend on, `words` what they mean.
"""

from stratafl.report.gains.client_gains import ALONE, client_gains, gains_of
from stratafl.report.gains.records import ClientGain, Gains, SeedGain, verdict

__all__ = ["ALONE", "ClientGain", "Gains", "SeedGain", "client_gains", "gains_of", "verdict"]
