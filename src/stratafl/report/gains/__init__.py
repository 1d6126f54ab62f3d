"""Who gains: for every client, the score of a method's model against that of the model it trains alone.

`client_gains` pairs runs and gives `gain_records`; `gain_intervals` has the statistics, from the noise of test samples
(`sample_noise`), which paired differences of methods use too; `traits` is what gains may depend on.
"""

from stratafl.report.gains.client_gains import TRAINS_ALONE, client_gains
from stratafl.report.gains.gain_records import ClientGain, Gains, SeedGain, verdict

__all__ = ["TRAINS_ALONE", "ClientGain", "Gains", "SeedGain", "client_gains", "verdict"]
